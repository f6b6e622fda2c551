"""Rates corrected by a run: the factors that were planted come back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.calibration.correct import MOST, correct, factors_text
from htrain.errors import CheckpointError
from htrain.executor.record.measured import Edge, Measured, MeasuredDevice
from htrain.spec.cache import HetCache, LookAheadCache, NoCache
from htrain.spec.cluster import Cluster
from htrain.spec.sparse_sync import Gmp

CLUSTER = Cluster()
factors = st.floats(0.06, 19.0)


def device(
    name: str, ops: float, messages: float, num_bytes: float, *, times: tuple[float, float], noise: float = 1.0
) -> MeasuredDevice:
    """A device whose ops and messages took `times` as long as the cluster's rates say."""
    spent = messages * CLUSTER.message_nanoseconds * 1e-9 + num_bytes / CLUSTER.message_bandwidth
    seen = (ops * times[0] + spent * times[1]) * noise
    return MeasuredDevice(name, 1.0, 1.0, 1.0, 1.0, ops + spent, spent, seen, 1, 1)


def run_of(*devices: MeasuredDevice) -> Measured:
    return Measured(5.0, 1000, 1.0, 1.0, devices, ())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(factors, factors)
def test_planted_factors_come_back(ops: float, messages: float) -> None:
    measured = run_of(
        device("trainer", 1e-6, 0.05, 500.0, times=(ops, messages)),
        device("group_ps:0", 3e-5, 0.02, 3000.0, times=(ops, messages)),
        device("sparse_ps:0", 2e-6, 0.01, 2000.0, times=(ops, messages)),
    )
    corrected, found = correct(CLUSTER, measured, NoCache())
    assert (found.ops, found.messages) == (pytest.approx(ops, rel=1e-3), pytest.approx(messages, rel=1e-3))
    assert found.error_after < 1e-6
    assert corrected.message_nanoseconds == pytest.approx(CLUSTER.message_nanoseconds * messages, rel=1e-3)
    assert corrected.core_flops == pytest.approx(CLUSTER.core_flops / ops, rel=1e-3)
    assert f"ops take {ops:.2f} times, messages {messages:.2f} times" in factors_text(found)


def test_factors_stay_within_bounds_and_the_other_is_fitted_alone() -> None:
    wild = run_of(
        device("trainer", 1e-6, 0.05, 500.0, times=(2.0, 500.0)),
        device("group_ps:0", 3e-5, 0.02, 3000.0, times=(2.0, 500.0)),
    )
    _, found = correct(CLUSTER, wild, NoCache())
    assert found.messages == MOST
    assert 1 / MOST <= found.ops <= MOST


def test_one_device_says_how_long_all_takes_together() -> None:
    _, found = correct(CLUSTER, run_of(device("trainer", 1e-5, 0.05, 500.0, times=(3.0, 3.0))), NoCache())
    assert (found.ops, found.messages) == (pytest.approx(3.0), pytest.approx(3.0))


def test_devices_of_one_mix_say_how_long_all_takes_together() -> None:
    """Ops and messages cannot be told apart there: noise of 2 % would give any pair of factors."""
    measured = run_of(
        device("trainer", 2e-6, 0.05, 500.0, times=(3.0, 3.0), noise=1.02),
        device("group_ps:0", 4.2e-6, 0.10, 1000.0, times=(3.0, 3.0), noise=0.98),
    )
    _, found = correct(CLUSTER, measured, NoCache())
    assert found.ops == found.messages == pytest.approx(3.0, rel=0.03)


def test_a_run_without_messages_says_nothing_of_them() -> None:
    corrected, found = correct(CLUSTER, run_of(device("trainer", 1e-5, 0.0, 0.0, times=(2.0, 1.0))), NoCache())
    assert (found.ops, found.messages) == (pytest.approx(2.0), 1.0)
    assert corrected.message_nanoseconds == CLUSTER.message_nanoseconds


def test_a_run_that_measured_nothing_is_refused() -> None:
    with pytest.raises(CheckpointError, match="too short to measure"):
        correct(CLUSTER, Measured(0.0, 0, 1.0, 0.0, (), ()), NoCache())


def test_behind_caches_what_was_not_asked_of_sparse_pss_says_nothing() -> None:
    """A look-ahead cache has all rows by and by: the sparse PS does nothing any more, and the trainer sends and takes hardly anything."""
    trainer = device("trainer", 1e-5, 0.05, 500.0, times=(2.0, 0.02))
    idle = device("sparse_ps:0", 3e-6, 0.05, 500.0, times=(0.001, 0.001))
    edges = (Edge("trainer", "sparse_ps:0", 600.0, 14.0), Edge("sparse_ps:0", "trainer", 400.0, 6.0))
    measured = Measured(5.0, 1000, 1.0, 1.0, (trainer, idle), edges)
    corrected, found = correct(CLUSTER, measured, LookAheadCache())
    assert found.ops == pytest.approx(2.0, rel=0.05)
    assert corrected.distinct_percent == CLUSTER.distinct_percent
    _, misled = correct(CLUSTER, measured, NoCache())
    assert misled.ops < 0.1


def test_a_het_step_has_its_messages_however_many_rows_they_carry() -> None:
    trainer = device("trainer", 1e-5, 0.05, 500.0, times=(2.0, 2.0))
    busy = device("sparse_ps:0", 3e-6, 0.05, 500.0, times=(9.0, 9.0))
    edges = (Edge("trainer", "sparse_ps:0", 600.0, 14.0), Edge("sparse_ps:0", "trainer", 400.0, 6.0))
    _, found = correct(CLUSTER, Measured(5.0, 1000, 1.0, 1.0, (trainer, busy), edges), HetCache())
    assert (found.ops, found.messages) == (pytest.approx(2.0), pytest.approx(2.0))


def test_by_a_partition_servers_count_and_the_share_of_distinct_ids_stays() -> None:
    """What travels is predicted, though a trainer holds rows."""
    trainer = device("trainer", 1e-5, 0.05, 500.0, times=(3.0, 2.0))
    server = device("sparse_ps:0", 2e-6, 0.02, 3000.0, times=(3.0, 2.0))
    edge = Edge("trainer", "sparse_ps:0", 1000.0, 500.0)
    corrected, found = correct(CLUSTER, Measured(5.0, 1000, 1.0, 1.0, (trainer, server), (edge,)), Gmp(partition="p"))
    assert (found.ops, found.messages) == (pytest.approx(3.0, rel=1e-3), pytest.approx(2.0, rel=1e-3))
    assert corrected.distinct_percent == CLUSTER.distinct_percent

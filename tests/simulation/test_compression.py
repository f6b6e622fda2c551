"""Encoded values are kept where the simulation says that they pay, and only there."""

from pathlib import Path

import pytest

import htrain
from htrain.net.net import COMPRESS
from htrain.plan.plan import Plan
from htrain.simulation.compression import faster
from htrain.simulation.run import simulate
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

DLRM = str(Path(__file__).parents[2] / "models" / "dlrm.py")
SHORT = with_flags(batch_size=512, net_replicas=1, activation_dtype="bfloat16", gradient_dtype="bfloat16")


def compiled(options: Options, bandwidth: int) -> Plan:
    cluster = Cluster(trainers=1, group_ps=1, sparse_ps=1, trainer_bandwidth=bandwidth, group_ps_bandwidth=bandwidth)
    return htrain.compile(DLRM, cluster=cluster, options=options, fc_splits={}, solver="rules")


def num_codecs(plan: Plan) -> int:
    return sum(op.module == COMPRESS for op in plan.nets["train"].ops)


def test_over_a_slow_link_values_travel_encoded_and_the_note_says_what_that_brings() -> None:
    plan = compiled(SHORT, 10_000_000)
    assert num_codecs(plan) > 0
    plain = compiled(with_flags(SHORT, compress="never"), 10_000_000)
    assert num_codecs(plain) == 0
    with_it, without = (simulate(each, steps=12).eps for each in (plan, plain))
    assert with_it > without
    assert plan.notes[-1] == f"{with_it:,.0f} EPS simulated with encoded values, {without:,.0f} without: they pay"


def test_what_the_simulation_refutes_is_not_encoded() -> None:
    """Encoded by force in place of the cost model, over links that are never full."""

    def eager(options: Options) -> Plan:
        return compiled(
            with_flags(
                options, compress="always" if options.compression.compress == "auto" else options.compression.compress
            ),
            10**12,
        )

    plan = faster(eager, SHORT)
    assert num_codecs(plan) == 0
    assert plan.options == SHORT
    assert plan.notes[-1].endswith("without: none is encoded")


@pytest.mark.parametrize("compress", ["always", "never"])
def test_who_asks_for_one_or_the_other_gets_it_unsimulated(compress: str) -> None:
    plan = compiled(with_flags(SHORT, compress=compress), 10**12)  # type: ignore[arg-type]
    assert (num_codecs(plan) > 0) == (compress == "always")
    assert not [note for note in plan.notes if "simulated" in note]

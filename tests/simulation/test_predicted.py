"""The predicted EPS against the simulation of all roles; the loads that are told at it."""

import re
from dataclasses import replace

import pytest
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.costs.predict import demands_of, rounds_at, seconds_of
from htrain.frontend.captured import Captured
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan
from htrain.simulation.predicted import with_steady_state
from htrain.simulation.run import simulate
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags


def compiled(groups: int, sync_period: int = 8, *, net_replicas: int = 4, **rates: int) -> Plan:
    cluster = Cluster(groups=groups, trainers=2, group_ps=2, sparse_ps=2, **rates)
    options = with_flags(batch_size=256, net_replicas=net_replicas, sync_period=sync_period)
    return compile_net(Captured(small_dlrm(), {}), cluster, options, name="small", solver="rules")


DIVIDED = {"sparse_ps_processes": 4}
SLOW = {"trainer_bandwidth": 12_500_000, "dense_ps_bandwidth": 1_250_000}


@pytest.mark.parametrize(
    ("groups", "sync_period", "rates"),
    [
        (1, 8, {}),
        (4, 1, {}),
        (4, 8, {}),
        (100, 1, {}),
        (100, 8, {}),
        (1, 8, SLOW),
        (100, 1, SLOW),
        (100, 8, SLOW),
        (100, 8, DIVIDED),
    ],
)
def test_plans_are_predicted_to_be_as_fast_as_they_are_simulated(
    groups: int, sync_period: int, rates: dict[str, int]
) -> None:
    plan = with_steady_state(compiled(groups, sync_period, **rates))
    assert plan.predicted_eps == pytest.approx(simulate(plan, steps=12 if groups > 1 else 60).eps, rel=0.2)


def test_one_replica_that_waits_for_others_reaches_less_than_the_busiest_device_would_allow() -> None:
    alone = compiled(1, net_replicas=1)
    assert with_steady_state(alone).predicted_eps < 0.8 * alone.predicted_eps


def test_no_device_is_more_than_full_at_what_is_predicted_and_the_plan_passes_its_check() -> None:
    for groups, period in ((1, 8), (100, 1)):
        plan = check_plan(with_steady_state(compiled(groups, period)))
        shares = [share for load in plan.loads.values() for share in (load.cpu, load.network, load.lock)]
        assert 0 < max(shares) <= 1.01


def test_rounds_of_the_sync_wait_where_a_dense_ps_has_no_time_for_more() -> None:
    plan = compiled(100, 1)
    demands = demands_of(plan.nets, plan.cluster, plan.options)
    often = 1 / seconds_of(demands, plan.cluster, plan.options, 1)
    assert rounds_at(demands, plan.cluster, plan.options, often / 2).steps == 1
    assert rounds_at(demands, plan.cluster, plan.options, 1e3 * often).steps > 1


def test_a_sparse_ps_whose_lock_is_full_is_told_of_with_what_would_do() -> None:
    full = with_steady_state(compiled(100, 8, message_nanoseconds=100_000))
    assert full.loads["sparse_ps:0"].lock > 0.9
    assert any("--sparse-ps-processes 4 gives its steps 4 locks" in note for note in full.notes)
    divided = with_steady_state(compiled(100, 8, message_nanoseconds=100_000, sparse_ps_processes=4))
    assert divided.predicted_eps > 1.5 * full.predicted_eps
    few = with_steady_state(compiled(100, 8, message_nanoseconds=100_000, sparse_ps_cores=4))
    assert not any("sparse-ps-processes" in note for note in few.notes)


def test_a_plan_with_a_look_ahead_cache_keeps_what_its_busiest_device_allows() -> None:
    plan = compiled(2)
    cached = replace(plan, options=with_flags(plan.options, cache="lookahead"))
    assert with_steady_state(cached) is cached


def test_rounds_that_come_more_rarely_than_was_asked_for_are_told_of_with_who_holds_them_up() -> None:
    assert not with_steady_state(compiled(2)).notes
    slow = with_steady_state(compiled(2, dense_ps_bandwidth=125))  # a kbit/s
    (note,) = slow.notes
    assert re.fullmatch(
        r"rounds of the background sync come every [\d,]{5,} steps of a group, not every 8: the network of dense_ps:0 allows no more .*",
        note,
    )
    assert slow.predicted_eps > 0.9 * with_steady_state(compiled(2)).predicted_eps

"""The simulation against arithmetic: what one context takes, what links and cores allow, and what queues must obey."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import simpy

import htrain
from htrain.costs.predict import demands_of, seconds_of
from htrain.errors import PlanError
from htrain.plan.plan import Plan
from htrain.simulation.counts import with_counts
from htrain.simulation.machine import Host
from htrain.simulation.result import simulated_text
from htrain.simulation.run import simulate
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

DLRM = str(Path(__file__).parents[2] / "models" / "dlrm.py")


STOCK = Options(batch_size=512)


@cache
def compiled(cluster: Cluster, options: Options = STOCK) -> Plan:
    return htrain.compile(DLRM, cluster=cluster, options=options, fc_splits={}, solver="rules")


def lone(**changes: object) -> Cluster:
    return Cluster(**{"trainers": 1, "group_ps": 1, "sparse_ps": 1, **changes})


def test_one_context_takes_its_stages_and_messages_one_after_the_other() -> None:
    plan = compiled(lone(), Options(batch_size=512, net_replicas=1, prefetch=False))
    load = plan.loads.values()
    cpu = sum(device.cpu_seconds_per_example for device in load)
    wire = sum(device.sent_per_example for device in load) / plan.cluster.trainer_bandwidth
    found = simulate(plan, steps=12, jitter=0.0)
    assert found.max_staleness == 0
    assert 1 / (cpu + wire) * 0.8 <= found.eps <= 1 / max(device.cpu_seconds_per_example for device in load)


@pytest.mark.parametrize("replicas", [1, 4, 16])
def test_no_simulation_beats_what_its_cores_and_links_allow(replicas: int) -> None:
    plan = compiled(Cluster(trainers=3, group_ps=3, sparse_ps=2), Options(batch_size=256, net_replicas=replicas))
    found = simulate(plan, steps=12, workers=18, python_lock=False)
    demands = demands_of(plan.nets, plan.cluster, plan.options)
    assert (
        found.eps
        * seconds_of(
            demands, replace(plan.cluster, python_lock=False), plan.options, plan.options.dense_sync.round_steps
        )
        <= 1.05
    )
    assert all(max(use.cpu, use.received, use.sent) <= 1.01 for use in found.devices)


def test_with_enough_contexts_a_slow_link_is_used_in_full_and_sets_the_speed() -> None:
    slow = lone(trainer_bandwidth=10_000_000, group_ps_bandwidth=10**9)
    plan = compiled(slow, Options(batch_size=256, net_replicas=8))
    found = simulate(plan, steps=12, python_lock=False, workers=8)
    device, what, share = found.bottleneck
    assert (device, what.startswith("network")) == ("trainer", True)
    assert share > 0.95
    assert found.eps == pytest.approx(plan.predicted_eps, rel=0.1)


def test_shared_cores_set_the_speed_of_roles_on_one_host() -> None:
    plan = compiled(Cluster(trainers=2, group_ps=2, sparse_ps=1, host_cores=2), Options(batch_size=256, net_replicas=4))
    found = simulate(plan, steps=20)
    assert found.eps == pytest.approx(plan.predicted_eps, rel=0.15)
    assert found.eps <= 1.05 * plan.predicted_eps


def test_staleness_stays_within_the_bound_and_grows_with_the_replicas() -> None:
    few, many = (
        simulate(compiled(Cluster(trainers=2, group_ps=2), Options(batch_size=128, net_replicas=r)), steps=20)
        for r in (1, 6)
    )
    assert few.max_staleness <= 2 * 1
    assert many.max_staleness <= 2 * 6
    assert many.mean_staleness > few.mean_staleness


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    plan = compiled(Cluster(trainers=2, group_ps=2))
    assert simulate(plan, steps=8, seed=3) == simulate(plan, steps=8, seed=3)
    assert simulate(plan, steps=8, seed=3) != simulate(plan, steps=8, seed=4)


def test_groups_run_beside_each_other_until_what_they_share_is_used_up() -> None:
    plan = compiled(Cluster(groups=2, trainers=2, group_ps=2, sparse_ps=4), Options(batch_size=512, net_replicas=18))
    eps = [simulate(with_counts(plan, groups=g), steps=8, workers=18, python_lock=False).eps for g in (2, 4, 64)]
    assert eps[1] == pytest.approx(2 * eps[0], rel=0.15)
    assert eps[2] < 20 * eps[1]


def test_counts_that_the_nets_do_not_serve_are_refused() -> None:
    with pytest.raises(
        PlanError, match=r"the trainer of this plan holds weights .* compile with --trainers 2 --group-ps 1"
    ):
        with_counts(compiled(Cluster(trainers=1, group_ps=0)), trainers=2)
    with pytest.raises(PlanError, match="this plan is for one group and has no sync nets"):
        with_counts(compiled(lone()), groups=3)


@pytest.mark.parametrize("flags", [
    {"cache": "het", "cache_staleness": 4}, {"cache": "lookahead"}, {"dense_sync": "allreduce", "cache": "het", "cache_staleness": 0},
    {"dense_sync": "allreduce", "sparse_sync": "allgather"},
])  # fmt: skip
@pytest.mark.parametrize("replicas", [2, 5])
def test_net_replicas_that_no_run_has_are_refused(flags: dict[str, Any], replicas: int) -> None:
    """A trainer behind a cache, or in lockstep, has one, whatever it is compiled for."""
    cluster, options = Cluster(groups=2 if "dense_sync" in flags else 1, group_ps=0), with_flags(**flags)
    plan = compiled(cluster, options)
    assert plan.options.net_replicas == 1
    with pytest.raises(
        PlanError, match=rf"^--net-replicas {replicas}: a trainer .* has one net replica: leave it out$"
    ):
        with_counts(plan, net_replicas=replicas)
    assert with_counts(plan, net_replicas=1, groups=cluster.groups) == plan


def test_a_larger_batch_is_simulated_without_compiling_again() -> None:
    plan = compiled(lone(), Options(batch_size=128, net_replicas=1, prefetch=False))
    larger = with_counts(plan, batch_size=2048)
    assert larger.nets is plan.nets
    assert simulate(larger, steps=8).eps > 1.1 * simulate(plan, steps=8).eps


def test_text_names_the_bottleneck_and_has_a_line_per_device() -> None:
    found = simulate(compiled(Cluster(trainers=2, group_ps=2)), steps=8)
    text = simulated_text(found)
    assert f"simulated {found.eps:,.0f} EPS" in text
    assert [line.split()[0] for line in text.splitlines()[2:-1]] == [use.device for use in found.devices]


def test_groups_on_one_host_share_its_cores_however_few_of_them_are_simulated() -> None:
    plan = compiled(Cluster(groups=2, host_cores=2), Options(batch_size=256, net_replicas=8))
    few, many = (simulate(with_counts(plan, groups=g), steps=12, workers=8, python_lock=False) for g in (2, 32))
    assert many.eps == pytest.approx(few.eps, rel=0.2)


def run_two(load: float) -> tuple[list[float], float]:
    """When two jobs of a second each end on one core that others use `load` - 1 times as much."""
    env = simpy.Environment()
    host, ends = Host(env, simpy.Resource(env, 1), 100.0, load=load, core_load=load), []

    def job():
        yield from host.compute(0.25, 0.75)
        ends.append(env.now)

    env.process(job())
    env.process(job())
    env.run()
    return ends, host.locked_seconds


def test_a_core_serves_one_job_at_a_time_and_others_in_between() -> None:
    assert run_two(1.0) == ([1.0, 2.0], 0.5)
    assert run_two(3.0) == ([1.0, 4.0], 1.5)


def test_a_plan_whose_steps_cannot_end_is_refused_with_who_waits_for_whom() -> None:
    plan = compiled(lone())
    silent = plan.nets["sparse_ps_0"]
    silent = silent.with_ops(op for op in silent.ops if op.type != "Send")
    with pytest.raises(PlanError, match=r"no step of the plan can end: trainer:0:0 waits for .*sparse_ps:0"):
        simulate(replace(plan, nets={**plan.nets, "sparse_ps_0": silent}), steps=4)


def test_each_process_of_a_sparse_ps_has_a_lock_of_its_own_and_all_its_cores_and_links_together() -> None:
    """Enough trainers keep the lock of one process full; four share what it did."""
    many = Cluster(groups=16, trainers=3, group_ps=3, sparse_ps=1, message_nanoseconds=400_000)
    plan = compiled(many, Options(batch_size=64))
    eps, locks, cores = {}, {}, {}
    for processes in (1, 2, 4):
        divided = replace(plan, cluster=replace(many, sparse_ps_processes=processes))
        found = simulate(divided, steps=12)
        use = next(use for use in found.devices if use.device == "sparse_ps:0")
        eps[processes], locks[processes], cores[processes] = found.eps, use.lock, use.cpu
        assert use.cpu <= 1.01
        assert use.received <= 1.01
    assert locks[1] > 0.95
    assert eps[2] == pytest.approx(2 * eps[1], rel=0.1)
    assert eps[4] > 1.2 * eps[2]
    assert cores[2] == pytest.approx(2 * cores[1], rel=0.1)

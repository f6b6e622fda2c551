"""`htrain size` against brute force: the whole of a small space compiled and simulated."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.errors import PlacementError, UsageError
from htrain.frontend.captured import Captured
from htrain.ops.cache_rates import Rates
from htrain.plan.plan import Plan
from htrain.simulation.result import Simulated
from htrain.simulation.run import simulate
from htrain.sizing import bounds as sizing_bounds
from htrain.sizing import search as sizing
from htrain.sizing.search import Candidate, hosts_of, size
from htrain.spec.cluster import Cluster
from htrain.spec.dense_sync import AllReduce
from htrain.spec.footprint import ROLE_BYTES
from htrain.spec.options import Options
from htrain.spec.sparse_sync import AllGather

STEPS, WORKERS = 8, 4
MOST = (2, 3, 2, 2)  # groups, trainers, group PSs, sparse PSs
FAST = Options(batch_size=64, net_replicas=2)
LATE = Options(batch_size=1024, net_replicas=1, prefetch=False)
Counts = tuple[int, ...]


@cache
def compiled(cluster: Cluster, options: Options) -> Plan:
    return compile_net(Captured(small_dlrm(), {}), cluster, options, name="small_dlrm", solver="rules")


ONCE: dict[tuple[str, Cluster, Options], Simulated] = {}


def simulated_once(plan: Plan, *, steps: int, workers: int) -> Simulated:
    """What `simulate` finds, which is the same each time."""
    key = (plan.digest, plan.cluster, plan.options)
    if key not in ONCE:
        ONCE[key] = simulate(plan, steps=steps, workers=workers)
    return ONCE[key]


@cache
def simulated(cluster: Cluster, options: Options) -> Simulated:
    return simulated_once(compiled(cluster, options), steps=STEPS, workers=WORKERS)


def counts_of(cluster: Cluster) -> Counts:
    return hosts_of(cluster), cluster.groups, cluster.trainers, cluster.group_ps, cluster.sparse_ps


@cache
def whole_space(hosts: Cluster, options: Options) -> list[tuple[Counts, float]]:
    """Every cluster that can be compiled with its EPS, in the order of what `size` prefers."""
    found = []
    for groups, trainers, group_ps, sparse_ps in product(*(range(1, n + 1) for n in MOST)):
        cluster = replace(hosts, groups=groups, trainers=trainers, group_ps=group_ps, sparse_ps=sparse_ps)
        try:
            found.append((counts_of(cluster), simulated(cluster, options).eps))
        except PlacementError:
            continue
    return sorted(found)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Candidate]:
    """`size` in the small space; what was simulated once is not simulated again."""

    for module in (sizing, sizing_bounds):
        monkeypatch.setattr(module, "simulate_at", lambda plan, rates, **given: simulated_once(plan, **given))
    groups, trainers, group_ps, sparse_ps = MOST
    limits = {"most_groups": groups, "most_trainers": trainers, "most_group_ps": group_ps, "steps": STEPS}

    def run(eps: float, *, hosts: Cluster, options: Options, **changes: object) -> Candidate:
        asked = {**limits, "more_sparse_ps": sparse_ps - 1, "workers": WORKERS, **changes}
        return size(compiled, hosts, options, eps=eps, **asked)  # type: ignore[arg-type]

    return run


@pytest.mark.parametrize("options", [FAST, LATE], ids=["python's lock", "latency"])
def test_every_target_gets_the_cluster_that_brute_force_finds(
    search: Callable[..., Candidate], options: Options
) -> None:
    space = whole_space(Cluster(), options)
    targets = sorted(eps * factor for _, eps in space for factor in (0.999, 1.001))
    for target in targets:
        wanted = next((counts for counts, eps in space if eps >= target), None)
        if wanted is None:
            with pytest.raises(PlacementError, match=r"EPS: .*--most-groups"):
                search(target, hosts=Cluster(), options=options)
        else:
            found = search(target, hosts=Cluster(), options=options)
            assert (counts_of(found.plan.cluster), found.found.eps >= target) == (wanted, True), f"{target:,.0f} EPS"


def test_few_clusters_are_simulated(search: Callable[..., Candidate]) -> None:
    space = whole_space(Cluster(), FAST)
    tried: list[Candidate] = []
    search(0.9 * max(eps for _, eps in space), hosts=Cluster(), options=FAST, on_try=tried.append)
    assert 0 < len(tried) < len(space) / 3


def test_groups_may_have_other_numbers_of_trainers_than_of_group_ps(search: Callable[..., Candidate]) -> None:
    one = simulated(Cluster(), FAST).eps
    cluster = search(1.2 * one, hosts=Cluster(), options=FAST).plan.cluster
    assert (cluster.groups, cluster.trainers, cluster.group_ps) == (1, 2, 1)


def test_tables_that_one_sparse_ps_cannot_hold_get_more(search: Callable[..., Candidate]) -> None:
    small = Cluster(sparse_ps_memory=ROLE_BYTES + 9_000)
    with pytest.raises(PlacementError, match="the tables need"):
        compiled(small, FAST)
    cluster = search(1_000.0, hosts=small, options=FAST).plan.cluster
    assert (cluster.groups, cluster.trainers, cluster.group_ps) == (1, 1, 1)
    assert cluster.sparse_ps > 1
    with pytest.raises(PlacementError):
        compiled(replace(cluster, sparse_ps=cluster.sparse_ps - 1), FAST)


def test_hosts_that_hold_no_module_are_refused_with_what_the_compiler_says(search: Callable[..., Candidate]) -> None:
    with pytest.raises(
        PlacementError, match=r"^'trainer' needs 320.0 MiB of memory .*, trainer_memory is 100 B: raise trainer_memory$"
    ):
        size(
            lambda cluster, options: compile_net(Captured(small_dlrm(), {}), cluster, options, name="x"),
            Cluster(trainer_memory=100, group_ps_memory=100),
            FAST,
            eps=1_000.0,
            most_trainers=1,
            most_group_ps=1,
        )


def test_trainers_that_hold_all_tables_are_sized_without_sparse_ps(search: Callable[..., Candidate]) -> None:
    """AllGather asks nobody for rows: no host is counted for who would serve them, and no cluster is tried twice."""
    options, hosts = Options(batch_size=64, dense_sync=AllReduce(), sparse_sync=AllGather()), Cluster(group_ps=0)
    eps = {n: simulated(replace(hosts, groups=n, sparse_ps=0, dense_ps=0), options).eps for n in (1, 2, 3)}
    for target in (share * each for share in (0.9, 0.999) for each in eps.values()):
        tried: list[Candidate] = []
        found = search(target, hosts=hosts, options=options, most_groups=3, on_try=tried.append)
        assert (found.hosts, found.plan.cluster.sparse_ps) == (found.plan.cluster.groups, 0)
        assert found.hosts == min(n for n, each in eps.items() if each >= target)
        assert len({each.plan.cluster for each in tried}) == len(tried)
    with pytest.raises(PlacementError, match="raise --most-groups"):
        search(10 * max(eps.values()), hosts=hosts, options=options, most_groups=3)


def test_a_cluster_without_group_ps_is_sized_in_groups_of_one_trainer(search: Callable[..., Candidate]) -> None:
    easgd = Cluster(group_ps=0)
    one = simulated(easgd, FAST).eps
    found = search(1.5 * one, hosts=easgd, options=FAST).plan.cluster
    assert (found.trainers, found.group_ps) == (1, 0)
    assert found.groups >= 2


def test_devices_that_something_is_pinned_to_are_there(search: Callable[..., Candidate]) -> None:
    hosts = Cluster(pin=(("top", "group_ps:1"), ("user.weight", "sparse_ps:1")))
    cluster = search(1_000.0, hosts=hosts, options=FAST).plan.cluster
    assert (cluster.groups, cluster.trainers, cluster.group_ps, cluster.sparse_ps) == (1, 1, 2, 2)


def test_a_target_beyond_all_sparse_ps_is_refused_at_once(search: Callable[..., Candidate]) -> None:
    tried: list[Candidate] = []
    with pytest.raises(PlacementError, match=r"1,000,000,000 EPS: 2 sparse PSs reach at most [\d,]+, whatever --most"):
        search(1e9, hosts=Cluster(), options=FAST, on_try=tried.append)
    assert not tried


@pytest.mark.parametrize("eps", [float("nan"), float("inf"), 0.0, -1.0, 1e300])
def test_a_target_that_is_none_is_refused(eps: float) -> None:
    with pytest.raises(UsageError, match=r"is not a target: want 1 to 1e\+12"):
        size(compiled, Cluster(), FAST, eps=eps)


def test_every_simulation_is_at_the_rates_of_its_own_plan(
    search: Callable[..., Candidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Plan] = []

    def rates_of(plan: Plan) -> Rates:
        asked.append(plan)
        return Rates(source=str(len(asked)))

    def simulated_at(plan: Plan, rates: Rates, **given: int) -> Simulated:
        assert asked[-1] is plan
        assert rates.source == str(len(asked))
        return simulated_once(plan, **given)

    for module in (sizing, sizing_bounds):
        monkeypatch.setattr(module, "simulate_at", simulated_at)
    search(1.0, hosts=Cluster(), options=FAST, rates_of=rates_of)
    assert len(asked) >= 3  # two bounds, and a candidate

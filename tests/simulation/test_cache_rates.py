"""Rates of whole plans: against what real runs report, what costs make of them, and what is refused."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cached_plans import ROWS, Given, cached_plan, changed
from click.testing import CliRunner
from harness import run_roles
from small_wide_deep import BATCH, DATA, small_plan

import htrain
from htrain.cli.app import commands
from htrain.costs.predict import demands_of
from htrain.errors import DataError, PlanError, UsageError
from htrain.executor.settings import RunSettings
from htrain.net.net import Op
from htrain.ops.cache_rates import CacheRates, Rates, ShardRates
from htrain.plan.plan import Plan
from htrain.simulation.cache_rates import RatesOf, rates_of, rates_text
from htrain.simulation.id_sources import Trace, Zipf
from htrain.simulation.strategies.strategy import plays_of
from htrain.spec.tree import with_flags

FRAPPE = Path(__file__).parents[2].parent / "shared" / "data" / "frappe.libfm.gz"
MODEL = Path(__file__).parents[2] / "models" / "wide_deep.py"
COUNTS = ("hits", "misses", "loaded", "evicted", "run_out", "stale")


def totals_of(plan: Plan, folder: Path) -> dict[str, int]:
    """What the caches of all trainers have counted at the end of a run."""
    roles = run_roles(plan, folder, RunSettings(folder, DATA, folder / "run", deadline_seconds=20))
    reports = [role.metrics()["caches"] for name, role in roles.items() if name.startswith("trainer")]
    return {name: sum(report[name] for report in reports) for name in COUNTS}


def counted(plan: Plan) -> dict[str, float]:
    """The same, over all batches of the data."""
    trainers = plan.cluster.groups
    rounds = list(plays_of(plan)(plan, Trace(DATA), 1000).rounds())
    each = [(r.batches * trainers, cache) for r in rounds for cache in r.rates.values()]
    names = ("hits", "loaded", "evicted", "run_out", "stale")
    found = {name: sum(n * getattr(cache, name) for n, cache in each) for name in names}
    return found | {"misses": sum(n * (cache.asked - cache.hits) for n, cache in each)}


HET: dict[str, Any] = {"cache": "het", "dense_sync": "allreduce", "batch_size": BATCH, "cache_window": 4}


@pytest.mark.parametrize(
    "flags",
    [
        {"cache_capacity": "10%", "cache_staleness": 3, "cache_policy": "light-lfu"},
        {"cache_capacity": "60%", "cache_staleness": 100, "cache_policy": "lru"},
        {"cache_capacity": "30%", "cache_staleness": 0, "cache_policy": "lfu"},
        {"cache_capacity": "30%", "cache_staleness": 3, "cache_policy": "lfu", "prefetch": False},
    ],
    ids=str,
)
def test_counts_of_one_trainer_are_those_of_its_run(flags: dict[str, Any], tmp_path: Path) -> None:
    _, plan = small_plan(with_flags(**HET, **flags))
    run, mine = totals_of(plan, tmp_path / "plan"), counted(plan)
    wanted = {name: run[name] for name in ("hits", "misses", "run_out", "stale")}
    assert {name: round(mine[name]) for name in wanted} == wanted
    assert mine["evicted"] == pytest.approx(
        run["evicted"], abs=26 * 2 * BATCH
    )  # the last batch's, when it has been written
    assert run["misses"] > 0


def test_counts_of_two_trainers_are_those_of_their_run(tmp_path: Path) -> None:
    """They do not take turns as strictly in a run."""
    _, plan = small_plan(with_flags(**HET, cache_capacity="100%", cache_staleness=1), groups=2)
    run, mine = totals_of(plan, tmp_path / "plan"), counted(plan)
    assert mine["stale"] > 0
    for name in ("hits", "misses", "run_out", "stale"):
        assert mine[name] == pytest.approx(run[name], rel=0.1, abs=0.01 * run["hits"]), name


@pytest.mark.parametrize(("workers", "window"), [(1, 1), (1, 5), (2, 5)])
def test_counts_of_look_ahead_caches_are_those_of_their_run(workers: int, window: int, tmp_path: Path) -> None:
    flags = {"cache": "lookahead", "dense_sync": "allreduce", "cache_sets": 3, "cache_ways": 4, "cache_window": window}
    _, plan = small_plan(with_flags(batch_size=BATCH, **flags), groups=workers)
    run, mine = totals_of(plan, tmp_path / "plan"), counted(plan)
    assert run["misses"] > 0  # conflict victims
    for name in ("hits", "misses"):
        assert mine[name] == pytest.approx(run[name], rel=0.005)
    for name in ("loaded", "evicted"):
        assert mine[name] == pytest.approx(run[name], rel=0.005)


@pytest.mark.skipif(not FRAPPE.is_file(), reason="the Frappe data is not beside the repository")
def test_real_ids_are_hit_more_often_than_ids_that_are_all_alike() -> None:
    data = f"libfm:{FRAPPE}?rows=5382"
    options = with_flags(dense_sync="allreduce", cache="het", batch_size=128)
    cluster = htrain.Cluster(groups=1, trainers=1, group_ps=0, sparse_ps=1)
    plan = htrain.compile(MODEL, data=data, cluster=cluster, options=options, fc_splits={}, self_check=False)
    real, alike = (rates_of(plan, source, most_batches=300) for source in (Trace(data), Zipf(0)))
    for name, cache in real.caches.items():
        assert 0.45 < cache.hit_rate < 0.55
        assert alike.caches[name].hit_rate < 0.3
        assert cache.asked < alike.caches[name].asked / 3


def test_ids_of_a_law_are_hit_as_those_of_data_that_follow_it() -> None:
    """Of the data all tables are read once an example, and of the law, too."""
    _, plan = small_plan(with_flags(**HET, cache_capacity="40%"))
    data = "synthetic:?rows=20000&table_rows=40&zipf=1.3&locality=0"
    trace, law = rates_of(plan, Trace(data)), rates_of(plan, Zipf(1.3))
    for name, cache in trace.caches.items():
        assert cache.hit_rate == pytest.approx(law.caches[name].hit_rate, abs=0.01)
        assert cache.fetched == pytest.approx(law.caches[name].fetched, rel=0.05)
        assert cache.asked == pytest.approx(law.caches[name].asked, rel=0.02)


def test_costs_follow_the_rates() -> None:
    """Twice the rows fetched: about twice the bytes of rows that are asked for."""
    plan = cached_plan("het")
    (ask,) = (op for op in plan.nets["train"].ops if op.type == "HetAsk")
    few, many = (_rates(ask, fetched) for fetched in (4.0, 8.0))
    sent = [
        demands_of(plan.nets, plan.cluster, plan.options, rates).step["sparse_ps:0"].sent * plan.options.batch_size
        for rates in (few, many)
    ]
    row = 4 * (4 + 4) + 4  # a row, its optimizer's state, and a clock
    assert sent[1] - sent[0] == pytest.approx(4 * row)


def _rates(ask: Op, fetched: float) -> Rates:
    shard = ShardRates(fetched=fetched, pushed=1.0, checked=2.0)
    return Rates(
        {ask.inputs[0]: CacheRates({ask.inputs[1]: 10.0}, 2.0, cold=1.0, loaded=fetched, evicted=1.0, shards=(shard,))}
    )


def test_a_cache_that_no_rates_are_known_of_asks_as_its_cluster_says() -> None:
    plan = cached_plan("het")
    known = Rates({"another": next(iter(_rates(_ask_of(plan), 4.0).caches.values()))})
    assert known.shards("cache_4", ()) == ()
    assert known.ids("no such blob", 3.0) == 3.0


def _ask_of(plan: Plan) -> Op:
    return next(op for op in plan.nets["train"].ops if op.type == "HetAsk")


def test_batches_before_the_cache_is_full_do_not_count() -> None:
    """Of 16 rows that come again and again, 4 have no room; at first none is there."""
    plan = changed(cached_plan("het", cache_window=1), "HetAsk", capacity=16, policy="lfu")
    rates = rates_of(plan, Given([[[key % 16] for key in range(400)]]))
    (cache,) = rates.caches.values()
    assert (rates.warm, cache.cold, cache.hit_rate) == (True, 0, 1)
    assert 10 <= rates.batches - rates.counted <= 20


def test_what_is_exchanged_may_be_steady_before_the_cache_is_full() -> None:
    """25 batches of 4 new rows fill the cache; of 2 new rows as many come, and as many go."""
    plan = changed(cached_plan("het", cache_window=1), "HetAsk", capacity=100, policy="lru", bounds=(0, 10_000))
    sizes = [4] * 25 + [2] * 175
    ids = [list(range(sum(sizes[:n]), sum(sizes[: n + 1]))) for n in range(len(sizes))]
    rates = rates_of(plan, Given([ids]))
    (cache,) = rates.caches.values()
    assert 165 <= rates.counted <= 175
    assert (cache.fetched, cache.pushed) == pytest.approx((2, 2), rel=0.05)


def test_what_changes_to_the_end_is_told() -> None:
    """Batches of more and more rows, none of which stays for the next."""
    half = ROWS // 2
    ids = [[row + half * (number % 2) for row in range(number // 4 + 1)] for number in range(4 * half)]
    rates = rates_of(changed(cached_plan("het", cache_window=1), "HetAsk", capacity=1, policy="lru"), Given([ids]))
    assert not rates.warm
    last = rates_text(rates).splitlines()[-1]
    assert last.startswith("rows per batch of a trainer, of the test: the last ")
    assert last.endswith(" of 48 batches count; what they fetch was still changing then: give more batches")


def test_rates_are_told_as_a_table() -> None:
    rates = Rates(
        {
            "cache_4": CacheRates(
                {"a": 8.0, "b": 2.0}, 4.0, 1.0, 6.0, 5.5, (ShardRates(3.0, 2.5), ShardRates(3.0, 3.0, 4.0, 0.5))
            )
        },
        "x",
        9,
        8,
    )
    assert rates_text(rates).splitlines() == [
        "cache        rows  hit rate   fetched      cold     stale   evicted    pushed   checked",
        "cache_4      10.0    40.00%       6.5       1.0       0.5       5.5       5.5       4.0",
        "rows per batch of a trainer, of x: the last 8 of 9 batches count",
    ]


def test_rates_of_like_plans_are_found_once() -> None:
    seen: list[int] = []

    class Counting(Given):
        def batches(self, plan: Plan, tables: Any, trainer: int) -> Any:
            seen.append(trainer)
            return super().batches(plan, tables, trainer)

    find, plan = RatesOf(Counting([[[1]] * 30] * 2)), cached_plan("het")
    assert find(plan) is find(replace(plan, predicted_eps=1.0))
    assert seen == [0]
    find(cached_plan("het", 2))
    assert seen == [0, 0, 1]


def test_data_without_a_batch_for_each_trainer_is_refused() -> None:
    with pytest.raises(DataError, match=r"^the test: has no window of batches for each of the plan's trainers"):
        rates_of(cached_plan("het", 2), Given([[[1]], []]))


# -- what a user may say ---------------------------------------------------------------------------------------------


@functools.cache
def without_cache() -> Plan:
    return cached_plan("none")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"trace": "criteo:t.tsv"}, "--trace criteo:t.tsv has no effect: it says what rows a cache asks for, and the plan has none (--cache het or lookahead)"),
        ({"zipf": 1.05}, "--zipf 1.05 has no effect: it says what rows a cache asks for, and the plan has none (--cache het or lookahead)"),
        ({"zipf": 1.05, "trace": "criteo:t.tsv"}, "--zipf 1.05 has no effect beside --trace, which says what ids there are: leave one of them out"),
        ({"trace_batches": 20}, "--trace-batches 20 has no effect: there are no batches to look at (--trace or --zipf)"),
    ],
    ids=str,
)  # fmt: skip
def test_what_has_no_effect_is_refused_by_name(said: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refusal:
        htrain.simulate(without_cache(), **said)
    assert str(refusal.value) == told
    with pytest.raises(UsageError) as refusal:
        htrain.size("m.py", eps=10.0, **said)
    assert str(refusal.value) == told
    without_cache().save(tmp_path / "plan")
    words = [word for name, value in said.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    found = CliRunner().invoke(commands, ["simulate", str(tmp_path / "plan"), *words])
    assert str(found.exception) == told


def test_rates_are_told_before_the_simulation() -> None:
    told: list[Rates] = []
    found = htrain.simulate(cached_plan("het"), zipf=1.1, trace_batches=40, on_rates=told.append, steps=8)
    (rates,) = told
    assert (rates.source, rates.batches) == ("a Zipf law of 1.1", 40)
    assert found.eps > 0


def test_the_fewer_rows_a_cache_finds_the_longer_a_step_takes_on_a_slow_link() -> None:
    """Ids that few rows take nearly all of are found in the cache; ids without any skew are not."""
    plan = replace(cached_plan("het"), cluster=replace(cached_plan("het").cluster, sparse_ps_bandwidth=1_000_000))
    skewed, even = (htrain.simulate(plan, zipf=exponent, trace_batches=60, steps=8).eps for exponent in (2.5, 0.1))
    assert skewed > 1.2 * even


def test_the_command_tells_rates_as_a_table(tmp_path: Path) -> None:
    cached_plan("het").save(tmp_path / "plan")
    words = ["simulate", str(tmp_path / "plan"), "--zipf", "1.1", "--trace-batches", "40"]
    found = CliRunner().invoke(commands, words)
    head, cache, last = found.stderr.splitlines()
    assert head.split() == ["cache", "rows", "hit", "rate", "fetched", "cold", "stale", "evicted", "pushed", "checked"]
    assert cache.startswith("cache_4   ")
    assert last.startswith("rows per batch of a trainer, of a Zipf law of 1.1: the last ")


def test_a_cache_of_a_users_own_is_refused_by_name() -> None:
    from htrain.spec import halves  # noqa: PLC0415

    plan = cached_plan("het")
    kind = type(plan.options.cache)
    halves.HALVES[kind] = halves.Halves(None, None)
    try:
        with pytest.raises(
            PlanError, match=r"^what a cache of the kind het asks for is not known here: say --cache-hit-percent"
        ):
            rates_of(plan, Zipf(1.0))
    finally:
        del halves.HALVES[kind]

"""Look-ahead caches, simulated: by the machines of a run, with prefetchers and writers on their trainers' hosts (cDLRM 4 to 6)."""

from dataclasses import replace
from typing import Any

import pytest
from cached_plans import cached_plan
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain
from htrain.errors import PlanError
from htrain.executor.strategies.strategy import RunsCache
from htrain.ops.cache_rates import NO_RATES, Rates
from htrain.plan.plan import Plan
from htrain.simulation.cache_rates import rates_of
from htrain.simulation.id_sources import Zipf
from htrain.simulation.predicted import with_steady_state
from htrain.simulation.result import Simulated, WindowUse, simulated_text
from htrain.simulation.run import simulate
from htrain.simulation.strategies.lookahead.costs import Moved, WindowCosts, shares_of, tables_of
from htrain.spec.cache import Cache
from htrain.spec.halves import HALVES, Halves

FAST, SLOW = 10**9, 100_000  # bytes a second


def linked(plan: Plan, rate: int, **changes: Any) -> Plan:
    """The plan on links of a rate."""
    links = {f"{role}_bandwidth": rate for role in ("trainer", "sparse_ps")}
    return replace(plan, cluster=replace(plan.cluster, **links, **changes))


def windows_of(found: Simulated) -> WindowUse:
    assert found.windows
    return found.windows


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    trainers=st.integers(1, 3),
    shards=st.integers(0, 2),
    sets=st.sampled_from([1, 2, 3, 30]),
    ways=st.integers(1, 3),
    window=st.sampled_from([1, 2, 20]),
    average=st.integers(1, 3) | st.sampled_from(["0.1%", "40%", "900%"]),
    rate=st.sampled_from([SLOW, FAST]),
    skewed=st.booleans(),
)
def test_whatever_caches_there_are_the_simulation_comes_to_an_end(
    trainers: int, shards: int, sets: int, ways: int, window: int, average: int | str, rate: int, skewed: bool
) -> None:
    flags = {"cache_average": average} if trainers > 1 else {}
    least = max(shards, int(trainers > 1))
    plan = cached_plan("lookahead", trainers, least, cache_sets=sets, cache_ways=ways, cache_window=window, **flags)
    rates = rates_of(plan, Zipf(1.1, 0), most_batches=60) if skewed else NO_RATES
    found = simulate(linked(plan, rate), steps=12, rates=rates)
    use = windows_of(found)
    assert found.steps >= 9 * trainers
    assert found.eps > 0
    assert 1 <= use.batches <= window
    assert use.stalled + use.placing <= 1.001
    assert all(max(each.cpu, each.received, each.sent) <= 1.01 for each in found.devices)


def plan_that_asks(window: int = 4) -> Plan:
    """A cache of one way, which loses most of its rows from window to window."""
    return cached_plan("lookahead", 1, 1, cache_sets=3, cache_ways=1, cache_window=window)


def test_windows_that_cannot_be_read_in_time_make_training_wait() -> None:
    fast, slow = (simulate(linked(plan_that_asks(), rate), steps=40) for rate in (FAST, SLOW))
    assert windows_of(fast).stalled < 0.3
    assert windows_of(slow).stalled > 0.5
    assert windows_of(slow).prefetching > windows_of(fast).prefetching
    assert slow.eps < fast.eps / 2


def test_the_slower_the_link_the_fewer_examples_a_second() -> None:
    """Where windows are read in time, threads that have Python's lock in another order make some of a hundred more or fewer."""
    eps = [simulate(linked(plan_that_asks(), rate), steps=40, jitter=0.0).eps for rate in (FAST, 10**6, 10**5, 10**4)]
    assert eps[1] == pytest.approx(eps[0], rel=0.1)
    assert eps[1:] == sorted(eps[1:], reverse=True)
    assert eps[0] > 10 * eps[-1]


def test_a_link_that_sets_the_speed_carries_what_windows_fetch_and_drive_out() -> None:
    """Reads do not wait for the writes of the window before: the time of the longer of both is the least that a window takes."""
    plan = linked(plan_that_asks(), SLOW)
    found = simulate(plan, steps=40, jitter=0.0)
    (table,) = tables_of(plan, NO_RATES)
    (server,) = (use for use in found.devices if use.device == "sparse_ps:0")
    read, written = (found.steps * rows * table.row_bytes for rows in (table.read, table.evicted))
    assert min(read, written) > 0
    assert read < SLOW * server.sent * found.seconds < 1.5 * read  # with keys and frames
    assert written < SLOW * server.received * found.seconds < 2.5 * written  # with the keys of what is read
    assert plan.options.batch_size / found.eps > max(table.read, table.evicted) * table.row_bytes / SLOW


def test_figures_are_of_whole_windows_and_placing_takes_what_it_costs() -> None:
    plan = replace(linked(plan_that_asks(), FAST), cluster=replace(plan_that_asks().cluster, op_nanoseconds=100_000))
    found = simulate(plan, steps=41, jitter=0.0)
    use = windows_of(found)
    assert (use.batches, found.steps % 4) == (4, 0)
    cost = WindowCosts(tables_of(plan, NO_RATES), plan.cluster, 1).place(4)
    assert use.placing * found.seconds == pytest.approx(found.steps / 4 * sum(cost), rel=0.2)


def test_a_table_that_is_held_whole_is_read_from_memory_without_a_pass_over_links() -> None:
    here = simulate(linked(cached_plan("lookahead", 1, 0), SLOW), steps=20)
    assert sum(use.received + use.sent for use in here.devices) == 0


def test_the_first_trainer_alone_reads_and_writes_the_store() -> None:
    """What the sparse PS carries for each window does not grow with trainers, if windows have the same rows."""
    rates: dict[int, float] = {}
    for trainers in (1, 3):
        plan = linked(
            cached_plan("lookahead", trainers, 1, cache_sets=3, cache_ways=1, cache_window=4), 10**6, python_lock=False
        )
        found = simulate(plan, steps=40, jitter=0.0)
        (server,) = (use for use in found.devices if use.device == "sparse_ps:0")
        rates[trainers] = server.sent * found.seconds / (found.steps / trainers)
    assert rates[3] == pytest.approx(rates[1], rel=0.1)


def test_the_more_often_rows_are_averaged_the_longer_a_step_takes() -> None:
    often, seldom = (
        simulate(linked(cached_plan("lookahead", 2, 1, cache_average=every), SLOW), steps=40, jitter=0.0).eps
        for every in (1, 10)
    )
    assert often < seldom


@pytest.mark.parametrize("rates", [None, 1.1])
def test_passes_move_all_that_a_cache_asks_for_and_nothing_else(rates: float | None) -> None:
    plan = plan_that_asks()
    known: Rates = rates_of(plan, Zipf(rates, 0), most_batches=100) if rates else NO_RATES
    read, written = ("window", "victims"), ("evicted", "updated")
    for kinds, others, part in ((read, written, "wanted"), (written, read, "values")):
        names = {name for op in plan.train.ops if op.type == "LookaheadRequest" for name in op.outputs if part in name}
        assert names
        for name in names:
            assert sum(shares_of(plan, known, Moved(kind, 5))[name] for kind in kinds) == pytest.approx(5)  # type: ignore[arg-type]
            assert all(shares_of(plan, known, Moved(kind, 5))[name] == 0 for kind in others)  # type: ignore[arg-type]


def test_what_windows_cost_grows_with_their_rows() -> None:
    plan = plan_that_asks()
    costs = WindowCosts(tables_of(plan, NO_RATES), plan.cluster, 1)
    for cost in (costs.plan, costs.read, costs.place):
        assert cost(1).free < cost(10).free < 10.001 * cost(1).free
        assert cost(1).locked == cost(10).locked > 0
    assert costs.copied(1000, 2).free == pytest.approx(2000 / plan.cluster.core_gather_bandwidth)


def test_the_text_says_how_long_training_waits() -> None:
    text = simulated_text(htrain.simulate(linked(plan_that_asks(), SLOW), steps=20)).splitlines()[-1]
    assert text.startswith("windows of 4 batches: training waits for ")
    assert text.count("%") == 3


class Threaded(RunsCache[Cache]):
    """A user's cache that makes steps itself."""

    def upcoming(self, parts: Any) -> Any:
        """Somewhere else."""


def test_a_users_cache_with_threads_of_its_own_is_refused_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cached_plan("lookahead")
    monkeypatch.setitem(HALVES, type(plan.options.cache), Halves(None, Threaded))
    with pytest.raises(
        PlanError,
        match="the plan has a cache of kind lookahead, which has threads of its own that the simulation does not know: run it",
    ):
        simulate(plan, steps=8)
    assert with_steady_state(plan) is plan  # it is compiled all the same

"""Estimates from a sample against all rows, of ids by Zipf's law; and exact ones against rates that are played by clients."""

from functools import cache

import numpy as np
import pytest
from cached_plans import ROWS, Given, cached_plan

from htrain.advising.advice import Grid, Setting
from htrain.advising.groups import Group, groups_of
from htrain.advising.playing import Played, share_of, shares_by_table
from htrain.advising.recording import Recorder, read
from htrain.data.formats.synthetic import zipf_ranks
from htrain.simulation.cache_rates import plays_of
from htrain.simulation.strategies.strategy import Keyed, sizes_of

TABLE, TOKENS = 200_000, 7
GROUP = Group((Keyed("c", {"ids": 0, "tokens": TABLE}, (0, TABLE + TOKENS), (0,)),), (0, TABLE, TABLE + TOKENS))
GRID = Grid(capacities=("2%", "5%", "20%"), policies=("light-lfu", "lru"), windows=(1, 8), staleness=(0, 10, 100))


@cache
def played(budget: int) -> Played:
    """Batches of a table by Zipf's law, and of one with a few rows that every batch asks for."""
    random = np.random.default_rng(1)
    recorder = Recorder(GROUP, 1, budget, fewest_rows=4096)
    for _ in range(300):
        ids = np.unique(zipf_ranks(random.random(2500), TABLE, 1.05))
        recorder.take({"ids": ids, "tokens": np.arange(TOKENS)})
        recorder.fit()
    plan = cached_plan("het")
    return Played(recorder.end(), sizes_of(plan), plan, GRID, epochs=1)


def test_a_sample_tells_hit_rates_within_a_point() -> None:
    sample, whole = played(150_000), played(10**9)
    assert sample.counted.rate <= 1 / 4
    for capacity in GRID.capacities:
        for policy in GRID.policies:
            for window in GRID.windows:
                setting = Setting(capacity, policy, window, 10)
                mine, real = (share_of([each.estimate(setting)]) for each in (sample, whole))
                assert mine.hit_rate == pytest.approx(real.hit_rate, abs=0.01), setting
                assert mine.invalid == pytest.approx(real.invalid, abs=0.01), setting


def test_a_sample_tells_bounds_curves_and_rows_of_all() -> None:
    sample, whole = played(150_000), played(10**9)
    mine, real = (each.curve(GROUP.caches[0]) for each in (sample, whole))
    for capacity in GRID.capacities:
        assert mine.best[capacity] == pytest.approx(real.best[capacity], abs=0.01)
    at = np.geomspace(500, 100_000, 20)
    of_sample, of_all = (np.interp(at, each.sizes, each.hits) for each in (mine, real))
    assert abs(of_sample - of_all).max() < 0.01
    assert sample.used_rows()[0] == pytest.approx(whole.used_rows()[0], rel=0.03)
    assert sample.counted.uses.sum() == pytest.approx(whole.counted.uses.sum())


def test_rows_that_every_batch_asks_for_are_hits_though_the_sample_has_none() -> None:
    _, tokens = shares_by_table(played(150_000).estimate(Setting("5%", "lru", 1, 10)))
    _, real = shares_by_table(played(10**9).estimate(Setting("5%", "lru", 1, 10)))
    assert tokens.hit_rate == pytest.approx(1, abs=0.01) == real.hit_rate
    assert tokens.invalid == pytest.approx(real.invalid, abs=0.02)


def test_curves_go_through_what_is_played_of_lru() -> None:
    each = played(10**9)
    curve = each.curve(GROUP.caches[0])
    for capacity in GRID.capacities:
        hits = share_of([each.estimate(Setting(capacity, "lru", 1, 10))]).hit_rate
        below = max(k for k, size in enumerate(curve.sizes) if size <= each.rows_of(capacity))
        assert curve.hits[below] <= hits + 1e-9
        assert hits <= curve.hits[below + 1] + 1e-9
        assert hits <= curve.best[capacity]


def test_rates_are_those_that_clients_play() -> None:
    random = np.random.default_rng(3)
    ids = [[[int(row) for row in random.permutation(ROWS)[:6]] for _ in range(40)]]
    plan = cached_plan("het", shards=2, cache_capacity="10", cache_staleness=3, cache_policy="lfu")
    grid = Grid(("10",), ("lfu",), (64,), (0, 3))
    (group,) = groups_of(plan.train, sizes_of(plan).caches(plan))
    (record,) = read(plan, [group], Given(ids), 10**6)
    found = Played(record, sizes_of(plan), plan, grid, epochs=1).estimate(Setting("10", "lfu", 64, 3))
    (cache,) = group.caches
    mine = found.rates(cache)
    rounds = [r.rates[cache.cache] for r in plays_of(plan)(plan, Given(ids), 1000).rounds()][20:]
    for name in ("hits", "cold", "loaded", "run_out"):
        assert getattr(mine, name) == pytest.approx(np.mean([getattr(rates, name) for rates in rounds])), name
    assert mine.ids == dict.fromkeys(cache.first_keys, 6.0)
    for server in (0, 1):
        for name in ("fetched", "checked", "stale"):
            wanted = np.mean([getattr(rates.shards[server], name) for rates in rounds])
            assert getattr(mine.shards[server], name) == pytest.approx(wanted), name
        pushed = np.mean([rates.shards[server].pushed for rates in rounds])
        assert mine.shards[server].pushed == pytest.approx(pushed, abs=0.5)


def test_without_staleness_everything_is_fetched_and_pushed() -> None:
    found = played(10**9).estimate(Setting("5%", "lru", 1, 0))
    rates = found.rates(GROUP.caches[0])
    assert (rates.hits, rates.hit_rate) == (0, 0)
    assert rates.fetched == rates.pushed == pytest.approx(rates.asked)

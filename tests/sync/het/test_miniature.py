"""Miniature caches against HET's clients and servers themselves, played over the same ids (HET 3)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cached_plans import ROWS, Given, cached_plan, changed
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.plan.plan import Plan
from htrain.simulation.strategies.het import PlaysHet
from htrain.sync.accesses import Exchanged, Play, Size, accesses_of
from htrain.sync.het.miniature import exchanged

Ids = list[list[list[int]]]


def drawn(random: np.random.Generator, trainers: int, batches: int) -> Ids:
    def batch() -> list[int]:
        return [int(row) for row in random.permutation(ROWS)[: random.integers(0, 9)]]

    return [[batch() for _ in range(batches)] for _ in range(trainers)]


def of(plan: Plan, trainers: int, window: int, ahead: bool) -> Plan:
    """The plan with other numbers, of which its ops know nothing."""
    cache: Any = replace(plan.options.cache, window=window)  # type: ignore[call-arg]
    options = replace(plan.options, cache=cache, prefetch=ahead)
    return replace(plan, cluster=replace(plan.cluster, groups=trainers), options=options)


def by_clients(plan: Plan, ids: Ids) -> dict[str, int]:
    rounds = list(PlaysHet(plan, Given(ids), 1000).rounds())
    names = ("hits", "evicted", "run_out", "stale")
    each = [rates for found in rounds for rates in found.rates.values()]
    return {name: round(sum(getattr(rates, name) for rates in each) * len(ids)) for name in names}


def in_miniature(ids: Ids, play: Play, size: Size) -> Exchanged:
    in_turns = [batch for together in zip(*ids, strict=True) for batch in together]
    keys = np.array([row for batch in in_turns for row in batch], np.int64)
    starts = np.append(0, np.cumsum([len(batch) for batch in in_turns])).astype(np.int64)
    return exchanged(accesses_of(keys, starts, len(ids), np.array([0, ROWS])), play, size)


@pytest.mark.parametrize("ahead", [True, False], ids=["asked ahead", "one by one"])
@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 20), st.integers(1, 5),
    st.sampled_from([1, 2, 5]), st.sampled_from(["lru", "lfu", "light-lfu"]),
)  # fmt: skip
def test_what_miniature_caches_exchange_is_what_clients_do(
    ahead: bool, seed: int, trainers: int, capacity: int, staleness: int, window: int, policy: str
) -> None:
    random = np.random.default_rng(seed)
    ids = drawn(random, trainers, int(random.integers(1, 40)))
    plan = changed(cached_plan("het"), "HetAsk", capacity=capacity, staleness=staleness, policy=policy)
    plan = changed(plan, "HetPush", staleness=staleness)
    clients = by_clients(of(plan, trainers, window, ahead), ids)
    found = in_miniature(ids, Play(1, 0, (staleness, staleness + 1), ahead), Size(capacity, policy, window))
    assert found.hits.sum() == clients["hits"]
    assert found.run_out[:, 0].sum() == clients["run_out"]
    assert found.stale[:, 0].sum() == clients["stale"]
    later = found.evicted.sum() - clients["evicted"]  # when the last batch but one is written
    assert 0 <= later <= 8 * trainers


def test_batches_that_come_again_and_what_counts_of_them() -> None:
    ids = [[[1, 2], [3], [1, 4]]]
    twice = [[*ids[0], *ids[0]]]
    size = Size(3, "lru", 2)
    whole, later = (in_miniature(ids, Play(2, counted, (1,), True), size) for counted in (0, 3))
    assert whole.hits.sum() == in_miniature(twice, Play(1, 0, (1,), True), size).hits.sum()
    assert later.hits.sum() == in_miniature(twice, Play(1, 3, (1,), True), size).hits.sum()
    assert whole.hits.sum() - later.hits.sum() == in_miniature(ids, Play(1, 0, (1,), True), size).hits.sum()

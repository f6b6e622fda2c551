"""Victims by a score of a user's own, against rows that are sorted by hand, and against htrain's own LRU."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import DataError
from htrain.spec.policies import POLICIES
from htrain.sync.het import policy as p
from htrain.sync.het.client import UNBOUNDED, HetCache
from htrain.sync.het.messages import Answer
from htrain.sync.het.scored import victims_by
from htrain.sync.het.server import HetServer
from htrain.sync.request import Request
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory

SLOTS = 12


def by_use(uses: int, idle: int, age: int) -> float:
    return uses / (1.0 + age)


def by_root(uses: int, idle: int, age: int) -> float:
    return math.sqrt(2.0 - idle)  # no number for what is idle for more than two steps


def least_recent(uses: int, idle: int, age: int) -> float:
    return -idle


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.sampled_from([by_use, by_root, least_recent]), st.integers(0, 2**31), st.integers(1, SLOTS + 3), st.booleans()
)
def test_the_rows_with_the_lowest_scores_leave_but_not_those_in_use(
    score: Callable[..., float], seed: int, wanted: int, spare: bool
) -> None:
    draw = np.random.default_rng(seed)
    now = 20
    meta, lists, key_of = (
        np.zeros((SLOTS, 8), np.int32),
        p.new_lists(SLOTS),
        np.where(draw.random(SLOTS) < 0.8, np.arange(SLOTS), -1),
    )
    for slot in range(SLOTS):
        first = int(draw.integers(0, now))
        for step in sorted({first, int(draw.integers(first, now))}):
            p.used(meta, lists, slot, p.SCORED, step)
    meta[:, p.PINS], meta[:, p.AHEAD] = draw.random(SLOTS) < 0.2, draw.random(SLOTS) < 0.2
    victims = np.full(wanted, -1, np.int64)
    count = victims_by(score)(meta, lists, key_of, now, wanted, spare, victims)

    def score_of(slot: int) -> float:
        try:
            return float(
                score(int(meta[slot, p.USES]), now - int(lists[slot, p.NEWEST]), now - int(lists[slot, p.OLDEST]))
            )
        except ValueError:
            return -math.inf

    free = [s for s in range(SLOTS) if key_of[s] >= 0 and not meta[s, p.PINS] and not (spare and meta[s, p.AHEAD])]
    chosen = victims[:count].tolist()
    assert len(set(chosen)) == count == min(wanted, len(free))
    assert set(chosen) <= set(free)
    assert sorted(map(score_of, chosen)) == pytest.approx(sorted(map(score_of, free))[:count])


@pytest.fixture
def least_recent_is_registered() -> Iterator[None]:
    POLICIES["least-recent"] = least_recent
    yield
    del POLICIES["least-recent"]


def counts_of(policy: str, staleness: int, batches: list[np.ndarray]) -> tuple[int, int, int]:
    """Hits, misses and evictions of a cache of 20 rows of 60, and the table behind it is the sum of all updates."""
    table = np.zeros((60, 4), np.float32)
    step = SparseStep("sgd", 1.0)
    server = HetServer(table, np.zeros((60, 0), np.float32), staleness=staleness, step=step)
    cache = HetCache(Territory([0], [0], [0], 60), 4, capacity=20, staleness=staleness, policy=policy, step=step)

    def answered(requests: list[Request]) -> list[Answer]:
        for request in requests:
            server.push(request)
        return [server.pull(request) for request in requests]

    for keys in batches:
        slots, requests = cache.ask(keys)
        cache.read(slots, answered(requests))
        cache.write(slots, np.ones((keys.size, 4), np.float32))
        cache.trim()
    cache.read(np.empty(0, np.int64), answered(cache.flush()))
    np.testing.assert_array_equal(table[:, 0], -np.bincount(np.concatenate(batches), minlength=60))
    return cache.counts.hits, cache.counts.misses, cache.counts.evicted


@pytest.mark.parametrize("staleness", [UNBOUNDED, 3])
@pytest.mark.usefixtures("least_recent_is_registered")
def test_least_recent_by_a_score_is_lru(staleness: int) -> None:
    """With a row a step there is one order of use, and both policies give the same rows up. Caches that grow keep what they know of their rows."""
    draw = np.random.default_rng(0)
    one_by_one = [np.array([key % 60], np.int64) for key in draw.zipf(1.2, 3000)]
    assert counts_of("least-recent", staleness, one_by_one) == counts_of("lru", staleness, one_by_one)
    batches = [np.unique(draw.zipf(1.2, 30) % 60).astype(np.int64) for _ in range(400)]
    ours, lru = counts_of("least-recent", staleness, batches), counts_of("lru", staleness, batches)
    assert ours[0] == pytest.approx(lru[0], rel=0.15)  # of rows of one step, others leave


def test_a_policy_that_nobody_registered_is_named() -> None:
    with pytest.raises(DataError, match="policy 'nobodys', which is not known here: name the file that registers it"):
        counts_of("nobodys", 3, [])

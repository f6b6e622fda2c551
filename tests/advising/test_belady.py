"""Belady's bound against all that a cache could keep, tried out, and against the caches that are there."""

from functools import cache
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.advising.belady import best_hits, next_uses
from htrain.advising.sequence import sequences_of
from htrain.sync.accesses import Accesses, Play, Size, accesses_of
from htrain.sync.het.miniature import exchanged

tiny = st.lists(st.lists(st.integers(0, 4), unique=True, max_size=3), min_size=1, max_size=7)
drawn = st.lists(st.lists(st.integers(0, 19), unique=True, max_size=7), min_size=2, max_size=30)


def accesses(trace: list[list[int]]) -> Accesses:
    keys = np.array([row for batch in trace for row in batch], np.int64)
    starts = np.append(0, np.cumsum([len(batch) for batch in trace])).astype(np.int64)
    return accesses_of(keys, starts, 1, np.array([0, 20]))


def bound(trace: list[list[int]], capacity: int, *, ahead: bool) -> int:
    (sequence,) = sequences_of(accesses(trace), 1)
    return int(best_hits(sequence, next_uses(sequence), capacity, num_parts=1, counted=0, ahead=ahead).sum())


def tried_out(trace: list[list[int]], capacity: int, *, ahead: bool) -> int:
    """The most hits of all ways to keep rows: before each batch `capacity` of those that were there. With `ahead`, the rows of the last batch are pinned."""

    @cache
    def most(number: int, there: frozenset[int]) -> int:
        if number == len(trace):
            return 0
        pinned = frozenset(trace[number - 1]) if ahead and number else frozenset()
        room = max(0, capacity - len(pinned))
        others = there - pinned
        kept = combinations(sorted(others), min(room, len(others)))
        return max(
            len(set(trace[number]) & (pinned | set(each)))
            + most(number + 1, frozenset(each) | pinned | frozenset(trace[number]))
            for each in kept
        )

    return most(0, frozenset())


@settings(max_examples=60, deadline=None)
@given(tiny, st.integers(1, 4), st.booleans())
def test_no_way_to_keep_rows_hits_more_and_one_hits_as_many(trace: list[list[int]], capacity: int, ahead: bool) -> None:
    assert bound(trace, capacity, ahead=ahead) == tried_out(trace, capacity, ahead=ahead)


@settings(max_examples=60, deadline=None)
@given(drawn, st.integers(1, 12), st.sampled_from(["lru", "lfu", "light-lfu"]), st.sampled_from([1, 3]), st.booleans())
def test_no_policy_is_above_the_bound(
    trace: list[list[int]], capacity: int, policy: str, window: int, ahead: bool
) -> None:
    found = exchanged(accesses(trace), Play(1, 0, (1,), ahead), Size(capacity, policy, window))
    assert found.hits.sum() <= bound(trace, capacity, ahead=ahead)

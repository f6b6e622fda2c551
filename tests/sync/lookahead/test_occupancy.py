"""The occupancy table against a plain model of cDLRM 5.2.1."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.net.placement import CacheGeometry, next_prime
from htrain.sync.lookahead.occupancy import Occupancy

PRIMES = [n for n in range(2, 600) if all(n % d for d in range(2, n))]


@given(st.integers(0, 500))
def test_next_prime_is_the_smallest_that_is_large_enough(least: int) -> None:
    assert next_prime(least) == next(p for p in PRIMES if p >= least)


def test_the_papers_150_000_sets_are_150_001() -> None:
    assert CacheGeometry.of(10**7, 150_000, 16) == CacheGeometry(150_001, 16)


@pytest.mark.parametrize(("rows", "whole"), [(99, True), (100, True), (101, False)])
def test_a_table_with_no_more_rows_than_sets_is_held_whole(rows: int, whole: bool) -> None:
    geometry = CacheGeometry.of(rows, 100, 4)
    assert geometry == (CacheGeometry(rows, 1) if whole else CacheGeometry(101, 4))
    if whole:
        placement = Occupancy(geometry, 0).place(np.arange(rows))
        assert sorted(placement.slots) == list(range(rows))
        assert not placement.evicted_keys.size


windows = st.lists(st.lists(st.integers(0, 60), unique=True, max_size=40), max_size=12)


@settings(max_examples=200, deadline=None)
@given(windows, st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**31))
def test_rows_of_a_window_stay_and_others_make_room(drawn: list[list[int]], sets: int, ways: int, seed: int) -> None:
    geometry = CacheGeometry(sets, ways)
    occupancy = Occupancy(geometry, seed)
    here: dict[int, int] = {}  # key -> slot
    for window in drawn:
        keys = np.array(window, np.int64)
        placement = occupancy.place(keys)
        for key, slot in zip(placement.evicted_keys.tolist(), placement.evicted_slots.tolist(), strict=True):
            assert key not in window
            assert here.pop(key) == slot
        fresh = set(placement.fresh.tolist())
        for place, (key, slot) in enumerate(zip(window, placement.slots.tolist(), strict=True)):
            assert (place in fresh) == (slot >= 0 and key not in here)
            if place in fresh:
                assert slot // ways == key % sets
                assert slot not in here.values()
                here[key] = slot
            elif slot >= 0:
                assert here[key] == slot
        used = {s: [k for k, at in here.items() if at // ways == s] for s in range(sets)}
        for key in (k for k, slot in zip(window, placement.slots.tolist(), strict=True) if slot < 0):
            others = used[key % sets]
            assert len(others) == ways
            assert set(others) <= set(window)  # a victim only where the whole set is pinned
        assert dict(zip(*(part.tolist() for part in occupancy.residents()), strict=True)) == here
        np.testing.assert_array_equal(occupancy.find(np.arange(61)), [here.get(k, -1) for k in range(61)])


def test_an_empty_way_is_taken_before_a_row_is_evicted() -> None:
    occupancy = Occupancy(CacheGeometry(1, 4), 7)
    for key in range(4):
        assert not occupancy.place(np.array([key])).evicted_keys.size


def test_every_unpinned_way_is_chosen_now_and_then() -> None:
    chosen = set()
    for seed in range(60):
        occupancy = Occupancy(CacheGeometry(1, 4), seed)
        occupancy.place(np.arange(4))
        stayed = int(occupancy.keys[2])
        chosen.add(int(occupancy.place(np.array([stayed, 9])).evicted_slots[0]))
    assert chosen == {0, 1, 3}


def test_what_is_forgotten_must_be_placed_again() -> None:
    occupancy = Occupancy(CacheGeometry(3, 2), 0)
    occupancy.place(np.arange(5))
    occupancy.forget()
    assert not occupancy.residents()[0].size
    assert occupancy.place(np.arange(5)).fresh.size == 5


@given(
    windows=st.lists(st.lists(st.integers(0, 60), unique=True, max_size=20), max_size=8),
    sets=st.integers(1, 7),
    ways=st.integers(1, 4),
)
def test_trainers_that_place_the_same_windows_place_them_alike(windows: list[list[int]], sets: int, ways: int) -> None:
    one, other = (Occupancy(CacheGeometry(sets, ways), 0) for _ in range(2))
    for keys in windows:
        other.find(np.arange(5))
        assert (one.place(np.array(keys, np.int64)).slots == other.place(np.array(keys, np.int64)).slots).all()
    assert (one.keys == other.keys).all()


@given(
    windows=st.lists(st.lists(st.integers(0, 60), unique=True, max_size=20), max_size=8),
    undone=st.integers(0, 8),
    sets=st.integers(1, 7),
    ways=st.integers(1, 4),
)
def test_what_is_undone_leaves_those_that_were_here_before(
    windows: list[list[int]], undone: int, sets: int, ways: int
) -> None:
    before, ahead = (Occupancy(CacheGeometry(sets, ways), 0) for _ in range(2))
    kept = max(0, len(windows) - undone)
    for keys in windows[:kept]:
        before.place(np.array(keys, np.int64))
    placements = [ahead.place(np.array(keys, np.int64)) for keys in windows]
    for found, wanted in zip(ahead.residents(placements[kept:]), before.residents(), strict=True):
        np.testing.assert_array_equal(found, wanted)

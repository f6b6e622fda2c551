"""The sparse loops against brute force, on what fits and on what does not: nothing outside an array is ever read or written."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from fenced import INT64, eighths, fenced, int64, near
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.ops import sparse_loops

quick = settings(max_examples=60, deadline=None, derandomize=True)
DIM = 3
NO_WEIGHTS = np.empty(0, np.float32)


# -- dedupe ----------------------------------------------------------------------------------------------------------


@quick
@given(ids=st.lists(st.one_of(st.integers(-3, 5), INT64), max_size=40), padding=st.integers(-1, 5))
def test_dedupe_of_any_ids_is_that_of_a_dictionary(ids: list[int], padding: int) -> None:
    unique, places = sparse_loops.dedupe(int64(ids), padding)
    kept = list(dict.fromkeys(i for i in ids if padding < 0 or i != padding))
    assert unique.tolist() == kept
    assert places.tolist() == [kept.index(i) if i in kept else -1 for i in ids]


@pytest.mark.parametrize("step", [1, 2**20, 2**44, 2**63 - 1])
def test_dedupe_finds_ids_that_differ_in_few_bits_again(step: int) -> None:
    ids = (np.arange(3000, dtype=np.uint64) * np.uint64(step)).astype(np.int64)
    unique, places = sparse_loops.dedupe(np.concatenate([ids, ids[::-1]]), -1)
    assert np.array_equal(np.sort(unique), np.unique(ids))
    assert np.array_equal(unique[places], np.concatenate([ids, ids[::-1]]))


@quick
@given(ids=st.lists(near(9), max_size=20), cuts=st.lists(st.integers(2, 9), max_size=3), padding=st.integers(-1, 4))
@example(ids=[], cuts=[], padding=-1)
@example(ids=[2, 8, 2], cuts=[5, 5], padding=-1)
def test_sharded_ids_are_grouped_or_the_first_outside_all_shards_is_named(
    ids: list[int], cuts: list[int], padding: int
) -> None:
    """Shards may be empty. Row 2 is the first of the first shard, 8 the last of the last."""
    bounds = [2, *sorted(cuts), 9]
    outside = [i for i in ids if (padding < 0 or i != padding) and not 2 <= i < 9]
    if outside:
        named = f"^id {outside[0]} at position {ids.index(outside[0])} is outside the table's rows \\[2, 9\\)$"
        with pytest.raises(DataError, match=named):
            sparse_loops.dedupe_sharded(int64(ids), bounds, padding)
        return
    shards, places = sparse_loops.dedupe_sharded(int64(ids), bounds, padding)
    unique = list(dict.fromkeys(i for i in ids if padding < 0 or i != padding))
    assert [s.tolist() for s in shards] == [[i for i in unique if low <= i < high] for low, high in pairwise(bounds)]
    joined = np.concatenate(shards)
    assert [joined[p] if p >= 0 else padding for p in places] == ids


# -- rows out of a table, and taken apart ------------------------------------------------------------------------------


@quick
@given(ids=st.lists(near(6), max_size=12), num_rows=st.integers(0, 6), first_row=st.sampled_from([0, 2, 2**40, 2**62]))
@example(ids=[-(2**63)], num_rows=6, first_row=2**62)
def test_gathered_rows_are_those_of_numpy_or_the_first_bad_id_is_named(
    ids: list[int], num_rows: int, first_row: int
) -> None:
    ids = [max(-(2**63), min(2**63 - 1, i + first_row)) if abs(i) < 100 else i for i in ids]
    table, _ = fenced(num_rows, DIM)
    bad = [n for n, i in enumerate(ids) if not first_row <= i < first_row + num_rows]
    if bad:
        rows = f"\\[{first_row}, {first_row + num_rows}\\)"
        named = f"^id {ids[bad[0]]} at position {bad[0]} is outside the table's rows {rows}$"
        with pytest.raises(DataError, match=named):
            sparse_loops.gather_rows(table, int64(ids), first_row)
    else:
        assert np.array_equal(sparse_loops.gather_rows(table, int64(ids), first_row), table[int64(ids) - first_row])


def places_of(size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.one_of(st.just(-1), near(size)), max_size=12)


@quick
@given(places=places_of(4), num_rows=st.integers(0, 4))
def test_taken_rows_and_their_gradient_are_those_of_numpy_or_the_bad_place_is_named(
    places: list[int], num_rows: int
) -> None:
    rows, _ = fenced(num_rows, DIM)
    dy = eighths(len(places), DIM)
    bad = [n for n, p in enumerate(places) if not -1 <= p < num_rows]
    if bad:
        named = f"^place {places[bad[0]]} at position {bad[0]} is outside the {num_rows} rows that were looked up$"
        with pytest.raises(DataError, match=named):
            sparse_loops.take_rows(rows, int64(places))
        with pytest.raises(DataError, match=named):
            sparse_loops.take_rows_gradient(dy, int64(places), num_rows)
        return
    assert np.array_equal(sparse_loops.take_rows(rows, int64(places)), rows_at(rows, places))
    expected = np.zeros((num_rows, DIM), np.float32)
    for place, row in zip(places, dy, strict=True):
        if place >= 0:
            expected[place] += row
    assert np.array_equal(sparse_loops.take_rows_gradient(dy, int64(places), num_rows), expected)


def rows_at(rows: NDArray[np.float32], places: Sequence[int]) -> NDArray[np.float32]:
    """A row for each place, zeros for -1."""
    return np.array([rows[p] if p >= 0 else np.zeros(DIM) for p in places], np.float32).reshape(-1, DIM)


# -- bags ------------------------------------------------------------------------------------------------------------


def fits(places: list[int], offsets: list[int], num_rows: int) -> bool:
    ascending = offsets == sorted(offsets) and (not offsets or (offsets[0] == 0 and offsets[-1] <= len(places)))
    return ascending and all(-1 <= p < num_rows for p in bag_places(places, offsets))


def bag_places(places: list[int], offsets: list[int]) -> list[int]:
    """The places that are in a bag: all, unless there is none."""
    return places if offsets else []


offsets_of = st.one_of(
    st.lists(st.integers(0, 6), max_size=4).map(lambda later: [0, *sorted(later)]), st.lists(near(6), max_size=5)
)


@settings(quick, max_examples=200)
@given(
    places=places_of(4),
    offsets=offsets_of,
    num_rows=st.integers(1, 4),
    mode=st.sampled_from(["sum", "mean", "weighted"]),
)
@example(places=[0, 1], offsets=[], num_rows=2, mode="sum")
@example(places=[], offsets=[0, 0], num_rows=2, mode="mean")
@example(places=[0, 1, 2], offsets=[0, 3, 3], num_rows=3, mode="weighted")
@example(places=[0, 1, 2], offsets=[0, 4], num_rows=3, mode="sum")
@example(places=[0, 1, 2], offsets=[1, 2], num_rows=3, mode="sum")
@example(places=[0, 1, 2], offsets=[0, 2, 1], num_rows=3, mode="mean")
@example(places=[0, 1, 2], offsets=[0, -1], num_rows=3, mode="sum")
def test_bags_and_their_gradients_are_those_of_brute_force_or_are_refused(
    places: list[int], offsets: list[int], num_rows: int, mode: str
) -> None:
    rows, _ = fenced(num_rows, DIM)
    dy = eighths(len(offsets), DIM)
    weights = eighths(len(places)) if mode == "weighted" else NO_WEIGHTS
    forward = (rows, int64(places), int64(offsets), weights, mode == "mean")
    backward = (dy, *forward[1:], num_rows)
    of_weights = (rows, dy, int64(places), int64(offsets))
    if not fits(places, offsets, num_rows):
        for call in (
            lambda: sparse_loops.pool_rows(*forward),
            lambda: sparse_loops.pool_rows_gradient(*backward),
            lambda: sparse_loops.pool_weights_gradient(*of_weights),
        ):
            with pytest.raises(DataError, match=r"^(offset|place) -?\d+ at position \d+ (does not fit|is outside)"):
                call()
        return
    pooled = np.zeros((len(offsets), DIM), np.float64)
    drows = np.zeros((num_rows, DIM), np.float64)
    dweights = np.zeros(len(places), np.float64)
    for bag, start in enumerate(offsets):
        end = offsets[bag + 1] if bag + 1 < len(offsets) else len(places)
        valid = [i for i in range(start, end) if places[i] >= 0]
        for i in valid:
            factor = weights[i] if mode == "weighted" else 1 / len(valid) if mode == "mean" else 1
            pooled[bag] += factor * rows[places[i]]
            drows[places[i]] += factor * dy[bag]
            dweights[i] = rows[places[i]] @ dy[bag]
    np.testing.assert_allclose(sparse_loops.pool_rows(*forward), pooled, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sparse_loops.pool_rows_gradient(*backward), drows, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sparse_loops.pool_weights_gradient(*of_weights), dweights, rtol=1e-5, atol=1e-6)


# -- arrays of another form -------------------------------------------------------------------------------------------

ROWS, IDS, OFFSETS = eighths(4, DIM), int64([0, 1]), int64([0, 1])
MISFITS: dict[str, tuple[Callable[[], object], str]] = {
    "ids in two dimensions": (lambda: sparse_loops.gather_rows(ROWS, IDS[:, None], 0), r"^ids are int64\[2,1\], want int64\[u\]$"),
    "ids that are floats": (
        lambda: sparse_loops.gather_rows(ROWS, IDS.astype(np.float32), 0),
        r"^ids are float32\[2\], want int64\[u\]$",
    ),
    "places in two dimensions": (
        lambda: sparse_loops.take_rows(ROWS, IDS[:, None]), r"^places are int64\[2,1\], want int64\[n\]$",
    ),
    "rows without columns": (lambda: sparse_loops.take_rows(ROWS[0], IDS), r"^rows are float32\[3\], want float32\[u,D\]$"),
    "fewer gradients than places": (
        lambda: sparse_loops.take_rows_gradient(ROWS[:1], IDS, 4), r"^gradients are float32\[1,3\], want float32\[2,3\]$",
    ),
    "offsets that are no numbers": (
        lambda: sparse_loops.pool_rows(ROWS, IDS, np.array([0.0, np.nan]), NO_WEIGHTS, False),
        r"^offsets are float64\[2\], want int64\[B\]$",
    ),
    "places of bags that are floats": (
        lambda: sparse_loops.pool_rows(ROWS, IDS.astype(np.float32), OFFSETS, NO_WEIGHTS, False),
        r"^places are float32\[2\], want int64\[n\]$",
    ),
    "fewer weights than places": (
        lambda: sparse_loops.pool_rows(ROWS, IDS, OFFSETS, ROWS[0, :1], False), r"^weights are float32\[1\], want float32\[2\]$",
    ),
    "more weights than places": (
        lambda: sparse_loops.pool_rows(ROWS, IDS, OFFSETS, ROWS[0], False), r"^weights are float32\[3\], want float32\[2\]$",
    ),
    "fewer gradients than bags": (
        lambda: sparse_loops.pool_rows_gradient(ROWS[:1], IDS, OFFSETS, NO_WEIGHTS, False, 4),
        r"^gradients are float32\[1,3\], want float32\[2,3\]$",
    ),
    "narrower gradients than rows": (
        lambda: sparse_loops.pool_weights_gradient(ROWS, ROWS[:2, :2], IDS, OFFSETS),
        r"^gradients are float32\[2,2\], want float32\[2,3\]$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_arrays_that_do_not_fit_each_other_are_refused_with_what_would(name: str) -> None:
    call, match = MISFITS[name]
    with pytest.raises(DataError, match=match):
        call()
    assert np.array_equal(ROWS, eighths(4, DIM))

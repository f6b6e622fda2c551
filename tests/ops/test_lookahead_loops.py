"""Whole rows with their optimizer state, out of a table and into it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import DataError
from htrain.ops import lookahead_loops
from htrain.ops.lookahead_loops import copy_into, read_rows, read_tables, write_rows, write_tables


def parts_of(rows: int, width: int, states: str) -> list[np.ndarray]:
    """A table and its state: of the same form, or one number a row, or none."""
    random = np.random.default_rng(rows)
    shapes = {"adagrad": [(rows, width)], "rowwise": [(rows,)], "sgd": []}[states]
    return [random.random(shape, np.float32) for shape in ((rows, width), *shapes)]


@settings(deadline=None)
@given(
    st.integers(1, 20),
    st.integers(1, 5),
    st.sampled_from(["adagrad", "rowwise", "sgd"]),
    st.integers(0, 2**40),
    st.data(),
)
def test_rows_come_out_and_go_in_with_their_state_behind_them(
    rows: int, width: int, states: str, first_row: int, data: st.DataObject
) -> None:
    parts = parts_of(rows, width, states)
    ids = np.array(data.draw(st.lists(st.integers(0, rows - 1), unique=True)), np.int64)
    wanted = np.concatenate([part.reshape(rows, -1)[ids] for part in parts], axis=1)
    values = read_rows(parts, ids + first_row, first_row)
    np.testing.assert_array_equal(values, wanted)

    before = [part.copy() for part in parts]
    write_rows(parts, ids + first_row, values + 1, first_row)
    for part, old in zip(parts, before, strict=True):
        old[ids] += 1
        np.testing.assert_array_equal(part, old)


@pytest.mark.parametrize("ids", [[5], [-1], [0, 7, 1]])
def test_an_id_outside_the_shard_is_named_and_nothing_is_written(ids: list[int]) -> None:
    parts = parts_of(5, 3, "rowwise")
    before = [part.copy() for part in parts]
    with pytest.raises(DataError, match=r"id -?\d+ at position \d is outside the table's rows \[0, 5\)"):
        read_rows(parts, np.array(ids), 0)
    with pytest.raises(DataError, match="is outside the table's rows"):
        write_rows(parts, np.array(ids), np.zeros((len(ids), 4), np.float32), 0)
    for part, old in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part, old)


@pytest.mark.parametrize("shape", [(1, 4), (2, 3), (2,)])
def test_values_of_another_form_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError):
        write_rows(parts_of(5, 3, "rowwise"), np.array([1, 2]), np.zeros(shape, np.float32), 0)


drawn_tables = st.lists(
    st.tuples(st.integers(1, 20), st.integers(1, 5), st.sampled_from(["adagrad", "rowwise", "sgd"]), st.integers(0, 2**40)),
    min_size=1,
    max_size=4,
)  # fmt: skip


@settings(deadline=None)
@given(drawn_tables, st.integers(1, 4), st.data())
def test_rows_of_many_tables_come_out_and_go_in_as_those_of_each(
    drawn: list[tuple[int, int, str, int]], at_once: int, data: st.DataObject
) -> None:
    """In pieces of a few rows, shared out to threads."""
    tables, others = ([parts_of(rows, width, states) for rows, width, states, _ in drawn] for _ in range(2))
    firsts = [first for *_, first in drawn]
    ids = [
        np.array(data.draw(st.lists(st.integers(0, rows - 1), unique=True)), np.int64) + first
        for rows, _, _, first in drawn
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookahead_loops, "_ROWS_AT_ONCE", at_once)
        patch.setattr(lookahead_loops, "_MANY", 1)
        found = read_tables(tables, ids, firsts)
        write_tables(tables, ids, [rows + 1 for rows in found], firsts)
        for parts, own, first, rows in zip(others, ids, firsts, found, strict=True):
            np.testing.assert_array_equal(rows, read_rows(parts, own, first))
            write_rows(parts, own, rows + 1, first)
        for mine, theirs in zip(tables, others, strict=True):
            for part, same in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(part, same)
        sources = [rows[:, :1][::2] for rows in found]
        out = np.empty((sum(map(len, sources)), 1), np.float32)
        copy_into(out, sources)
    np.testing.assert_array_equal(out, np.concatenate([np.empty((0, 1), np.float32), *sources]))


@pytest.mark.parametrize(
    ("ids", "values", "says"),
    [
        ([5], (1, 4), r"id 5 at position 0 is outside the table's rows \[0, 5\)"),
        ([0, -1], (2, 4), "id -1 at position 1"),
        ([0, 1], (1, 4), "rows to write back are"),
        ([0, 1], (2, 3), "rows to write back are"),
    ],
)
def test_of_many_tables_too_what_does_not_fit_is_refused(ids: list[int], values: tuple[int, int], says: str) -> None:
    tables = [parts_of(9, 3, "rowwise"), parts_of(5, 3, "rowwise")]
    before, fits = [part.copy() for part in tables[1]], np.array([8, 7])
    rows = [np.zeros((2, 4), np.float32), np.zeros(values, np.float32)]
    with pytest.raises(DataError, match=says):
        write_tables(tables, [fits, np.array(ids)], rows, [0, 0])
    if says.startswith("id"):
        with pytest.raises(DataError, match=says):
            read_tables(tables, [fits, np.array(ids)], [0, 0])
    for part, old in zip(tables[1], before, strict=True):
        np.testing.assert_array_equal(part, old)

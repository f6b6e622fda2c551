"""Whole rows with their optimizer state, out of a table and into it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import DataError
from htrain.ops.lookahead_loops import read_rows, write_rows


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

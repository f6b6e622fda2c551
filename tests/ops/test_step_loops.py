"""Sparse optimizer steps against their formulas in double precision; nothing outside the table is ever read or written."""

from collections.abc import Callable

import numpy as np
import pytest
from fenced import assert_fence_stands, eighths, fenced, int64, near
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.ops import step_loops

quick = settings(max_examples=60, deadline=None, derandomize=True)
DIM = 3
LR, EPS = 0.5, 1e-10
Step = Callable[[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], int], None]
STEPS: dict[str, tuple[Step, tuple[int, ...]]] = {
    "sgd": (lambda table, state, ids, grads, first: step_loops.sgd_rows(table, ids, grads, first, LR), ()),
    "adagrad": (
        lambda table, state, ids, grads, first: step_loops.adagrad_rows(table, state, ids, grads, first, LR, EPS),
        (DIM,),
    ),
    "rowwise_adagrad": (
        lambda table, state, ids, grads, first: step_loops.rowwise_adagrad_rows(
            table, state, ids, grads, first, LR, EPS
        ),
        (),
    ),
}


def stepped(name: str, row: NDArray, state: NDArray, grad: NDArray) -> tuple[NDArray, NDArray]:
    """A row and its state after a step, in double precision."""
    row, state, grad = row.astype(np.float64), state.astype(np.float64), grad.astype(np.float64)
    if name == "sgd":
        return row - LR * grad, state
    state = state + (np.square(grad) if name == "adagrad" else np.square(grad).mean())
    return row - LR * grad / (np.sqrt(state) + EPS), state


@pytest.mark.parametrize("name", STEPS)
@quick
@given(ids=st.lists(near(5), max_size=6, unique=True), num_rows=st.integers(0, 5), first_row=st.sampled_from([0, 3]))
@example(ids=[3, 5], num_rows=2, first_row=3)
@example(ids=[3, 2], num_rows=2, first_row=3)
@example(ids=[-1], num_rows=5, first_row=0)
def test_a_step_is_that_of_the_formula_and_never_leaves_the_table(
    name: str, ids: list[int], num_rows: int, first_row: int
) -> None:
    step, state_width = STEPS[name]
    table, table_field = fenced(num_rows, DIM)
    state, state_field = fenced(num_rows, *state_width)
    state[:] = np.abs(state)
    grads = eighths(len(ids), DIM)
    before, state_before = table.copy(), state.copy()
    bad = [n for n, i in enumerate(ids) if not first_row <= i < first_row + num_rows]
    if bad:
        rows = f"\\[{first_row}, {first_row + num_rows}\\)"
        named = f"^id {ids[bad[0]]} at position {bad[0]} is outside the table's rows {rows}$"
        with pytest.raises(DataError, match=named):
            step(table, state, int64(ids), grads, first_row)
    else:
        step(table, state, int64(ids), grads, first_row)
        for i, grad in zip(ids, grads, strict=True):
            row = i - first_row
            before[row], state_before[row] = stepped(name, before[row], state_before[row], grad)
        np.testing.assert_allclose(table, before, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state, state_before, rtol=1e-5, atol=1e-6)
    assert_fence_stands(table_field)
    assert_fence_stands(state_field)


@pytest.mark.parametrize("name", STEPS)
def test_a_gradient_of_zero_leaves_a_row_without_history_as_it_is(name: str) -> None:
    step, state_width = STEPS[name]
    table, state = eighths(2, DIM), np.zeros((2, *state_width), np.float32)
    step(table, state, int64([1, 0]), np.zeros((2, DIM), np.float32), 0)
    assert np.array_equal(table, eighths(2, DIM))
    assert not state.any()


ROWS, IDS = eighths(4, DIM), int64([0, 1])
MISFITS: dict[str, tuple[Callable[[], object], str]] = {
    "fewer gradients than ids": (
        lambda: step_loops.sgd_rows(ROWS, IDS, ROWS[:1], 0, LR), r"^rows are float32\[1,3\], want float32\[2,3\]$",
    ),
    "narrower gradients than the table": (
        lambda: step_loops.adagrad_rows(ROWS, ROWS, IDS, ROWS[:2, :2], 0, LR, EPS),
        r"^rows are float32\[2,2\], want float32\[2,3\]$",
    ),
    "wider gradients than the table": (
        lambda: step_loops.rowwise_adagrad_rows(ROWS[:, :2], ROWS[:, 0], IDS, ROWS[:2], 0, LR, EPS),
        r"^rows are float32\[2,3\], want float32\[2,2\]$",
    ),
    "gradients without columns": (
        lambda: step_loops.sgd_rows(ROWS, IDS, ROWS[0], 0, LR), r"^rows are float32\[3\], want float32\[2,3\]$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_arrays_that_do_not_fit_each_other_are_refused_with_what_would(name: str) -> None:
    call, match = MISFITS[name]
    with pytest.raises(DataError, match=match):
        call()
    assert np.array_equal(ROWS, eighths(4, DIM))

"""A sparse optimizer's step on one row, as a sparse PS would take it: what a cached row is worth before its updates have gone there.

`state`[S] stands beside the row: nothing for SGD, one number for row-wise Adagrad, one per element for Adagrad.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from htrain.sync.index import find, insert

SGD, ADAGRAD, ROWWISE_ADAGRAD = range(3)
KINDS = {"sgd": SGD, "adagrad": ADAGRAD, "rowwise_adagrad": ROWWISE_ADAGRAD}


@dataclass(frozen=True)
class SparseStep:
    """The optimizer of a cache's tables: `kind` as in Options.sparse_optimizer, its rate and eps."""

    kind: str
    lr: float
    eps: float = 0.0

    @property
    def code(self) -> int:
        """The optimizer as the compiled loops know it: SGD, ADAGRAD or ROWWISE_ADAGRAD."""
        return KINDS[self.kind]

    def state_width(self, width: int) -> int:
        """Numbers of state beside a row of `width`."""
        return {"sgd": 0, "adagrad": width, "rowwise_adagrad": 1}[self.kind]


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy", inline="always")
def stepped(out, row, grad, state, kind, lr, eps):  # type: ignore[no-untyped-def]
    """out[D] = row[D] after one step with grad[D]; neither row nor state changes."""
    rate, floor = np.float32(lr), np.float32(eps)
    if kind == SGD:
        for d in range(row.size):
            out[d] = row[d] - rate * grad[d]
    elif kind == ADAGRAD:
        for d in range(row.size):
            out[d] = row[d] - rate * grad[d] / (np.sqrt(state[d] + grad[d] * grad[d]) + floor)
    else:
        total = np.float32(0.0)
        for d in range(row.size):
            total += grad[d] * grad[d]
        rate = rate / (np.sqrt(state[0] + total / np.float32(row.size)) + floor)
        for d in range(row.size):
            out[d] = row[d] - rate * grad[d]


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy", inline="always")
def step_in_place(row, grad, state, kind, lr, eps):  # type: ignore[no-untyped-def]
    """One step with grad[D] on row[D] and its state."""
    if kind == ADAGRAD:
        for d in range(row.size):
            state[d] += grad[d] * grad[d]
    elif kind == ROWWISE_ADAGRAD:
        total = np.float32(0.0)
        for d in range(row.size):
            total += grad[d] * grad[d]
        state[0] += total / np.float32(row.size)
    rate, floor = np.float32(lr), np.float32(eps)
    if kind == ADAGRAD:
        for d in range(row.size):
            row[d] -= rate * grad[d] / (np.sqrt(state[d]) + floor)
        return
    if kind == ROWWISE_ADAGRAD:
        rate = rate / (np.sqrt(state[0]) + floor)
    for d in range(row.size):
        row[d] -= rate * grad[d]


@njit(nogil=True, cache=True)
def step_rows(table, state, rows, grads, step, lr, eps):  # type: ignore[no-untyped-def]
    """One step with grads[n,D] on each of rows[n], one after another."""
    for i in range(rows.size):
        step_in_place(table[rows[i]], grads[i], state=state[rows[i]], kind=step, lr=lr, eps=eps)


@njit(nogil=True, cache=True)
def sum_by_row(rows, grads, index, distinct, summed, places):  # type: ignore[no-untyped-def]
    """The sums of grads[n,D] for each row: distinct[m], summed[m,D], and where each of rows[n] is among them. How many. Requires: an empty index for n."""
    count = 0
    for i in range(rows.size):
        at = find(index, rows[i])
        if at < 0:
            at = count
            insert(index, rows[i], at)
            distinct[at] = rows[i]
            summed[at] = 0.0
            count += 1
        places[i] = at
        for d in range(grads.shape[1]):
            summed[at, d] += grads[i, d]
    return count

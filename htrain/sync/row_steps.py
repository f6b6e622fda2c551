"""A sparse optimizer's step on one row, as a sparse PS would take it: what a cached row is worth before its updates have gone there.

`state`[S] stands beside the row: nothing for SGD, one number for row-wise Adagrad, one per element for Adagrad, and for FTRL its z[D], then its n[D].
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from htrain.jit import njit
from htrain.sync.index import find, insert

SGD, ADAGRAD, ROWWISE_ADAGRAD, FTRL = range(4)
KINDS = {"sgd": SGD, "adagrad": ADAGRAD, "rowwise_adagrad": ROWWISE_ADAGRAD, "ftrl": FTRL}


class Rule(NamedTuple):
    """An optimizer as the compiled loops know it: `kind` is SGD, ADAGRAD, ROWWISE_ADAGRAD or FTRL."""

    kind: int
    lr: float
    eps: float
    beta: float
    l1: float
    l2: float


@dataclass(frozen=True)
class SparseStep:
    """The optimizer of a cache's tables: `kind` as in Options.sparse_optimizer, and its numbers; those that it has not are not read."""

    kind: str
    lr: float
    eps: float = 0.0
    beta: float = 0.0
    l1: float = 0.0
    l2: float = 0.0

    @cached_property
    def rule(self) -> Rule:
        """The optimizer as the compiled loops know it."""
        return Rule(KINDS[self.kind], self.lr, self.eps, beta=self.beta, l1=self.l1, l2=self.l2)

    def state_width(self, width: int) -> int:
        """Numbers of state beside a row of `width`."""
        return {"sgd": 0, "adagrad": width, "rowwise_adagrad": 1, "ftrl": 2 * width}[self.kind]


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy", inline="always")
def _ftrl(w, z, n, grad, rule):  # type: ignore[no-untyped-def]
    """A weight and its z after a step; n has the square of this gradient. The arithmetic is that of htrain.ops.ftrl."""
    l1 = np.float32(rule.l1)
    scale = (np.float32(rule.beta) + np.sqrt(n)) / np.float32(rule.lr) + np.float32(rule.l2)
    kept = min(max(-z, -l1), l1) if w == np.float32(0.0) else w * scale + np.copysign(l1, w)
    kept -= grad
    return (kept - min(max(kept, -l1), l1)) / scale, -kept


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy", inline="always")
def stepped(out, row, grad, state, rule):  # type: ignore[no-untyped-def]
    """out[D] = row[D] after one step with grad[D]; neither row nor state changes."""
    rate, floor = np.float32(rule.lr), np.float32(rule.eps)
    if rule.kind == SGD:
        for d in range(row.size):
            out[d] = row[d] - rate * grad[d]
    elif rule.kind == FTRL:
        for d in range(row.size):
            n = state[row.size + d] + grad[d] * grad[d]
            out[d] = _ftrl(row[d], state[d], n, grad[d], rule)[0]
    elif rule.kind == ADAGRAD:
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
def step_in_place(row, grad, state, rule):  # type: ignore[no-untyped-def]
    """One step with grad[D] on row[D] and its state."""
    if rule.kind == FTRL:
        for d in range(row.size):
            state[row.size + d] += grad[d] * grad[d]
            row[d], state[d] = _ftrl(row[d], state[d], state[row.size + d], grad[d], rule)
        return
    if rule.kind == ADAGRAD:
        for d in range(row.size):
            state[d] += grad[d] * grad[d]
    elif rule.kind == ROWWISE_ADAGRAD:
        total = np.float32(0.0)
        for d in range(row.size):
            total += grad[d] * grad[d]
        state[0] += total / np.float32(row.size)
    rate, floor = np.float32(rule.lr), np.float32(rule.eps)
    if rule.kind == ADAGRAD:
        for d in range(row.size):
            row[d] -= rate * grad[d] / (np.sqrt(state[d]) + floor)
        return
    if rule.kind == ROWWISE_ADAGRAD:
        rate = rate / (np.sqrt(state[0]) + floor)
    for d in range(row.size):
        row[d] -= rate * grad[d]


@njit(nogil=True, cache=True)
def step_rows(table, state, rows, grads, rule):  # type: ignore[no-untyped-def]
    """One step with grads[n,D] on each of rows[n], one after another."""
    for i in range(rows.size):
        step_in_place(table[rows[i]], grads[i], state=state[rows[i]], rule=rule)


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

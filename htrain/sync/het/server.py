"""A sparse PS of HET: global clocks, and what it does with a client's request (HET 3.1). Decisions alone, no IO.

`barrier` is for a staleness of 0, which is synchronous training: what clients push in a round is summed per row and becomes one optimizer
step when the first of them pulls. The caller lets nobody pull before all have pushed.
"""

from collections.abc import Callable

import numpy as np

from htrain.errors import DataError
from htrain.jit import njit
from htrain.sync.het.messages import Answer
from htrain.sync.index import new_index
from htrain.sync.request import Clocks, Request, Rows
from htrain.sync.row_steps import SparseStep, step_rows, sum_by_row
from htrain.sync.territory import Ids

_LAGS = 20


class HetServer:
    """Global clocks and rows: table[R,D], the optimizer's state[R,S], a clock per row. One thread at a time."""

    def __init__(self, table: Rows, state: Rows, *, staleness: int, step: SparseStep) -> None:
        self.clocks = np.zeros(len(table), np.int32)
        self.lags = np.zeros(_LAGS, np.int64)  # checked rows by c_g - c_c, 2^(a-1) to 2^a - 1
        self.barrier = staleness == 0
        self.before_step: Callable[[Ids], None] = lambda rows: None  # is told of rows that are about to change
        self._table = table
        self._state = state.reshape(len(table), -1)
        self._staleness = staleness
        self._step = step
        self._round: list[tuple[Ids, Rows]] = []

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return int(self._table.shape[1])

    def check(self, request: Request) -> None:
        """Raises DataError for a request that does not hold together, and for a row that is not here."""
        self._checked(request)

    def look(self, rows: Ids) -> Rows:
        """rows[n,D] as they stand, for an evaluation. Raises DataError for a row that is not here."""
        bad = rows[(rows < 0) | (rows >= len(self._table))]
        if bad.size:
            raise DataError(f"row {bad[0]} is asked for, this server holds {len(self._table)}")
        return np.take(self._table, rows, axis=0)

    def push(self, request: Request) -> None:
        """Evict: c_g = max(c_g, c_c), and the accumulated gradients go to the rows as one optimizer step each.

        Raises DataError for a request that does not hold together, and for a row that is not here; nothing has changed then.
        """
        rows, clocks = self._checked(request)
        count = int(request.counts[0])
        rows = rows[:count]
        _advance(self.clocks, rows, clocks[:count])
        if self.barrier:
            self._round.append((rows, request.gradients))
        else:
            self._apply(rows, request.gradients)

    def pull(self, request: Request) -> Answer:
        """Fetch, and CheckValid's second condition: rows fetched, and those checked that are stale, c_g > c_c + s. Behind a barrier, a round is over."""
        self._end_round()
        return self.answer(request)

    def answer(self, request: Request) -> Answer:
        """`pull` in the middle of a round."""
        rows, clocks = self._checked(request)
        evicted, fetched, checked = (int(n) for n in request.counts)
        asked = rows[evicted + fetched :]
        stale = np.empty(checked, np.int32)
        num_stale = _check(
            self.clocks, asked, current=clocks[evicted:], staleness=self._staleness, stale=stale, lags=self.lags
        )
        wanted = np.concatenate([rows[evicted : evicted + fetched], asked[stale[:num_stale]]])
        values = np.empty((wanted.size, self._table.shape[1] + self._state.shape[1]), np.float32)
        answer_clocks = np.empty(wanted.size, np.int32)
        _gather(self._table, self._state, clocks=self.clocks, rows=wanted, values=values, row_clocks=answer_clocks)
        return Answer(values, answer_clocks, stale[:num_stale])

    def push_arrays(self, counts: Ids, keys: Ids, clocks: Clocks, gradients: Rows) -> None:
        """`push`, as an op calls it."""
        self.push(Request(counts, keys, clocks, gradients))

    def pull_arrays(self, counts: Ids, keys: Ids, clocks: Clocks, gradients: Rows) -> tuple[Rows, Clocks, Clocks]:
        """`pull`, as an op calls it."""
        answer = self.pull(Request(counts, keys, clocks, gradients))
        return answer.rows, answer.clocks, answer.stale

    def _end_round(self) -> None:
        if self._round:
            rows, grads = (np.concatenate(parts) for parts in zip(*self._round, strict=True))
            self._round = []
            distinct, summed, places = np.empty_like(rows), np.empty_like(grads), np.empty_like(rows)
            count = sum_by_row(rows, grads, new_index(rows.size), distinct=distinct, summed=summed, places=places)
            self._apply(distinct[:count], summed[:count])

    def _apply(self, rows: Ids, grads: Rows) -> None:
        self.before_step(rows)
        step_rows(self._table, self._state, rows=rows, grads=grads, rule=self._step.rule)

    def _checked(self, request: Request) -> tuple[Ids, Clocks]:
        """The rows and clocks of a request that holds together."""
        return request.rows_among(*self._table.shape), request.clocks


@njit(nogil=True, cache=True)
def _advance(clocks, rows, current):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        clocks[rows[i]] = max(clocks[rows[i]], current[i])


@njit(nogil=True, cache=True)
def _check(clocks, rows, current, staleness, stale, lags):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(rows.size):
        lag = np.int64(clocks[rows[i]]) - current[i]
        if lag > staleness:
            stale[count] = i
            count += 1
        bucket = 0
        while lag > 0 and bucket < lags.size - 1:
            bucket += 1
            lag >>= 1
        lags[bucket] += 1
    return count


@njit(nogil=True, cache=True)
def _gather(table, state, clocks, rows, values, row_clocks):  # type: ignore[no-untyped-def]
    width = table.shape[1]
    for i in range(rows.size):
        row = rows[i]
        for d in range(width):
            values[i, d] = table[row, d]
        for d in range(state.shape[1]):
            values[i, width + d] = state[row, d]
        row_clocks[i] = clocks[row]

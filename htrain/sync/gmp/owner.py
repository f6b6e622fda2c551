"""The owner of rows: primaries, which are always up to date, and their clocks (HET-GMP 5.3). Decisions alone, no IO.

A clock counts the updates of a primary: those of its own worker, and those that others push. A staleness of 0 is synchronous training: what all workers
push in a round is summed per row and becomes one optimizer step when the first of them pulls. The caller lets nobody pull before all have pushed.
"""

from collections.abc import Callable

import numpy as np

from htrain.jit import njit
from htrain.sync.gmp.messages import ANYHOW, Answer
from htrain.sync.index import new_index
from htrain.sync.request import Clocks, Request, Rows
from htrain.sync.row_steps import SparseStep, step_rows, sum_by_row
from htrain.sync.territory import Ids

_GAPS = 20


class GmpOwner:
    """Primaries: table[R,D], the optimizer's state[R,S], a clock per row. One thread at a time.

    `gaps` counts secondaries that were checked by how far they were behind: entry 0 for not at all, entry a for 2^(a-1) to 2^a - 1 updates.
    """

    def __init__(self, table: Rows, state: Rows, *, staleness: int, step: SparseStep) -> None:
        self.clocks = np.zeros(len(table), np.int32)
        self.gaps = np.zeros(_GAPS, np.int64)
        self.barrier = staleness == 0
        self.before_step: Callable[[Ids], None] = lambda rows: None  # is told of rows that are about to change
        self._table = table
        self._state = state.reshape(len(table), -1)
        self._staleness = staleness
        self._step = step
        self._round: list[tuple[Ids, Rows, Clocks]] = []

    # -- for its own worker ------------------------------------------------------------------------------------------

    def read(self, rows: Ids, out: Rows) -> None:
        """out[n,D] are the primaries `rows`[n]."""
        _gather(self._table, rows, out)

    def write(self, rows: Ids, gradients: Rows) -> None:
        """One update of each of distinct `rows`[n] with gradients[n,D]."""
        self._push(rows, gradients, np.ones(rows.size, np.int32))

    # -- for others --------------------------------------------------------------------------------------------------

    def push(self, request: Request) -> None:
        """Update: gradients go to the primaries as one optimizer step each, however many updates they are the sum of.

        Raises DataError for a request that does not hold together, and for a row that is not here; nothing has changed then.
        """
        rows = request.rows_among(*self._table.shape)
        count = int(request.counts[0])
        self._push(rows[:count], request.gradients, request.clocks[:count])

    def pull(self, request: Request) -> Answer:
        """Rows that are fetched, and those checked that are behind their primary by more than the staleness."""
        self._end_round()
        rows = request.rows_among(*self._table.shape)
        pushed, fetched, checked = (int(n) for n in request.counts)
        asked, seen = rows[pushed + fetched :], request.clocks[pushed:]
        places = np.empty(checked, np.int32)
        stale = places[: _check(self.clocks, asked, seen=seen, staleness=self._staleness, stale=places, gaps=self.gaps)]
        old = asked[stale]
        wanted = np.concatenate([rows[pushed : pushed + fetched], old])
        values = np.empty((wanted.size, self._table.shape[1]), np.float32)
        _gather(self._table, wanted, values)
        return Answer(values, self._state[old], self.clocks[old], stale)

    def push_arrays(self, counts: Ids, keys: Ids, clocks: Clocks, gradients: Rows) -> None:
        """`push`, as an op calls it."""
        self.push(Request(counts, keys, clocks, gradients))

    def pull_arrays(self, counts: Ids, keys: Ids, clocks: Clocks, gradients: Rows) -> tuple[Rows, Rows, Clocks, Clocks]:
        """`pull`, as an op calls it."""
        answer = self.pull(Request(counts, keys, clocks, gradients))
        return answer.rows, answer.states, answer.clocks, answer.stale

    # -- inside ------------------------------------------------------------------------------------------------------

    def _push(self, rows: Ids, gradients: Rows, updates: Clocks) -> None:
        if self.barrier:
            self._round.append((rows, gradients, updates))
        else:
            self._apply(rows, gradients, updates)

    def _end_round(self) -> None:
        if self._round:
            rows, grads, updates = (np.concatenate(parts) for parts in zip(*self._round, strict=True))
            self._round = []
            distinct, summed, places = np.empty_like(rows), np.empty_like(grads), np.empty_like(rows)
            count = sum_by_row(rows, grads, new_index(rows.size), distinct=distinct, summed=summed, places=places)
            counted = np.bincount(places, weights=updates, minlength=count).astype(np.int32)
            self._apply(distinct[:count], summed[:count], counted)

    def _apply(self, rows: Ids, grads: Rows, updates: Clocks) -> None:
        self.before_step(rows)
        step_rows(self._table, self._state, rows=rows, grads=grads, rule=self._step.rule)
        np.add.at(self.clocks, rows, updates)


@njit(nogil=True, cache=True)
def _gather(table, rows, out):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        for d in range(table.shape[1]):
            out[i, d] = table[rows[i], d]


@njit(nogil=True, cache=True)
def _check(clocks, rows, seen, staleness, stale, gaps):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(rows.size):
        if seen[i] == ANYHOW:
            stale[count] = i
            count += 1
            continue
        gap = np.int64(clocks[rows[i]]) - seen[i]
        if gap > staleness:
            stale[count] = i
            count += 1
        bucket = 0
        while gap > 0 and bucket < gaps.size - 1:
            bucket += 1
            gap >>= 1
        gaps[bucket] += 1
    return count

"""The owner of rows: primaries, which are always up to date, and their clocks (HET-GMP 5.3). Decisions alone, no IO.

A clock counts the updates of a primary: those of its own worker, and those that others push. A staleness of 0 is synchronous training: what all workers
push in a round is summed per row and becomes one optimizer step when the first of them pulls. The caller lets nobody pull before all have pushed.
"""

import numpy as np
from numba import njit

from htrain.errors import DataError
from htrain.sync.gmp.messages import ANYHOW, Answer, Clocks, Request, Rows
from htrain.sync.index import find, insert, new_index
from htrain.sync.row_steps import SparseStep, step_in_place
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
        rows = self._checked(request)
        count = int(request.counts[0])
        self._push(rows[:count], request.gradients, request.clocks[:count])

    def pull(self, request: Request) -> Answer:
        """Rows that are fetched, and those checked that are behind their primary by more than the staleness."""
        self._end_round()
        rows = self._checked(request)
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
            distinct, summed, counted = np.empty_like(rows), np.empty_like(grads), np.empty_like(updates)
            count = _sum(rows, grads, updates=updates, index=new_index(rows.size), distinct=distinct, summed=summed, counted=counted)  # fmt: skip
            self._apply(distinct[:count], summed[:count], counted[:count])

    def _apply(self, rows: Ids, grads: Rows, updates: Clocks) -> None:
        step = self._step
        _apply(self._table, self._state, clocks=self.clocks, rows=rows, grads=grads, updates=updates, step=step.code, lr=step.lr, eps=step.eps)  # fmt: skip

    def _checked(self, request: Request) -> Ids:
        """The rows of a request that holds together."""
        counts = request.counts
        if counts.shape != (3,) or counts.min(initial=0) < 0:
            raise DataError(f"a worker's request has the counts {counts.tolist()}, want three counts")
        pushed, fetched, checked = (int(n) for n in counts)
        wanted = (pushed + fetched + checked,), (pushed + checked,), (pushed, self._table.shape[1])
        seen = request.keys.shape, request.clocks.shape, request.gradients.shape
        if seen != wanted:
            raise DataError(f"a worker's request brings keys, clocks and gradients {seen}, want {wanted}")
        rows = request.keys.astype(np.int64)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self._table):
            bad = rows[(rows < 0) | (rows >= len(self._table))][0]
            raise DataError(f"a worker asks for row {bad}, this owner holds {len(self._table)}")
        return rows


@njit(nogil=True, cache=True)
def _gather(table, rows, out):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        for d in range(table.shape[1]):
            out[i, d] = table[rows[i], d]


@njit(nogil=True, cache=True)
def _apply(table, state, clocks, rows, grads, updates, step, lr, eps):  # type: ignore[no-untyped-def]
    for i in range(rows.size):
        row = rows[i]
        step_in_place(table[row], grads[i], state=state[row], kind=step, lr=lr, eps=eps)
        clocks[row] += updates[i]


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


@njit(nogil=True, cache=True)
def _sum(rows, grads, updates, index, distinct, summed, counted):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(rows.size):
        at = find(index, rows[i])
        if at < 0:
            at = count
            insert(index, rows[i], at)
            distinct[at], counted[at] = rows[i], updates[i]
            for d in range(grads.shape[1]):
                summed[at, d] = grads[i, d]
            count += 1
            continue
        counted[at] += updates[i]
        for d in range(grads.shape[1]):
            summed[at, d] += grads[i, d]
    return count

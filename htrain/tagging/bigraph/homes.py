"""The worker that owns each row: the one whose batches use it most, as far as rows are to be balanced.

A row that the batches of several workers use as good as alike costs as much on any of them, but whoever owns it serves it to the others: such rows go to the
worker that serves least, or one of them would serve all the rows that everybody uses.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from htrain.tagging.bigraph.chunks import in_chunks, in_chunks_of_edges
from htrain.tagging.bigraph.graph import Level, Longs, counts_of

_OFTEN = 128  # readers of a row that several workers may use alike: of fewer, one use makes a difference
_ALIKE = 0.01  # of the probability that a batch uses a row: less makes no difference


def homes_of(level: Level, part: Longs, probability: NDArray[np.float32], *, num_workers: int, most: int) -> Longs:
    """home[x], int32[m], no worker with more than `most` rows: those leave a worker that would have more whose absence costs its batches least.

    Ties go to the worker with the lowest number. Requires: num_workers * most >= m.
    """
    home = np.empty(level.num_rows, np.int32)
    in_chunks_of_edges(level.row_starts, partial(_find_users, level, part, num_workers, home))
    num_often = level.num_rows_read_by(max(_OFTEN, num_workers))
    _share_out(counts_of(level, part, num_workers, num_often), probability, home)
    load = np.bincount(home, minlength=num_workers)
    while load.max() > most:
        crowded = int(load.argmax())
        rows = np.flatnonzero(home == crowded)
        target, uses = np.empty(len(rows), np.int32), np.empty((2, len(rows)), np.int32)
        in_chunks(
            len(rows),
            partial(_find_others, level, part, OtherHomes(rows, load < most, crowded, target, uses)),
            num_edges=len(level.rows) * len(rows) / level.num_rows,
        )
        used = probability[np.minimum(uses, len(probability) - 1)]
        order = np.argsort(used[0] - used[1], kind="stable")[: load[crowded] - most]
        for worker in np.flatnonzero(load < most):
            moved = rows[order[target[order] == worker]][: most - load[worker]]
            home[moved] = worker
            load[worker] += len(moved)
            load[crowded] -= len(moved)
    return home


@njit(nogil=True, cache=True)
def _share_out(counts, probability, home):  # type: ignore[no-untyped-def]
    """Give the first rows to those who serve least, of the workers whose batches use them as good as most."""
    num_workers, last = counts.shape[1], probability.size - 1
    served = np.zeros(num_workers)
    for x in range(counts.shape[0]):
        most = probability[min(counts[x, home[x]], last)]
        total, best = 0.0, home[x]
        for i in range(num_workers):
            used = probability[min(counts[x, i], last)]
            total += used
            if used >= (1 - _ALIKE) * most and served[i] < served[best]:
                best = i
        home[x] = best
        served[best] += total - probability[min(counts[x, best], last)]


@njit(nogil=True, cache=True)
def _find_users(level, part, num_workers, home, begin, end):  # type: ignore[no-untyped-def]
    """The worker that uses each row most; one that nobody uses is dealt out."""
    counts = np.zeros(num_workers, np.int64)
    row_starts, readers = level.row_starts, level.readers
    for x in range(begin, end):
        counts[:] = 0
        for e in range(row_starts[x], row_starts[x + 1]):
            counts[part[readers[e]]] += 1
        best = x % num_workers if row_starts[x] == row_starts[x + 1] else 0
        for i in range(num_workers):
            if counts[i] > counts[best]:
                best = i
        home[x] = best


class OtherHomes(NamedTuple):
    """For rows of a crowded worker: target[j], the open worker that uses row rows[j] most, and by how many samples the crowded one and that one use it."""

    rows: Longs
    is_open: NDArray[np.bool_]
    crowded: int
    target: NDArray[np.int32]
    uses: NDArray[np.int32]


@njit(nogil=True, cache=True)
def _find_others(level, part, others, begin, end):  # type: ignore[no-untyped-def]
    num_workers = others.is_open.size
    counts = np.zeros(num_workers, np.int32)
    row_starts, readers = level.row_starts, level.readers
    for j in range(begin, end):
        counts[:] = 0
        for e in range(row_starts[others.rows[j]], row_starts[others.rows[j] + 1]):
            counts[part[readers[e]]] += 1
        best = -1
        for step in range(num_workers):  # where nobody else uses the rows, they are dealt out
            i = (j + step) % num_workers
            if others.is_open[i] and (best < 0 or counts[i] > counts[best]):
                best = i
        others.target[j], others.uses[0, j], others.uses[1, j] = best, counts[others.crowded], counts[best]

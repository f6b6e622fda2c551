"""The worker that owns each row: the one on which most of its cost is kept (`htrain.tagging.bigraph.links`), as far as rows are to be balanced. On one host
that is the one whose batches use it most.

A row that the batches of several workers use as good as alike costs as much on any of them, but whoever owns it serves it to the others: such rows go to the
worker that serves least, or one of them would serve all the rows that everybody uses.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.tagging.bigraph.chunks import in_chunks, in_chunks_of_edges
from htrain.tagging.bigraph.graph import Floats, Level, Longs, counts_of
from htrain.tagging.bigraph.links import Links, find_kept

_OFTEN = 128  # readers of a row that several workers may use alike: of fewer, one use makes a difference
_ALIKE = 0.01  # of the probability that a batch uses a row: less makes no difference


def homes_of(level: Level, part: Longs, probability: NDArray[np.float32], *, links: Links, most: int) -> Longs:
    """home[x], int32[m], no worker with more than `most` rows: those leave a worker that would have more whose absence costs batches least.

    Ties go to the worker with the lowest number. Requires: workers * most >= m.
    """
    home, num_workers = np.empty(level.num_rows, np.int32), len(links.host_of)
    in_chunks_of_edges(level.row_starts, partial(_find_users, level, part, Kept(probability, links), home))
    num_often = level.num_rows_read_by(max(_OFTEN, num_workers))
    _share_out(counts_of(level, part, num_workers, num_often), Kept(probability, links), home)
    load = np.bincount(home, minlength=num_workers)
    while load.max() > most:
        crowded = int(load.argmax())
        rows = np.flatnonzero(home == crowded)
        target, losses = np.empty(len(rows), np.int32), np.empty(len(rows))
        in_chunks(
            len(rows),
            partial(
                _find_others,
                level,
                part,
                Kept(probability, links),
                OtherHomes(rows, load < most, crowded, target, losses),
            ),
            num_edges=len(level.rows) * len(rows) / level.num_rows,
        )
        order = np.argsort(losses, kind="stable")[: load[crowded] - most]
        for worker in np.flatnonzero(load < most):
            moved = rows[order[target[order] == worker]][: most - load[worker]]
            home[moved] = worker
            load[worker] += len(moved)
            load[crowded] -= len(moved)
    return home


class Kept(NamedTuple):
    """What `find_kept` goes by."""

    probability: NDArray[np.float32]
    links: Links


@njit(nogil=True, cache=True)
def _share_out(counts, by, home):  # type: ignore[no-untyped-def]
    """Give the first rows to those who serve least, of the workers on which as good as most is kept."""
    probability, num_workers = by.probability, counts.shape[1]
    served, kept = np.zeros(num_workers), np.empty(num_workers)
    for x in range(counts.shape[0]):
        find_kept(counts[x], probability, by.links, kept)
        total, best, most = 0.0, home[x], kept[home[x]]
        for i in range(num_workers):
            total += probability[min(counts[x, i], probability.size - 1)]
            if kept[i] >= (1 - _ALIKE) * most and served[i] < served[best]:
                best = i
        home[x] = best
        served[best] += total - probability[min(counts[x, best], probability.size - 1)]


@njit(nogil=True, cache=True)
def _find_users(level, part, by, home, begin, end):  # type: ignore[no-untyped-def]
    """The worker on which most of each row is kept, of equal ones that which uses it most; a row that nobody uses is dealt out."""
    num_workers = by.links.host_of.size
    counts, kept = np.zeros(num_workers, np.int64), np.empty(num_workers)
    row_starts, readers = level.row_starts, level.readers
    for x in range(begin, end):
        counts[:] = 0
        for e in range(row_starts[x], row_starts[x + 1]):
            counts[part[readers[e]]] += 1
        find_kept(counts, by.probability, by.links, kept)
        best = x % num_workers if row_starts[x] == row_starts[x + 1] else 0
        for i in range(num_workers):
            if kept[i] > kept[best] or (kept[i] == kept[best] and counts[i] > counts[best]):
                best = i
        home[x] = best


class OtherHomes(NamedTuple):
    """For rows of a crowded worker: target[j], the open worker on which most of row rows[j] is kept, and losses[j], how much less that is."""

    rows: Longs
    is_open: NDArray[np.bool_]
    crowded: int
    target: NDArray[np.int32]
    losses: Floats


@njit(nogil=True, cache=True)
def _find_others(level, part, by, others, begin, end):  # type: ignore[no-untyped-def]
    rows, is_open, crowded, target, losses = others
    num_workers = is_open.size
    counts, kept = np.zeros(num_workers, np.int64), np.empty(num_workers)
    row_starts, readers = level.row_starts, level.readers
    for j in range(begin, end):
        counts[:] = 0
        for e in range(row_starts[rows[j]], row_starts[rows[j] + 1]):
            counts[part[readers[e]]] += 1
        find_kept(counts, by.probability, by.links, kept)
        best = -1
        for step in range(num_workers):  # where nobody else uses the rows, they are dealt out
            i = (j + step) % num_workers
            if is_open[i] and (
                best < 0 or kept[i] > kept[best] or (kept[i] == kept[best] and counts[i] > counts[best])
            ):
                best = i
        target[j], losses[j] = best, kept[crowded] - kept[best]

"""The bigraph of samples and embedding rows (HET-GMP 5.1), and its coarser levels.

A level is the same graph with vertices that stand for many samples: `weight[v]` of them, which use a row `mult[e]` times. Rows that one vertex alone reads are
left out of a coarser level: whatever that vertex's worker is, they can be there. The rows of a level are numbered by falling number of readers, so that what
is read often lies close together, and a comparison of numbers says which rows many read.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.tagging.bigraph.chunks import Longs, in_chunks, in_chunks_of_edges

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
_NONE: Ints = np.empty(0, np.int32)


class Level(NamedTuple):
    """Samples, or clusters of them, and the rows that they use.

    Vertex v uses the rows rows[starts[v]:starts[v+1]], each mult[e] times, or once where `mult` is empty; row x is read by the vertices
    readers[row_starts[x]:row_starts[x+1]], as many times as `times` says, or once. No row has more readers than the one before it.
    """

    starts: Longs
    rows: Ints
    mult: Ints
    weight: Ints
    row_starts: Longs
    readers: Ints
    times: Ints

    @property
    def num_vertices(self) -> int:
        """Samples or clusters."""
        return len(self.starts) - 1

    @property
    def num_rows(self) -> int:
        """Rows of the level."""
        return len(self.row_starts) - 1

    def num_rows_read_by(self, num_readers: int) -> int:
        """How many rows, the first ones, have so many readers or more."""
        return int(np.searchsorted(-np.diff(self.row_starts), -num_readers, side="right"))


@dataclass(frozen=True)
class Bigraph:
    """Sample s uses the rows rows[starts[s]:starts[s+1]], each once; rows are numbered from 0 to num_rows - 1.

    `starts`: int64[n+1], `rows`: int32[E].
    """

    starts: Longs
    rows: Ints
    num_rows: int

    def __post_init__(self) -> None:
        """Raises ValueError for arrays that are no such graph."""
        if self.starts.ndim != 1 or len(self.starts) < 1 or self.starts[0] != 0 or self.starts[-1] != len(self.rows):
            raise ValueError(f"starts: want int64[n+1] from 0 to the {len(self.rows)} edges")
        if (np.diff(self.starts) < 0).any():
            raise ValueError("starts: they fall")
        if len(self.rows) and not 0 <= self.rows.min() <= self.rows.max() < self.num_rows:
            raise ValueError(
                f"rows: from {self.rows.min()} to {self.rows.max()}, want numbers from 0 to {self.num_rows - 1}"
            )

    @property
    def num_samples(self) -> int:
        """n."""
        return len(self.starts) - 1

    @cached_property
    def row_order(self) -> Ints:
        """The row of the graph that each row of `level` is."""
        return by_falling(self._num_uses)

    @cached_property
    def level(self) -> Level:
        """The finest level: each vertex is a sample."""
        names = np.empty(self.num_rows, np.int32)
        names[self.row_order] = np.arange(self.num_rows, dtype=np.int32)
        rows = np.empty_like(self.rows)
        in_chunks(len(rows), partial(_name_all, self.rows, names, rows), num_edges=len(rows))
        row_starts, readers, _ = transposed(self.starts, rows, _NONE, self._num_uses[self.row_order])
        weight = np.ones(self.num_samples, np.int32)
        return Level(self.starts, rows, _NONE, weight, row_starts=row_starts, readers=readers, times=_NONE)

    @cached_property
    def _num_uses(self) -> Ints:
        """Of each row."""
        return uses_of(self.rows, self.num_rows)

    def of_samples(self, samples: Longs) -> "Bigraph":
        """The graph of some of the samples, in their order, and of the rows that they use, which are numbered anew."""
        lengths = np.diff(self.starts)[samples]
        starts = np.append(0, np.cumsum(lengths))
        rows = _edges_of(self.starts, self.rows, samples, starts)
        names = np.zeros(self.num_rows, np.int32)
        names[rows] = 1
        num_rows = int(names.sum())
        return Bigraph(starts, (np.cumsum(names, dtype=np.int32) - 1)[rows], num_rows)


@njit(nogil=True, cache=True)
def _edges_of(starts, rows, samples, new_starts):  # type: ignore[no-untyped-def]
    found = np.empty(new_starts[-1], np.int32)
    for i in range(samples.size):
        first = starts[samples[i]]
        for j in range(new_starts[i + 1] - new_starts[i]):
            found[new_starts[i] + j] = rows[first + j]
    return found


@njit(nogil=True, cache=True)
def by_falling(counts):  # type: ignore[no-untyped-def]
    """The places of counts from the largest to the smallest, those of equal ones ascending: int32."""
    most = counts.max() if counts.size else 0
    free = np.zeros(most + 2, np.int64)
    for count in counts:
        free[most - count + 1] += 1
    for i in range(most + 1):
        free[i + 1] += free[i]
    order = np.empty(counts.size, np.int32)
    for i in range(counts.size):
        place = most - counts[i]
        order[free[place]] = i
        free[place] += 1
    return order


@njit(nogil=True, cache=True)
def _name_all(rows, names, named, begin, end):  # type: ignore[no-untyped-def]
    for e in range(begin, end):
        named[e] = names[rows[e]]


def uses_of(rows: Ints, num_rows: int) -> Ints:
    """How many edges each row has."""
    of_ranges: list[Ints] = []
    in_chunks(
        len(rows),
        lambda begin, end: of_ranges.append(_count_uses(rows[begin:end], num_rows)),
        num_edges=len(rows),
    )
    return cast(Ints, sum(of_ranges))


@njit(nogil=True, cache=True)
def _count_uses(rows, num_rows):  # type: ignore[no-untyped-def]
    uses = np.zeros(num_rows, np.int32)
    for x in rows:
        uses[x] += 1
    return uses


def transposed(starts: Longs, rows: Ints, mult: Ints, uses: Ints) -> tuple[Longs, Ints, Ints]:
    """Who reads each row, which has uses[x] edges: row_starts[m+1], readers[E] ascending within a row, and times[E], which is empty where `mult` is."""
    row_starts = np.append(0, np.cumsum(uses, dtype=np.int64))
    readers, times = np.empty(len(rows), np.int32), np.empty(len(mult), np.int32)
    in_chunks_of_edges(row_starts, partial(_place_readers, (starts, rows, mult), row_starts, readers, times))
    return row_starts, readers, times


@njit(nogil=True, cache=True)
def _place_readers(edges, row_starts, readers, times, begin, end):  # type: ignore[no-untyped-def]
    """Of the rows from `begin` to `end` - 1: all edges are read, and only theirs written."""
    starts, rows, mult = edges
    free = row_starts[begin:end].copy()
    for v in range(starts.size - 1):
        for e in range(starts[v], starts[v + 1]):
            if begin <= rows[e] < end:
                place = free[rows[e] - begin]
                free[rows[e] - begin] += 1
                readers[place] = v
                if mult.size:
                    times[place] = mult[e]


def contracted(level: Level, cluster: Longs, num_clusters: int) -> Level:
    """The level whose vertices are the clusters: cluster[v] is that of vertex v."""
    members = np.argsort(cluster, kind="stable")
    member_starts = np.searchsorted(cluster[members], np.arange(num_clusters + 1))
    starts, rows, mult = _merged(level, member_starts, members)
    starts, rows, mult, uses = _shared(starts, rows, mult, uses_of(rows, level.num_rows))
    weight = np.bincount(cluster, weights=level.weight, minlength=num_clusters).astype(np.int32)
    return Level(starts, rows, mult, weight, *transposed(starts, rows, mult, uses))


@njit(nogil=True, cache=True)
def _merged(level, member_starts, members):  # type: ignore[no-untyped-def]
    """The rows of each cluster, once each, in the order in which its members name them."""
    starts, rows, mult, _, row_starts, _, _ = level
    num_clusters = member_starts.size - 1
    new_starts = np.zeros(num_clusters + 1, np.int64)
    new_rows, new_mult = np.empty(rows.size, np.int32), np.empty(rows.size, np.int32)
    place_of = np.full(row_starts.size - 1, -1, np.int64)
    end = 0
    for cluster in range(num_clusters):
        begin = end
        for j in range(member_starts[cluster], member_starts[cluster + 1]):
            for e in range(starts[members[j]], starts[members[j] + 1]):
                times = mult[e] if mult.size else 1
                if place_of[rows[e]] >= begin:
                    new_mult[place_of[rows[e]]] += times
                else:
                    place_of[rows[e]] = end
                    new_rows[end], new_mult[end] = rows[e], times
                    end += 1
        new_starts[cluster + 1] = end
    return new_starts, new_rows[:end].copy(), new_mult[:end].copy()


@njit(nogil=True, cache=True)
def _shared(starts, rows, mult, uses):  # type: ignore[no-untyped-def]
    """Without the rows that one vertex alone uses; the others are numbered by falling number of readers, which is told."""
    order = by_falling(uses)
    name, num_names = np.full(uses.size, -1, np.int32), 0
    for x in order:
        if uses[x] > 1:
            name[x] = num_names
            num_names += 1
    new_starts, end = np.zeros(starts.size, np.int64), 0
    for v in range(starts.size - 1):
        for e in range(starts[v], starts[v + 1]):
            if name[rows[e]] >= 0:
                rows[end], mult[end] = name[rows[e]], mult[e]
                end += 1
        new_starts[v + 1] = end
    return new_starts, rows[:end].copy(), mult[:end].copy(), uses[order[:num_names]]


def counts_of(level: Level, part: Ints, num_parts: int, num_rows: int) -> Ints:
    """counts[x, p]: how many samples of part p use row x, of the first rows; vertices of part -1 do not count."""
    counts = np.zeros((num_rows, num_parts), np.int32)
    in_chunks_of_edges(level.row_starts[: num_rows + 1], lambda begin, end: _count_all(level, part, counts, begin, end))
    return counts


@njit(nogil=True, cache=True)
def _count_all(level, part, counts, begin, end):  # type: ignore[no-untyped-def]
    _, _, _, _, row_starts, readers, times = level
    for x in range(begin, end):
        for e in range(row_starts[x], row_starts[x + 1]):
            if part[readers[e]] >= 0:
                counts[x, part[readers[e]]] += times[e] if times.size else 1

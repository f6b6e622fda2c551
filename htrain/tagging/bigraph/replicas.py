"""Which rows each worker holds a replica of, beside its own: 2D partitioning, a vertex-cut (HET-GMP 5.2, equation 6).

The rows that are not its own with the largest count(x, i), until its budget is spent. A row has one primary, where it lives, and any number of secondaries.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from htrain.tagging.bigraph.fetches import use_probability
from htrain.tagging.bigraph.graph import Bigraph, Floats, Ints, Longs


@dataclass(frozen=True)
class Replicas:
    """rows[i]: those of which worker i has a secondary, ascending; saved[i, j]: how many of the rows of worker j that a batch of worker i needs it then has."""

    rows: tuple[Ints, ...]
    saved: Floats


def replicas(
    graph: Bigraph, samples: Longs, homes: Longs, *, num_workers: int, batch_size: int, num_rows_each: int
) -> Replicas:
    """At most `num_rows_each` secondaries on each worker, of rows that its samples use; ties go to the row with the lowest number."""
    found, saved = [], np.zeros((num_workers, num_workers))
    for worker in range(num_workers):
        mine = np.flatnonzero(samples == worker)
        counts = _counts(graph.starts, graph.rows, mine, graph.num_rows)
        counts[homes == worker] = 0
        rows = _largest(counts, num_rows_each)
        probability = use_probability(len(mine), batch_size)
        used = probability[np.minimum(counts[rows], len(probability) - 1)]
        saved[worker] = np.bincount(homes[rows], weights=used, minlength=num_workers)
        found.append(rows.astype(np.int32))
    return Replicas(tuple(found), saved)


def _largest(counts: Ints, number: int) -> Longs:
    """The rows of the `number` largest counts above 0, ascending."""
    if number <= 0:
        return np.empty(0, np.int64)
    used = np.flatnonzero(counts)
    if len(used) > number:
        least = np.partition(counts[used], len(used) - number)[len(used) - number]
        above = used[counts[used] > least]
        used = np.concatenate([above, used[counts[used] == least][: number - len(above)]])
    return np.sort(used)


@njit(nogil=True, cache=True)
def _counts(starts, rows, samples, num_rows):  # type: ignore[no-untyped-def]
    counts = np.zeros(num_rows, np.int32)
    for s in samples:
        for e in range(starts[s], starts[s + 1]):
            counts[rows[e]] += 1
    return counts

"""Which rows each worker holds a replica of, beside its own: 2D partitioning, a vertex-cut (HET-GMP 5.2, equation 6).

The rows that are not its own with the largest count(x, i), until its budget is spent; where workers stand on several hosts, those that cost its batches most.
A row has one primary, where it lives, and any number of secondaries.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.tagging.bigraph.fetches import use_probability
from htrain.tagging.bigraph.graph import Bigraph, Floats, Ints, Longs
from htrain.tagging.bigraph.links import Links, costs_of_pairs


@dataclass(frozen=True)
class Replicas:
    """rows[i]: those of which worker i has a secondary, ascending; saved[i, j]: how many of the rows of worker j that a batch of worker i needs it then has."""

    rows: tuple[Ints, ...]
    saved: Floats


def replicas(
    graph: Bigraph, samples: Longs, homes: Longs, *, links: Links, batch_size: int, num_rows_each: int
) -> Replicas:
    """At most `num_rows_each` secondaries on each worker, of rows that its samples use; ties go to the row with the lowest number."""
    costs, num_workers = costs_of_pairs(links), len(links.host_of)
    found, saved = [], np.zeros((num_workers, num_workers))
    for worker in range(num_workers):
        mine = np.flatnonzero(samples == worker)
        counts = _counts(graph.starts, graph.rows, mine, graph.num_rows)
        counts[homes == worker] = 0
        probability = use_probability(len(mine), batch_size)
        rows = np.flatnonzero(counts)
        used = probability[np.minimum(counts[rows], len(probability) - 1)]
        places = _largest((used * costs[worker][homes[rows]], counts[rows]), num_rows_each)
        rows, used = rows[places], used[places]
        saved[worker] = np.bincount(homes[rows], weights=used, minlength=num_workers)
        found.append(rows.astype(np.int32))
    return Replicas(tuple(found), saved)


def _largest(keys: tuple[NDArray[Any], ...], number: int) -> Longs:
    """The places of the `number` largest of the first keys, ascending; the next keys choose among equal ones, and then the lowest place."""
    if not keys or len(keys[0]) <= number:
        return np.arange(len(keys[0]) if keys else number)
    if number <= 0:
        return np.empty(0, np.int64)
    key = keys[0]
    least = np.partition(key, len(key) - number)[len(key) - number]
    above, equal = np.flatnonzero(key > least), np.flatnonzero(key == least)
    chosen = _largest(tuple(other[equal] for other in keys[1:]), number - len(above))
    return np.sort(np.concatenate([above, equal[chosen]]))


@njit(nogil=True, cache=True)
def _counts(starts, rows, samples, num_rows):  # type: ignore[no-untyped-def]
    counts = np.zeros(num_rows, np.int32)
    for s in samples:
        for e in range(starts[s], starts[s + 1]):
            counts[rows[e]] += 1
    return counts

"""Which worker gets an example that a partition has not seen: the one that owns most of its rows, under a balance that holds at any time (HET-GMP 5.2).

Examples come one after another and stay where they are put. Nobody may have more than a slack times its even share of those that have come so far, so that
a stream that is cut anywhere is balanced.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

from collections.abc import Callable

import numpy as np

from htrain.data.edges import edges_of
from htrain.data.numbering import Numbering
from htrain.data.numbering_loops import Longs
from htrain.data.rows import Rows
from htrain.data.schema import Schema
from htrain.errors import DataError
from htrain.jit import njit

SLACK = 1.03  # times the even share of the examples that have come so far
Assign = Callable[[Rows], Longs]  # the workers of examples that come one chunk after another


def as_partitioned(samples: Longs, *, name: str) -> Assign:
    """Workers as a partition has them, example by example. What it returns raises DataError where more come than were partitioned."""
    taken = 0

    def assign(rows: Rows) -> Longs:
        nonlocal taken
        taken += rows.count
        if taken > len(samples):
            raise DataError(
                f"{name}: has more examples than the {len(samples):,} that were partitioned: partition it again"
            )
        return samples[taken - rows.count : taken].astype(np.int64)

    return assign


def by_known_rows(numbering: Numbering, schema: Schema) -> Assign:
    """Workers by the rows that a partition has seen: who owns most of an example's, of those who may have more; among equals who has fewest examples.

    Examples have the new numbers of the numbering.
    """
    loads, sections = np.zeros(numbering.num_workers, np.int64), numbering.sections()

    def assign(rows: Rows) -> Longs:
        workers = np.empty(rows.count, np.int64)
        _assign(*edges_of(rows, schema, numbering.tables), sections, loads, workers)
        return workers

    return assign


@njit(nogil=True, cache=True)
def _assign(starts, keys, sections, loads, workers):  # type: ignore[no-untyped-def]
    num_workers, total = loads.size, loads.sum()
    known = np.zeros(num_workers, np.int64)
    for s in range(workers.size):
        known[:] = 0
        mine = np.sort(keys[starts[s] : starts[s + 1]])
        for i in range(mine.size):
            section = np.searchsorted(sections, mine[i], side="right") - 1
            if section & 1 == 0 and (i == 0 or mine[i] != mine[i - 1]):
                known[(section >> 1) % num_workers] += 1
        total += 1
        most = np.ceil(SLACK * total / num_workers)
        best = np.argmin(loads)
        for k in range(num_workers):
            if loads[k] < most and (known[k] > known[best] or (known[k] == known[best] and loads[k] < loads[best])):
                best = k
        loads[best] += 1
        workers[s] = best

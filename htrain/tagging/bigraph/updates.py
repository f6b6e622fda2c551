"""How often rows are updated: what compares the clocks of two rows (HET-GMP 5.3).

Gradients of a batch are summed before they travel, so that a worker brings a row one update for each batch that uses it: in the mean p(c) of
`htrain.tagging.bigraph.fetches`, where c of the worker's samples use it; and all workers the sum.
"""

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.tagging.bigraph.chunks import in_chunks
from htrain.tagging.bigraph.fetches import Tables, use_probability
from htrain.tagging.bigraph.graph import Bigraph, Longs

_LEAST = np.float16(2**-24)  # the least that float16 has: a row that is seen is updated at times


def updates_of(graph: Bigraph, samples: Longs, *, num_workers: int, batch_size: int) -> NDArray[np.float16]:
    """float16[m]: the expected updates a step of each row, where sample s is on worker samples[s]."""
    sizes = np.bincount(samples, minlength=num_workers)
    tables = [use_probability(int(size), batch_size) for size in sizes]
    of_workers = Tables(np.concatenate(tables), np.append(0, np.cumsum([len(table) for table in tables])))
    level, sums = graph.level, np.empty(graph.num_rows, np.float32)
    in_chunks(
        graph.num_rows,
        lambda begin, end: _sum_rows(level, samples, of_workers, begin, sums[begin:end]),
        num_edges=len(graph.rows),
    )
    updates = np.empty(graph.num_rows, np.float16)
    updates[graph.row_order] = np.maximum(sums.astype(np.float16), _LEAST)
    return updates


@njit(nogil=True, cache=True)
def _sum_rows(level, samples, tables, first, sums):  # type: ignore[no-untyped-def]
    row_starts, readers, values, starts = level.row_starts, level.readers, tables.values, tables.starts
    counts = np.zeros(starts.size - 1, np.int64)
    for i in range(sums.size):
        x, total = first + i, 0.0
        for e in range(row_starts[x], row_starts[x + 1]):
            counts[samples[readers[e]]] += 1
        for e in range(row_starts[x], row_starts[x + 1]):
            k = samples[readers[e]]
            if counts[k]:
                total += values[starts[k] + min(counts[k], starts[k + 1] - starts[k] - 1)]
                counts[k] = 0
        sums[i] = total

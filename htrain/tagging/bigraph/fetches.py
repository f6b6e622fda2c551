"""What a partition costs: rows that a worker's batch needs and the worker does not own (HET-GMP 5.2, Table 3).

For a worker i of n_i samples, of which count(x, i) use row x, a batch of B of its samples, drawn without replacement, uses the row with probability

    p(c) = 1 - C(n_i - c, B) / C(n_i, B)        c = count(x, i)

F_B is the mean over workers of the sum of p over the rows that are not theirs: the distinct remote rows of a batch. F1 is the remote uses of a sample, which
no batch merges: the sum of count(x, i) over all workers and the rows that are not theirs, over n.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.tagging.bigraph.chunks import in_chunks
from htrain.tagging.bigraph.graph import Bigraph, Floats, Longs

_CERTAIN = 1e-7  # a row that a batch misses less often is in every batch
_BLOCK, _SUMS = 256, 16  # rows of a block; sums of every 16th block: they are the same for any number of threads


def use_probability(num_samples: int, batch_size: int) -> NDArray[np.float32]:
    """p(c) for c = 0, 1, ... up to the first that is 1: of all larger ones, too."""
    batch = min(batch_size, num_samples)
    if batch == 0:
        return np.zeros(1, np.float32)
    # C(n - c, B) / C(n, B) = prod over j < c of (n - B - j) / (n - j)
    j = np.arange(num_samples - batch, dtype=np.float64)
    missed = np.exp(np.cumsum(np.log((num_samples - batch - j) / (num_samples - j))))
    missed = missed[missed > _CERTAIN]
    return np.concatenate([[0.0], 1 - missed, [1.0]]).astype(np.float32)


@dataclass(frozen=True)
class Fetches:
    """What a partition's batches fetch: `rows[i, j]` is how many distinct rows of worker j a batch of worker i needs in the mean."""

    rows: Floats
    uses: Floats  # [i, j]: uses of worker j's rows by the samples of worker i, over all samples
    num_samples: int

    @property
    def per_batch(self) -> float:
        """F_B."""
        return float(_remote(self.rows).sum()) / len(self.rows)

    @property
    def per_sample(self) -> float:
        """F1."""
        return float(_remote(self.uses).sum()) / max(1, self.num_samples)


def _remote(of: Floats) -> Floats:
    return of - np.diag(np.diag(of))


def fetches(graph: Bigraph, samples: Longs, homes: Longs, *, num_workers: int, batch_size: int) -> Fetches:
    """What batches of `batch_size` fetch where sample s is on worker samples[s] and row x on worker homes[x]."""
    sizes = np.bincount(samples, minlength=num_workers)
    tables = [use_probability(int(size), batch_size) for size in sizes]
    starts = np.append(0, np.cumsum([len(table) for table in tables]))
    level, homes = graph.level, homes[graph.row_order]
    sums = np.zeros((_SUMS, 2, num_workers, num_workers))
    of_workers = Tables(np.concatenate(tables), starts)
    in_chunks(
        _SUMS,
        lambda begin, end: _sum_all(level, samples, homes, of_workers, Sums(sums, begin, end)),
        num_edges=len(graph.rows),
    )
    rows, uses = sums.sum(axis=0)
    return Fetches(rows, uses, graph.num_samples)


class Tables(NamedTuple):
    """The probabilities of each worker, one behind the other, and where they start."""

    values: NDArray[np.float32]
    starts: Longs


class Sums(NamedTuple):
    """sums[b, 0, i, j]: the probabilities, and sums[b, 1, i, j] the uses, of the blocks of rows b, b + 16, ..., for b from `begin` to `end` - 1."""

    sums: Floats
    begin: int
    end: int


@njit(nogil=True, cache=True)
def _sum_all(level, part, homes, tables, into):  # type: ignore[no-untyped-def]
    row_starts, readers, sums = level.row_starts, level.readers, into.sums
    num_rows, num_workers = row_starts.size - 1, sums.shape[2]
    values, starts, counts = tables.values, tables.starts, np.zeros(sums.shape[2], np.int64)
    for b in range(into.begin, into.end):
        for first in range(b * _BLOCK, num_rows, _SUMS * _BLOCK):
            for x in range(first, min(num_rows, first + _BLOCK)):
                counts[:] = 0
                for e in range(row_starts[x], row_starts[x + 1]):
                    counts[part[readers[e]]] += 1
                for i in range(num_workers):
                    sums[b, 0, i, homes[x]] += values[starts[i] + min(counts[i], starts[i + 1] - starts[i] - 1)]
                    sums[b, 1, i, homes[x]] += counts[i]

"""How far data has drifted from the data that was partitioned: the rows of others that batches need, as predicted and as counted."""

import msgspec
import numpy as np

from htrain.data.numbering import Numbering
from htrain.data.numbering_loops import Longs


class Drift(msgspec.Struct, frozen=True):
    """By worker: its examples, and the distinct rows of other workers that its batches need in the mean, without those of which it has replicas.

    `predicted` is by the partition, of the data that was partitioned; `measured` of the batches that follow each other in what was packed, 0 where a worker has
    no examples.
    """

    batch_size: int
    examples: tuple[int, ...]
    predicted: tuple[float, ...]
    measured: tuple[float, ...]


class DriftCounter:
    """Counts what the batches of each worker need; a batch that is not full counts only where it is a worker's first."""

    def __init__(self, numbering: Numbering) -> None:
        """Raises DataError where the partition of the numbering has changed since it was opened."""
        workers = range(numbering.num_workers)
        self._numbering, self._sections = numbering, numbering.sections()
        self._replicas = [_keys(numbering, worker) for worker in workers]
        self._held: list[list[Longs]] = [[] for _ in workers]  # keys of the batch of each worker that is not full
        self._examples, self._remote = np.zeros(len(workers), np.int64), np.zeros(len(workers), np.int64)

    def add(self, worker: int, starts: Longs, keys: Longs) -> None:
        """More examples of a worker, as `edges_of` has them in new numbers."""
        size, begin, count = self._numbering.facts.batch_size, 0, len(starts) - 1
        while begin < count:
            taken = min(size - int(self._examples[worker]) % size, count - begin)
            self._held[worker].append(keys[starts[begin] : starts[begin + taken]])
            self._examples[worker] += taken
            begin += taken
            if self._examples[worker] % size == 0:
                self._close(worker)

    def _close(self, worker: int) -> None:
        keys = np.unique(np.concatenate(self._held[worker]))
        self._held[worker] = []
        ends = np.append(np.searchsorted(keys, self._sections[1:]), len(keys))
        of_section = np.diff(ends, prepend=0)
        own = int(of_section.reshape(-1, self._numbering.num_workers, 2)[:, worker].sum())
        replicas = self._replicas[worker]
        places = np.searchsorted(replicas, keys).clip(max=max(0, len(replicas) - 1))
        held = int((replicas[places] == keys).sum()) if len(replicas) else 0
        self._remote[worker] += len(keys) - own - held

    def found(self) -> Drift:
        """What has been counted; nothing may be added after it."""
        facts = self._numbering.facts
        for worker, count in enumerate(self._examples.tolist()):
            if 0 < count < facts.batch_size:
                self._close(worker)
        batches = np.maximum(self._examples // facts.batch_size, self._examples > 0)
        predicted = np.array(facts.rows) - np.array(facts.replicated)
        np.fill_diagonal(predicted, 0)
        return Drift(
            facts.batch_size,
            tuple(self._examples.tolist()),
            predicted=tuple(predicted.sum(axis=1).tolist()),
            measured=tuple((self._remote / np.maximum(batches, 1)).tolist()),
        )


def _keys(numbering: Numbering, worker: int) -> Longs:
    """The replicas of a worker as new rows of all tables, ascending."""
    held = numbering.secondaries(worker)
    parts = [held[name] + numbering.tables.start_of(name) for name in numbering.tables.names if name in held]
    return np.concatenate([np.zeros(0, np.int64), *parts])

"""HET-GMP's workers and owners by a partition, in one process without a network: what the tables of the paper are counted with."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from htrain.sync.gmp.counts import KINDS
from htrain.sync.gmp.owner import GmpOwner
from htrain.sync.gmp.worker import Bounds, Expected, GmpWorker
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory
from htrain.tagging.bigraph import Bigraph
from htrain.tagging.bigraph.links import one_host
from htrain.tagging.bigraph.replicas import replicas
from htrain.tagging.bigraph.updates import updates_of

Array = np.ndarray
Train = Callable[[Array, list[Array]], Array]


@dataclass(frozen=True)
class Layout:
    """Who has what: key_of[m] of the graph's rows by new numbers, worker k's from starts[k] to starts[k + 1] - 1; the examples of each worker; `secondaries`,
    the keys of each worker's replicas, ascending; and of all keys the `updates` that a step is expected to bring."""

    key_of: Array
    starts: Array
    examples: tuple[Array, ...]
    secondaries: tuple[Array, ...]
    updates: Array

    @property
    def num_workers(self) -> int:
        return len(self.examples)


def layout_of(
    graph: Bigraph, samples: Array, homes: Array, *, num_workers: int, batch: int, replicated: float
) -> Layout:
    """Where samples[s] and homes[x] say, with replicas of the share `replicated` of all rows on each worker."""
    order = np.argsort(homes, kind="stable")
    key_of = np.empty(graph.num_rows, np.int64)
    key_of[order] = np.arange(graph.num_rows)
    held = replicas(
        graph,
        samples,
        homes,
        links=one_host(num_workers),
        batch_size=batch,
        num_rows_each=int(replicated * graph.num_rows),
    )
    return Layout(
        key_of=key_of,
        starts=np.append(0, np.cumsum(np.bincount(homes, minlength=num_workers))),
        examples=tuple(np.flatnonzero(samples == worker) for worker in range(num_workers)),
        secondaries=tuple(np.sort(key_of[rows]) for rows in held.rows),
        updates=updates_of(graph, samples, num_workers=num_workers, batch_size=batch).astype(np.float32)[order],
    )


def keys_of(graph: Bigraph, layout: Layout) -> Array:
    """keys[n,F] of each sample's rows, -1 behind the last of those that have fewer than others."""
    counts = np.diff(graph.starts)
    keys = np.full((graph.num_samples, int(counts.max(initial=0))), -1, np.int64)
    keys[np.arange(keys.shape[1]) < counts[:, None]] = layout.key_of[graph.rows]
    return keys


def joint_batches(layout: Layout, batch: int, seed: int) -> Iterator[list[Array]]:
    """One epoch: a batch of samples of each worker, in another order for each seed, as far as all have one."""
    random = np.random.default_rng(seed)
    orders = [random.permutation(mine) for mine in layout.examples]
    for step in range(min(len(mine) for mine in orders) // batch):
        yield [mine[step * batch : (step + 1) * batch] for mine in orders]


class Cluster:
    """All workers, in lockstep. `table`[m,D] has the rows of all owners, by their new numbers."""

    def __init__(self, layout: Layout, table: Array, *, bounds: Bounds, step: SparseStep) -> None:
        self.table = table
        starts, k = layout.starts, layout.num_workers
        state = np.zeros((len(table), step.state_width(table.shape[1])), np.float32)
        parts = [slice(starts[i], starts[i + 1]) for i in range(k)]
        self._owners = [GmpOwner(table[own], state[own], staleness=bounds.staleness, step=step) for own in parts]
        territory = Territory(starts[:-1].tolist(), list(range(k)), [0] * k, len(table))
        self.workers = [
            GmpWorker(
                territory, table.shape[1], number=i, bounds=bounds, step=step, secondaries=layout.secondaries[i],
                expected=Expected(layout.updates[parts[i]], layout.updates[layout.secondaries[i]]),
            )
            for i in range(k)
        ]  # fmt: skip
        for worker, owner in zip(self.workers, self._owners, strict=True):
            worker.stand_beside(owner)

    def step(self, keys: Sequence[Array], train: Train) -> None:
        """All ask, all push, all pull, all write. `keys`[b,F] are those of each worker's samples; train(rows[n,D], places) gives gradients[n,D] for the
        rows of all workers one behind another, where places[b,F] of each worker are numbers of rows, or -1."""
        asked, places, first = [], [], 0
        for worker, mine in zip(self.workers, keys, strict=True):
            distinct, inverse = np.unique(mine, return_inverse=True)
            inverse = inverse.reshape(mine.shape)
            if distinct[0] < 0:
                distinct, inverse = distinct[1:], inverse - 1
            asked.append(worker.ask(distinct, inverse))
            places.append(np.where(inverse < 0, -1, inverse + first))
            first += distinct.size
        for _, requests in asked:
            for owner, request in zip(self._owners, requests, strict=True):
                owner.push(request)
        rows = [
            worker.read(slots, [owner.pull(request) for owner, request in zip(self._owners, requests, strict=True)])
            for worker, (slots, requests) in zip(self.workers, asked, strict=True)
        ]
        gradients = np.split(train(np.concatenate(rows), places), np.cumsum([len(r) for r in rows])[:-1])
        for worker, (slots, _), grads in zip(self.workers, asked, gradients, strict=True):
            worker.write(slots, grads)

    def flush(self) -> None:
        """Every update reaches its primary."""
        flushed = [worker.flush() for worker in self.workers]
        for requests in flushed:
            for owner, request in zip(self._owners, requests, strict=True):
                owner.push(request)
        for worker, requests in zip(self.workers, flushed, strict=True):
            answers = [owner.pull(request) for owner, request in zip(self._owners, requests, strict=True)]
            worker.read(np.empty(0, np.int64), answers)

    @property
    def bytes(self) -> dict[str, int]:
        """What workers and the owners of others' rows have sent each other, both ways, by kind."""
        return {kind: sum(int(w.counts.bytes[kind].sum()) for w in self.workers) for kind in KINDS}

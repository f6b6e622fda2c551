"""What HET-GMP's workers ask of each other: the protocol's own workers and owners, for rows of no width (HET-GMP 5.3; htrain.sync.gmp).

All workers take turns, in step, each with its own examples. As in a run, a worker asks for its next batch when it has read the present one and before it
writes; with a staleness of 0, and where the plan says so, when it has written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from htrain.executor.strategies.gmp import Gmp, staleness_of
from htrain.executor.strategies.strategy import cache_of
from htrain.net.names import TRAINER, role_of
from htrain.net.net import Op
from htrain.ops.asked_rows import keys_of
from htrain.ops.cache_rates import CacheRates, ShardRates
from htrain.ops.gmp import samples_of
from htrain.plan.plan import Plan
from htrain.simulation.id_sources import Ids, IdSource
from htrain.simulation.strategies.strategy import PlaysCache, Round
from htrain.sync.gmp.messages import Answer
from htrain.sync.gmp.owner import GmpOwner
from htrain.sync.gmp.worker import GmpWorker
from htrain.sync.request import Request
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory

_STEP = SparseStep("sgd", 0.0)
_RUN_OUTS = 4  # of the same replica, before more of them are like these


class PlaysGmp(PlaysCache):
    """A round is a batch of every worker. The tables of one width know nothing of the others."""

    def __init__(self, plan: Plan, source: IdSource, most_batches: int) -> None:
        super().__init__(plan, source, most_batches)
        self.tables = [_Tables(op, plan) for op in plan.train.ops if op.type == "GmpAsk"]

    @property
    def least_rounds(self) -> int:
        """A replica that every batch writes leaves, and comes anew, once in as many batches as its staleness allows."""
        bounds = [bound for tables in self.tables if isinstance(bound := tables.ask.attrs["staleness"], int)]
        return _RUN_OUTS * (1 + max(bounds, default=0))

    def rounds(self) -> Iterator[Round]:
        plan, ahead = self.plan, self.plan.options.looks_ahead
        blobs = {name: 0 for tables in self.tables for name in (*tables.ids, *tables.places)}
        feeds = [self.source.batches(plan, blobs, worker) for worker in range(self.trainers)]
        present = self._asked(feeds)
        while present:
            for tables in self.tables:
                tables.read()
            following = self._asked(feeds) if ahead else {}
            for tables in self.tables:
                tables.write()
            yield Round(1, present)
            present = following if ahead else self._asked(feeds)

    def _asked(self, feeds: Sequence[Iterator[Mapping[str, Ids]]]) -> dict[str, CacheRates]:
        """Every worker asks for its next batch; nothing where one has none."""
        batches = [next(feed, None) for feed in feeds]
        known = [batch for batch in batches if batch is not None]
        if len(known) < len(batches):
            return {}
        return {tables.name: tables.request(known) for tables in self.tables}


@dataclass(frozen=True)
class _Asked:
    """What a worker has asked for: the slots of its keys, and what owners have answered."""

    slots: Ids
    answers: list[Answer]


class _Tables:
    """The tables of one width, at all workers. `ids` and `places` are the blobs that tell what a batch needs of them.

    pairs[i,k] are the rows that worker i has pushed to owner k, fetched and had checked there so far, and of the latter those that were stale: int64[K,K,4].
    """

    def __init__(self, ask: Op, plan: Plan) -> None:
        attrs: Mapping[str, Any] = {**ask.attrs, "width": 0, "optimizer": "sgd", "lr": 0.0}
        self.ask, self._first_keys, self._tables = ask, attrs["first_keys"], attrs["place_tables"]
        self.name, *blobs = ask.inputs
        self.ids, self.places = blobs[: attrs["num_tables"]], blobs[attrs["num_tables"] :]
        *bounds, num_keys = attrs["bounds"]
        self._territory = Territory(bounds, attrs["servers"], attrs["first_rows"], num_keys)
        self._owners = [
            GmpOwner(empty := np.empty((rows, 0), np.float32), empty, staleness=staleness_of(ask), step=_STEP)
            for rows in self._num_rows()
        ]
        self.workers = [
            self._worker(replace(ask, attrs=dict(attrs)), plan, role)
            for role in plan.cluster.roles
            if role_of(role) == TRAINER
        ]
        self.pairs = np.zeros((len(self.workers), len(self._owners), 4), np.int64)
        self._counted = self._counts()
        self._asked: list[_Asked] = []
        self._read: list[_Asked] = []

    def request(self, batches: Sequence[Mapping[str, Ids]]) -> CacheRates:
        """Every worker asks for its batch; owners hear all of them before they answer."""
        slots, requests, sizes = [], [], []
        for worker, batch in zip(self.workers, batches, strict=True):
            ids, places = ([torch.from_numpy(batch[name]) for name in names] for names in (self.ids, self.places))
            found, asked = worker.ask(keys_of(ids, self._first_keys), samples_of(ids, places, self._tables))
            for owner, request in zip(self._owners, asked, strict=True):
                owner.push(request)
            slots.append(found)
            requests.append(asked)
            sizes.append([i.numel() for i in ids])
        answers = [[o.pull(request) for o, request in zip(self._owners, asked, strict=True)] for asked in requests]
        self._asked = [_Asked(*each) for each in zip(slots, answers, strict=True)]
        self.pairs += [
            [(*request.counts, answer.stale.size) for request, answer in zip(*each, strict=True)]
            for each in zip(requests, answers, strict=True)
        ]
        return self._rates(np.array(sizes).mean(0).tolist(), requests, answers)

    def read(self) -> None:
        """Every worker reads the rows that it has asked for."""
        self._read, self._asked = self._asked, []
        for worker, asked in zip(self.workers, self._read, strict=True):
            worker.read(asked.slots, asked.answers)

    def write(self) -> None:
        """Every worker writes what it has read."""
        for worker, asked in zip(self.workers, self._read, strict=True):
            worker.write(asked.slots, np.empty((asked.slots.size, 0), np.float32))

    def _rates(
        self, sizes: list[float], requests: Sequence[Sequence[Request]], answers: Sequence[Sequence[Answer]]
    ) -> CacheRates:
        before, self._counted = self._counted, self._counts()
        hits, fetched = (self._counted - before) / len(self.workers)
        shards = tuple(
            _shard(*both) for both in zip(zip(*requests, strict=True), zip(*answers, strict=True), strict=True)
        )
        return CacheRates(
            ids=dict(zip(self.ids, sizes, strict=True)), hits=float(hits), cold=0.0, loaded=float(fetched), evicted=float(fetched), shards=shards,
        )  # fmt: skip

    def _worker(self, ask: Op, plan: Plan, role: str) -> GmpWorker:
        half = cache_of(plan, role)
        assert isinstance(half, Gmp)
        worker = half.worker(ask)
        if worker.number >= 0:
            worker.stand_beside(self._owners[worker.number])
        return worker

    def _num_rows(self) -> list[int]:
        """The rows of each owner: its shards lie one behind the other."""
        territory, used = self._territory, [0] * self._territory.num_servers
        for server, rows in zip(territory.servers.tolist(), np.diff(territory.bounds).tolist(), strict=True):
            used[server] += rows
        return used

    def _counts(self) -> np.ndarray:
        """Rows that were here, and that were fetched for a batch, of all workers."""
        counts = [worker.counts for worker in self.workers]
        return np.array([(c.own + c.replicas, int(c.fetched.sum())) for c in counts]).sum(0)


def _shard(requests: Sequence[Request], answers: Sequence[Answer]) -> ShardRates:
    """What an owner was asked and answered, in the mean over all workers; the one beside it asks for nothing."""
    pushed, fetched, checked = np.array([request.counts for request in requests]).mean(0).tolist()
    stale = sum(answer.stale.size for answer in answers) / len(answers)
    return ShardRates(fetched=fetched, pushed=pushed, checked=checked, stale=stale)


PLAYS = PlaysGmp

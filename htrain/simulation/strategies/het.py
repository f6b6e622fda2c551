"""What HET's caches ask for: the protocol's own clients and servers, for rows of no width (HET 3; htrain.sync.het).

All trainers take turns, in step. As in a run, a trainer has told its caches of the batches that it reads ahead, and asks for the next one when it
has read the present one and before it writes; with a staleness of 0, and where the plan says so, when it has written.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from htrain.net.net import Op, numel
from htrain.ops.cache_rates import CacheRates, ShardRates
from htrain.ops.het import UNBOUNDED as NO_BOUND
from htrain.plan.plan import Plan
from htrain.simulation.id_sources import Ids
from htrain.simulation.numbering import Numbering
from htrain.simulation.strategies.strategy import Keyed, PlaysCache, Round, Sizes
from htrain.sync.het.client import UNBOUNDED, HetCache
from htrain.sync.het.messages import Answer
from htrain.sync.het.miniature import exchanged
from htrain.sync.het.server import HetServer
from htrain.sync.request import Request
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory

_STEP = SparseStep("sgd", 0.0)
_FIRST_SLOTS = 1 << 16
_RUN_OUTS = 4  # of the same row, before more of them are like these


class PlaysHet(PlaysCache):
    """A round is a batch of every trainer. Caches know nothing of each other."""

    @property
    def least_rounds(self) -> int:
        """A row that every batch writes runs out again and again, once in as many batches as its staleness allows."""
        asks = [op for op in self.plan.train.ops if op.type == "HetAsk"]
        bounds = [bound for op in asks if isinstance(bound := op.attrs["staleness"], int)]
        return _RUN_OUTS * (1 + max(bounds, default=0))

    def rounds(self) -> Iterator[Round]:
        plan, ahead = self.plan, self.plan.options.looks_ahead
        asks = [op for op in plan.train.ops if op.type == "HetAsk"]
        caches = [_Cache(op, plan, self.trainers, self.most_batches) for op in asks]
        tables = {ids: rows for cache in caches for ids, rows in cache.tables.items()}
        feeds = [_Feed(self.source.batches(plan, tables, t), caches, t) for t in range(self.trainers)]
        present = _asked(caches, feeds)
        while present:
            for cache in caches:
                cache.read()
            following = _asked(caches, feeds) if ahead else {}
            for cache in caches:
                cache.write()
            yield Round(1, present)
            present = following if ahead else _asked(caches, feeds)


class _Feed:
    """A trainer's batches, as keys of each cache, which hear of those that are read ahead."""

    def __init__(self, batches: Iterator[Mapping[str, Ids]], caches: Sequence["_Cache"], trainer: int) -> None:
        self._batches, self._caches, self._trainer = batches, caches, trainer
        self._ahead = max(cache.announced for cache in caches)
        self._open: deque[list[_Keys]] = deque()

    def next(self) -> "list[_Keys] | None":
        while len(self._open) < self._ahead and (ids := next(self._batches, None)) is not None:
            self._open.append([cache.opened(ids, self._trainer) for cache in self._caches])
        return self._open.popleft() if self._open else None


def _asked(caches: Sequence["_Cache"], feeds: Sequence[_Feed]) -> dict[str, CacheRates]:
    """Every trainer asks for its next batch; nothing where one has none."""
    batches = [feed.next() for feed in feeds]
    known = [keys for keys in batches if keys is not None]
    if len(known) < len(batches):
        return {}
    return {cache.name: cache.ask(keys) for cache, keys in zip(caches, zip(*known, strict=True), strict=True)}


@dataclass(frozen=True)
class _Keys:
    """The keys of a batch, and how many are of each table."""

    keys: Ids
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class _Asked:
    """What a trainer has asked for: the slots of its keys, and what servers will have answered."""

    slots: Ids
    sizes: tuple[int, ...]
    answers: list[Answer]


class _Cache:
    """One cache on all trainers, and its servers. `tables` are the rows of each table, by the blob of its ids."""

    def __init__(self, ask: Op, plan: Plan, trainers: int, most_batches: int) -> None:
        attrs: Mapping[str, Any] = ask.attrs
        (self.name, *blobs), self._first_keys, bounds = ask.inputs, attrs["first_keys"], attrs["bounds"]
        ends = [*self._first_keys[1:], bounds[-1]]
        self.tables = {ids: end - first for ids, first, end in zip(blobs, self._first_keys, ends, strict=True)}
        announces = any(op.type == "HetAnnounce" and op.inputs[0] == self.name for op in plan.train.ops)
        self.announced = plan.options.cache.reads_ahead if announces else 1
        per_batch = sum(numel(plan.train.blobs[ids].shape[:1], plan.options.batch_size) for ids in blobs)
        self._numbering = Numbering(bounds, trainers * (most_batches + self.announced) * per_batch)
        first, servers = self._numbering.first.tolist(), attrs["servers"]
        first_rows, num_rows = _first_rows(first, servers)
        territory = Territory(first[:-1], servers, first_rows, first[-1])
        staleness = UNBOUNDED if attrs["staleness"] == NO_BOUND else attrs["staleness"]
        made = partial(HetCache, territory, 0, staleness=staleness, policy=attrs["policy"], step=_STEP)
        self._clients = [made(capacity=min(attrs["capacity"], _FIRST_SLOTS)) for _ in range(trainers)]
        for client in self._clients:
            client.capacity = attrs["capacity"]  # for which it makes room as rows come
        self._servers = [
            HetServer(np.empty((rows, 0), np.float32), np.empty((rows, 0), np.float32), staleness=staleness, step=_STEP)
            for rows in num_rows
        ]
        self._seen = [np.zeros(self._numbering.size, np.bool_) for _ in range(trainers)]
        self._counted = self._counts()
        self._asked: list[_Asked] = []
        self._read: list[_Asked] = []

    def opened(self, ids: Mapping[str, Ids], trainer: int) -> _Keys:
        """A batch has been read, and its trainer's client hears of it."""
        own = [ids[blob] for blob in self.tables]
        keys = np.concatenate([part + first for part, first in zip(own, self._first_keys, strict=True)])
        numbers = self._numbering.numbers(keys)
        if self.announced > 1:
            self._clients[trainer].announce(numbers)
        return _Keys(numbers, tuple(part.size for part in own))

    def ask(self, batches: Sequence[_Keys]) -> CacheRates:
        """Every client asks for its batch; servers hear all of them before they answer."""
        before, cold = self._counted, 0
        slots, requests = [], []
        for client, batch, seen in zip(self._clients, batches, self._seen, strict=True):
            cold += batch.keys.size - int(seen[batch.keys].sum())
            seen[batch.keys] = True
            places, asked = client.ask(batch.keys)
            for server, request in zip(self._servers, asked, strict=True):
                server.push(request)
            slots.append(places)
            requests.append(asked)
        answers = [[s.pull(request) for s, request in zip(self._servers, asked, strict=True)] for asked in requests]
        self._asked = [_Asked(s, b.sizes, a) for s, b, a in zip(slots, batches, answers, strict=True)]
        sizes = np.array([batch.sizes for batch in batches]).mean(0).tolist()
        self._counted = self._counts()
        hits, misses, run_out, evicted = (self._counted - before) / len(batches)
        shards = tuple(
            _shard(*both) for both in zip(zip(*requests, strict=True), zip(*answers, strict=True), strict=True)
        )
        return CacheRates(
            ids=dict(zip(self.tables, sizes, strict=True)), hits=float(hits), cold=cold / len(batches), loaded=float(misses),
            evicted=float(evicted), shards=shards, run_out=float(run_out),
        )  # fmt: skip

    def read(self) -> None:
        """Every client reads the rows that it has asked for."""
        self._read, self._asked = self._asked, []
        for client, asked in zip(self._clients, self._read, strict=True):
            client.read(asked.slots, asked.answers)

    def write(self) -> None:
        """Every client writes what it has read, table by table."""
        for client, asked in zip(self._clients, self._read, strict=True):
            for slots in np.split(asked.slots, np.cumsum(asked.sizes)[:-1]):
                client.write(slots, np.empty((slots.size, 0), np.float32))
            client.trim()

    def _counts(self) -> np.ndarray:
        known = [(c.counts.hits, c.counts.misses, c.counts.run_out, c.counts.evicted) for c in self._clients]
        return np.array(known).sum(0)


def _first_rows(first: Sequence[int], servers: Sequence[int]) -> tuple[list[int], list[int]]:
    """The row of its server at which each shard begins, and the rows of each server: its shards lie one behind the other."""
    used, begins = [0] * (max(servers) + 1), []
    for begin, end, server in zip(first, first[1:], servers, strict=False):
        begins.append(used[server])
        used[server] += end - begin
    return begins, used


def _shard(requests: Sequence[Request], answers: Sequence[Answer]) -> ShardRates:
    """What one server was asked and answered, in the mean over its clients."""
    pushed, fetched, checked = np.array([request.counts for request in requests]).mean(0).tolist()
    stale = sum(answer.stale.size for answer in answers) / len(answers)
    return ShardRates(fetched=fetched, pushed=pushed, checked=checked, stale=stale)


def _keyed(plan: Plan) -> tuple[Keyed, ...]:
    return tuple(_keys_of(op.inputs, op.attrs) for op in plan.train.ops if op.type == "HetAsk")


def _keys_of(inputs: Sequence[str], attrs: Mapping[str, Any]) -> Keyed:
    name, *blobs = inputs
    first = dict(zip(blobs, attrs["first_keys"], strict=True))
    return Keyed(name, first, bounds=attrs["bounds"], servers=attrs["servers"])


PLAYS = PlaysHet
SIZES = Sizes(_keyed, exchanged)

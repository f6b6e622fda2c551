"""HET-GMP's workers as roles have them: replicas and their bounds on each trainer, an owner of rows on the sparse PS beside it (HET-GMP 5.3)."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch

from htrain.data import Dataset
from htrain.data.numbering import Numbering, open_numbering
from htrain.data.partition_file import read_facts
from htrain.data.renumbered import renumbered
from htrain.errors import DataError, PlanError
from htrain.executor.engine.store import Store
from htrain.executor.record.cache_totals import added
from htrain.executor.strategies.served import held_by, rows_of, step_of
from htrain.executor.strategies.strategy import RunsCache
from htrain.net.names import SPARSE_PS, Device, Role, device_of
from htrain.net.net import Net, Op, Parameter
from htrain.ops.gmp import UNBOUNDED, texts
from htrain.spec.sparse_sync import Gmp as Asked
from htrain.sync.gmp import worker
from htrain.sync.gmp.owner import GmpOwner
from htrain.sync.gmp.worker import Bounds, Expected, GmpWorker
from htrain.sync.request import Clocks, Rows
from htrain.sync.territory import Ids, Territory


class SharedOwner:
    """An owner that the threads of two roles use, one at a time: the server's for other workers, the trainer's for its own."""

    def __init__(self, owner: GmpOwner) -> None:
        self._owner = owner
        self._lock = threading.Lock()

    @property
    def clocks(self) -> Clocks:
        """How many updates each row has had."""
        return self._owner.clocks

    @property
    def gaps(self) -> Ids:
        """How far secondaries that were checked were behind."""
        return self._owner.gaps

    @property
    def before_step(self) -> Callable[[Ids], None]:
        """As of the owner."""
        return self._owner.before_step

    @before_step.setter
    def before_step(self, told: Callable[[Ids], None]) -> None:
        """As of the owner."""
        self._owner.before_step = told

    def read(self, rows: Ids, out: Rows) -> None:
        """As of the owner."""
        with self._lock:
            self._owner.read(rows, out)

    def write(self, rows: Ids, gradients: Rows) -> None:
        """As of the owner."""
        with self._lock:
            self._owner.write(rows, gradients)

    def push_arrays(self, *request: np.ndarray) -> None:
        """As of the owner."""
        with self._lock:
            self._owner.push_arrays(*request)

    def pull_arrays(self, *request: np.ndarray) -> tuple[Rows, Rows, Clocks, Clocks]:
        """As of the owner."""
        with self._lock:
            return self._owner.pull_arrays(*request)


class Gmp(RunsCache[Asked]):
    """Tables that are served together lie in one piece of memory, one behind the other, and so do their optimizer's states."""

    @property
    def partition(self) -> str:
        return next(str(op.attrs["partition"]) for op in self._net.ops if "partition" in op.attrs)

    def require_partition(self) -> None:
        _as_compiled(
            self.section.partition, self.partition, read_facts, or_else=", or compile the plan again with this one"
        )

    def numbered(self, dataset: Dataset) -> Dataset:
        return renumbered(dataset, self.numbering)

    def joined(self, net: Net) -> Iterator[Sequence[str]]:
        for op in net.ops:
            if op.type == "GmpPush":
                yield from held_by(op)

    def stepped(self, net: Net) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
        for op in net.ops:
            if op.type == "GmpPush":
                yield (op.inputs[0], *held_by(op))

    def caches(self, net: Net, store: Store, places: Mapping[str, torch.device]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for op in net.ops:
            if op.type == "GmpAsk":
                made[op.inputs[0]] = self.worker(op)
            elif op.type == "GmpPush":
                made[op.inputs[0]] = _owner(op, store)
        return made

    def stand_beside(self, own: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> None:
        role = Role.parse(self.role)
        neighbour = Device(SPARSE_PS, role.group)
        for name, cache in own.items():
            owner = others.get(str(neighbour), {}).get(f"{name}_clocks:{role.group}")
            if isinstance(cache, GmpWorker) and owner is not None:
                cache.stand_beside(owner)

    def originals(self, parameter: Parameter) -> Ids | None:
        owner = parameter.name if parameter.kind == "table" else parameter.of
        push = next((op for op in self._net.ops if op.type == "GmpPush" and owner in op.inputs), None)
        if push is None or parameter.kind not in ("table", "state"):
            return None
        rows = np.arange(parameter.first_row, parameter.first_row + parameter.shape[0])
        for source, offset in _pieces(push, self._net.parameters[owner].whole):
            begin, end = np.searchsorted(rows, (offset, offset + self.numbering.bounds(source)[-1]))
            if begin < end:
                first = int(rows[begin]) - offset
                rows[begin:end] = offset + self.numbering.originals(source, first, first + int(end - begin))
        return rows

    def report(self, caches: Iterable[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        needed: list[Ids] = []
        pairs: dict[str, Ids] = {}  # rows of one table may be looked up in tables of several widths: they count once
        for cache in caches:
            if isinstance(cache, GmpWorker):
                _add(found, cache)
                needed.append(cache.counts.needed)
                pairs[cache.rows] = np.stack([cache.counts.fetched, cache.counts.synced])
            elif isinstance(cache, SharedOwner):
                found["lags"] = added(found.get("lags", ()), cache.gaps.tolist())
        if pairs:
            fetched, synced = np.sum([*pairs.values()], axis=0).tolist()
            found |= {"needed": np.sum(needed, axis=0).tolist(), "fetched": fetched, "synced": synced}
        return found

    @cached_property
    def numbering(self) -> Numbering:
        """The rows of the plan's partition. Raises DataError where it cannot be read, PlanError for another than the plan was compiled with."""
        return _opened(self.section.partition, self.partition)

    @property
    def _net(self) -> Net:
        """The role's part of a step."""
        return self.plan.net_of(device_of(self.role))

    def worker(self, op: Op) -> GmpWorker:
        """The worker of a GmpAsk, whose rows and steps are as wide as its attributes say."""
        attrs: Mapping[str, Any] = op.attrs
        *bounds, num_keys = attrs["bounds"]
        territory = Territory(bounds, attrs["servers"], attrs["first_rows"], num_keys)
        worker = Role.parse(self.role).group or 0
        number = attrs["owners"].index(worker) if worker in attrs["owners"] else -1
        secondaries, updates = self._secondaries(op, worker)
        bound = Bounds(staleness_of(op), attrs["intra"], attrs["inter"], attrs["deferred"])
        return GmpWorker(
            territory, attrs["width"], rows=attrs["sources"], number=number, bounds=bound, step=step_of(op), secondaries=secondaries,
            expected=Expected(self._own_updates(op, territory, number), updates), repeated=self._repeated(op),
        )  # fmt: skip

    def _repeated(self, asked: Op) -> Sequence[tuple[int, int]]:
        """The ranges of keys of a GmpAsk whose rows of the data have keys before them, in the same or another one's order."""
        seen: set[str] = set()
        for op in (op for op in self._net.ops if op.type == "GmpAsk"):
            found: list[tuple[int, int]] = []
            for source, first in zip(texts(op, "sources"), _numbers(op, "source_keys"), strict=True):
                if source in seen:
                    found.append((first, first + self.numbering.bounds(source)[-1]))
                seen.add(source)
            if op.inputs[0] == asked.inputs[0]:
                return found
        raise AssertionError(f"{asked.label} is no op of {self.role}")

    def _secondaries(self, op: Op, worker: int) -> tuple[Ids, Rows]:
        """The keys of a worker's replicas, ascending, and the updates that a step is expected to make of each."""
        held = self.numbering.secondaries(worker)
        keys, updates = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
        for source, first in zip(texts(op, "sources"), _numbers(op, "source_keys"), strict=True):
            rows = held.get(source, np.empty(0, np.int64))
            keys.append(rows + first)
            updates.append(self.numbering.updates(source, rows))
        order = np.argsort(together := np.concatenate(keys))
        return together[order], np.concatenate(updates)[order]

    def _own_updates(self, op: Op, territory: Territory, number: int) -> Rows:
        """The updates that a step is expected to make of each of the worker's own rows, as its owner numbers them."""
        if not op.attrs["inter"] or number < 0:
            return np.empty(0, np.float32)
        mine = np.flatnonzero(territory.servers == number)
        sizes = np.diff(territory.bounds)
        updates = np.zeros(int(sizes[mine].sum()), np.float32)
        for source, start in zip(texts(op, "sources"), _numbers(op, "source_keys"), strict=True):
            end = start + self.numbering.bounds(source)[-1]
            for shard in mine:
                first, last = max(start, int(territory.bounds[shard])), min(end, int(territory.bounds[shard + 1]))
                if first < last:
                    at = int(territory.first_rows[shard]) + first - int(territory.bounds[shard])
                    updates[at : at + last - first] = self.numbering.updates(
                        source, np.arange(first - start, last - start)
                    )
        return updates


# By the names of their files and their digests: a file may become another, and what was read of one is read on from there.
_open: WeakValueDictionary[tuple[str, str], Numbering] = WeakValueDictionary()
_opening = threading.Lock()


def _opened(partition: str, wanted: str) -> Numbering:
    """The numbering of the digest `wanted` in a file: one for all roles of a process that have it, as it may be large. Raises as `Gmp.numbering`."""
    with _opening:
        found = _open.get((partition, wanted))
        if found is None:
            found = _open[partition, wanted] = _as_compiled(partition, wanted, open_numbering)
        return found


class _HasDigest(Protocol):
    @property
    def digest(self) -> str:
        """That of a partition."""


P = TypeVar("P", bound=_HasDigest)


def _as_compiled(partition: str, wanted: str, read: Callable[[Path], P], *, or_else: str = "") -> P:
    """What `read` makes of a file whose digest is the `wanted` one. Raises as `Gmp.numbering`; `or_else` is what helps beside putting the partition back."""
    path = Path(partition)
    try:
        found = read(path)
    except DataError as error:
        if path.exists():
            raise
        where = "" if path.is_absolute() else f" (looked for in {Path.cwd()})"
        raise DataError(
            f"{error}{where}: the plan wants the partition of the digest {wanted[:12]} there; put it back, or compile the plan again with --partition where "
            "it lies now"
        ) from error
    if found.digest != wanted:
        raise PlanError(
            f"{partition}: is another partition than the plan was compiled with (digest {found.digest[:12]}, the plan has {wanted[:12]}): put that partition "
            f"back there{or_else}"
        )
    return found


def _add(found: dict[str, Any], cache: GmpWorker) -> None:
    """Add what a worker has counted to a role's report."""
    counts = cache.counts
    mine = {
        "hits": counts.own + counts.replicas, "misses": int(counts.fetched.sum()), "stale": int(counts.synced.sum()), "own": counts.own,
        "intra_checks": counts.intra_checks,
        "intra_syncs": counts.intra_syncs, "inter_checks": counts.inter_checks, "inter_syncs": counts.inter_syncs, "useless": counts.useless,
    }  # fmt: skip
    for name, count in mine.items():
        found[name] = found.get(name, 0) + count
    known = found.get("bytes", {})
    found["bytes"] = {kind: known.get(kind, 0) + int(each.sum()) for kind, each in counts.bytes.items()}


def _numbers(op: Op, name: str) -> tuple[int, ...]:
    value = op.attrs[name]
    assert isinstance(value, tuple)
    return value


def _pieces(push: Op, table: str) -> Iterator[tuple[str, int]]:
    """The tables of the partition that a model's table is made of, each with its first row there."""
    number = texts(push, "tables").index(table)
    parts = zip(texts(push, "sources"), _numbers(push, "source_tables"), _numbers(push, "source_rows"), strict=True)
    return ((source, first) for source, of, first in parts if of == number)


def staleness_of(op: Op) -> int:
    """The bound that an op has as an attribute."""
    bound: Any = op.attrs["staleness"]
    return bound if bound != UNBOUNDED else worker.UNBOUNDED


def _owner(op: Op, store: Store) -> SharedOwner:
    return SharedOwner(GmpOwner(*rows_of(op, store), staleness=staleness_of(op), step=step_of(op)))


RUN = Gmp

"""HET's caches as roles have them: a client of the protocol on each trainer, a server on each sparse PS (HET 3)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from htrain.executor.engine.store import Store
from htrain.executor.record.cache_totals import add_counts, added
from htrain.executor.strategies.served import held_by, rows_of, step_of
from htrain.executor.strategies.strategy import RunsCache
from htrain.membership.served import ServedCache, ServedTable
from htrain.net.names import number_of
from htrain.net.net import Net, Op
from htrain.plan.plan import Plan
from htrain.spec.cache import HetCache as Asked
from htrain.sync.het.client import UNBOUNDED, HetCache
from htrain.sync.het.server import HetServer
from htrain.sync.territory import Territory


class Het(RunsCache[Asked]):
    """Tables that are served together lie in one piece of memory, one behind the other, and so do their optimizer's states."""

    @property
    def announced(self) -> int:
        return self.section.window

    def joined(self, net: Net) -> Iterator[Sequence[str]]:
        for op in net.ops:
            if op.type == "HetPush":
                yield from held_by(op)

    def stepped(self, net: Net) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
        for op in net.ops:
            if op.type == "HetPush":
                yield (op.inputs[0], *held_by(op))

    def caches(self, net: Net, store: Store, places: Mapping[str, torch.device]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for op in net.ops:
            if op.type == "HetAsk":
                made[op.inputs[0]] = _client(op)
            elif op.type == "HetPush":
                made[op.inputs[0]] = _server(op, store)
        return made

    def served(self) -> tuple[ServedCache, ...]:
        """Each cache of a trainer, as a worker from outside may have it."""
        ops = self.plan.train.ops
        return tuple(_served(op, ops, self.plan) for op in ops if op.type == "HetAsk")

    def report(self, caches: Iterable[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for cache in caches:
            if isinstance(cache, HetCache):
                add_counts(found, cache.counts)
                known = found.get("bytes", {})
                found["bytes"] = {kind: known.get(kind, 0) + count for kind, count in cache.counts.bytes.items()}
                found["ages"] = added(found.get("ages", ()), cache.counts.ages.tolist())
            elif isinstance(cache, HetServer):
                found["lags"] = added(found.get("lags", ()), cache.lags.tolist())
        return found


def _served(ask: Op, ops: Sequence[Op], plan: Plan) -> ServedCache:
    """A cache, its tables in the order of their keys, and who holds their rows."""
    attrs: Mapping[str, Any] = ask.attrs
    table_of = {op.outputs[0]: op.module for op in ops if op.type == "Dedupe"}
    pushes = sorted((op for op in ops if op.type == "HetPush" and op.module == ask.module), key=_number)
    tables = [table_of[ids] for ids in ask.inputs[1:]]
    firsts = zip(tables, attrs["first_keys"], strict=True)
    return ServedCache(
        ask.inputs[0],
        tuple(ServedTable(name, first, sum(s.num_rows for s in plan.tables[name])) for name, first in firsts),
        width=attrs["width"],
        devices=tuple(map(_number, pushes)),
        slots=tuple(op.inputs[0] for op in pushes),
        bounds=attrs["bounds"],
        servers=attrs["servers"],
        first_rows=attrs["first_rows"],
        **{name: attrs[name] for name in ("capacity", "staleness", "policy", "optimizer", "lr", "eps")},
        **{name: attrs[name] for name in ("beta", "l1", "l2") if name in attrs},
    )


def _number(push: Op) -> int:
    return number_of(push.node_name)


def _staleness(op: Op) -> int:
    bound: Any = op.attrs["staleness"]
    return bound if bound >= 0 else UNBOUNDED


def _client(op: Op) -> HetCache:
    attrs: Mapping[str, Any] = op.attrs
    *bounds, num_keys = attrs["bounds"]
    territory = Territory(bounds, attrs["servers"], attrs["first_rows"], num_keys)
    return HetCache(
        territory, attrs["width"], capacity=attrs["capacity"], staleness=_staleness(op), policy=attrs["policy"], step=step_of(op),
    )  # fmt: skip


def _server(op: Op, store: Store) -> HetServer:
    return HetServer(*rows_of(op, store), staleness=_staleness(op), step=step_of(op))


RUN = Het

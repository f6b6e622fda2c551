"""Look-ahead caches as a trainer has them: one for each table, and the threads that read and write rows (cDLRM 4, 5)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from htrain.executor.engine.context import APART
from htrain.executor.engine.store import Store
from htrain.executor.record.cache_totals import add_counts
from htrain.executor.strategies.lookahead.exchange import Exchange
from htrain.executor.strategies.lookahead.joint_passes import join_passes
from htrain.executor.strategies.lookahead.joint_tables import join_tables
from htrain.executor.strategies.lookahead.slot_rows import DeviceRows, DeviceSlots, HostRows
from htrain.executor.strategies.lookahead.table_cache import TableCache
from htrain.executor.strategies.lookahead.windows import Windows
from htrain.executor.strategies.strategy import RunsCache, TrainerParts
from htrain.net.net import Net, Op
from htrain.net.placement import CacheGeometry
from htrain.ops.lookahead import apart, slots_of, window_of
from htrain.spec.cache import LookAheadCache
from htrain.sync.lookahead.averaging import averaging_of
from htrain.sync.lookahead.pipeline import Pipeline
from htrain.sync.lookahead.window import WindowChoice


class LookAhead(RunsCache[LookAheadCache]):
    """Windows are read ahead into caches, out of which alone a trainer trains."""

    endpoints = APART

    @property
    def device(self) -> str:
        return self.section.device

    def caches(self, net: Net, store: Store, places: Mapping[str, torch.device]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for op in net.ops:
            if op.type == "LookaheadSlots":
                made |= _cache(net, op, places)
            elif op.type == "JointSlots":
                made |= _joint_caches(net, op, places)
        return made

    def split(self, net: Net) -> tuple[Net, Net]:
        step, rest = apart(net)
        return step if self.device == "cpu" else join_tables(step), join_passes(rest)

    def upcoming(self, parts: TrainerParts) -> Windows:
        caches = {name: cache for name, cache in parts.caches.items() if isinstance(cache, TableCache)}
        exchange = Exchange(parts.net, parts.engine)
        slots = parts.activity("slots")
        for cache in caches.values():
            if isinstance(cache.rows, DeviceRows):
                cache.rows.whole.activity = slots
        return Windows(
            caches, exchange, parts.replica_of, connect=parts.connect, pipeline=Pipeline(WindowChoice(window_of(parts.net)), patched=self.section.patch),
            averaging=averaging_of(self.section.average, slots_of(parts.net)), patience=parts.patience, activity=parts.activity,
        )  # fmt: skip

    def report(self, caches: Iterable[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for cache in caches:
            if isinstance(cache, TableCache):
                add_counts(found, cache.counts)
        return found


def _cache(net: Net, op: Op, places: Mapping[str, torch.device]) -> dict[str, Any]:
    """A look-ahead cache and its slots."""
    cache, *stored, _ = op.inputs
    attrs: Mapping[str, Any] = op.attrs
    parts = _slots(net, stored, places)
    geometry = CacheGeometry(attrs["sets"], attrs["ways"])
    is_whole = geometry.ways == 1 and geometry.sets == attrs["num_rows"]
    return {
        cache: TableCache(geometry, HostRows(tuple(parts.values())), patch=attrs["patch"], is_whole=is_whole),
        **parts,
    }


def _joint_caches(net: Net, op: Op, places: Mapping[str, torch.device]) -> dict[str, Any]:
    """Look-ahead caches of several tables, whose slots lie in one tensor, one behind the other."""
    attrs: Mapping[str, Any] = op.attrs
    names, stored = op.inputs[: attrs["tables"]], op.inputs[attrs["tables"] : -attrs["tables"]]
    whole = _slots(net, stored, places)
    slots = DeviceSlots(tuple(whole.values()))
    firsts = np.cumsum([0, *attrs["rows"]]).tolist()
    found = zip(names, attrs["sets"], attrs["ways"], attrs["num_rows"], firsts, strict=False)
    caches = {
        name: TableCache(
            CacheGeometry(sets, ways),
            DeviceRows(slots, first),
            patch=attrs["patch"],
            is_whole=ways == 1 and sets == num_rows,
        )
        for name, sets, ways, num_rows, first in found
    }
    return {**caches, **whole}


def _slots(net: Net, stored: Sequence[str], places: Mapping[str, torch.device]) -> dict[str, torch.Tensor]:
    """Memory for the rows of slots, and for the optimizer's states beside them."""
    host = torch.device("cpu")
    return {name: torch.zeros(net.parameters[name].shape, device=places.get(name, host)) for name in stored}

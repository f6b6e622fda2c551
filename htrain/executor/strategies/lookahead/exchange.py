"""Passes between look-ahead caches and the store behind them: rows written back, rows read (cDLRM 5.1, 5.3).

The store is wherever the plan's tables are, on sparse PSs or in this process: the nets of a pass differ, this does not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.executor.engine.engine import Engine
from htrain.executor.loops.replica import Replica
from htrain.net.net import Net
from htrain.ops.lookahead import REQUEST

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
NOTHING: Ids = np.empty(0, np.int64)


@dataclass(frozen=True)
class Wishes:
    """What a pass does for one table: write `rows`[n,W] of `keys`[n] back, and read those of `wanted`[m]."""

    keys: Ids
    rows: Rows
    wanted: Ids

    @classmethod
    def to_read(cls, wanted: Ids, width: int) -> "Wishes":
        """Read the rows of wanted[m], of `width` numbers each; write none."""
        return cls(NOTHING, np.empty((0, width), np.float32), wanted)

    @classmethod
    def to_write(cls, keys: Ids, rows: Rows) -> "Wishes":
        """Write rows[n,W] of keys[n] back; read none."""
        return cls(keys, rows, NOTHING)


@dataclass(frozen=True)
class _Table:
    """The blobs of a table's passes, for each of its shards; shard k holds the rows from bounds[k] to bounds[k+1]."""

    bounds: tuple[int, ...]
    width: int
    requests: tuple[tuple[str, ...], ...]
    answers: tuple[str, ...]


class Exchange:
    """The passes of a trainer's net. Thread-safe: every thread brings a replica of its own."""

    def __init__(self, net: Net, engine: Engine) -> None:
        self._engine = engine
        self._tables = {op.inputs[0]: _table(net, op.inputs[0]) for op in net.ops if op.type == "LookaheadRequest"}

    def width_of(self, cache: str) -> int:
        """Numbers that are stored of a row: the row, and its optimizer's state."""
        return self._tables[cache].width

    def run(self, replica: Replica, wishes: Mapping[str, Wishes]) -> dict[str, Rows]:
        """One pass for the caches in `wishes`; the rows[m,W] that each wanted. What it writes is in the store when it returns.

        Raises PeerLost.
        """
        inputs: dict[str, torch.Tensor] = {}
        places: dict[str, Sequence[Ids | slice]] = {}
        for cache, table in self._tables.items():
            wish = wishes.get(cache) or Wishes.to_read(NOTHING, table.width)
            written, places[cache] = _by_shard(wish.keys, table.bounds), _by_shard(wish.wanted, table.bounds)
            for names, put, get in zip(table.requests, written, places[cache], strict=True):
                asked = (wish.keys[put], wish.rows[put], wish.wanted[get])
                inputs |= {name: torch.from_numpy(value) for name, value in zip(names, asked, strict=True)}
        values = replica.run_apart(self._engine, inputs)
        counts = {cache: wish.wanted.size for cache, wish in wishes.items()}
        return {
            cache: self._gathered(self._tables[cache], count, places[cache], values) for cache, count in counts.items()
        }

    def _gathered(
        self, table: _Table, count: int, places: Sequence[Ids | slice], values: Mapping[str, torch.Tensor]
    ) -> Rows:
        """The rows of all shards, in memory of their own."""
        found: Rows = values[table.answers[0]].numpy()
        if len(places) == 1 and found.flags.writeable:
            return found
        rows = np.empty((count, table.width), np.float32)
        for name, place in zip(table.answers, places, strict=True):
            rows[place] = values[name].numpy()
        return rows


def _table(net: Net, cache: str) -> _Table:
    (request,) = (op for op in net.ops if op.type == "LookaheadRequest" and op.inputs[0] == cache)
    (answer,) = (op for op in net.ops if op.type == "LookaheadAnswer" and op.inputs[0] == cache)
    (slots,) = (op for op in net.ops if op.type == "LookaheadSlots" and op.inputs[0] == cache)
    bounds, width, count = slots.attrs["bounds"], request.attrs["width"], len(REQUEST)
    assert isinstance(bounds, tuple)
    assert isinstance(width, int)
    requests = tuple(request.outputs[i : i + count] for i in range(0, len(request.outputs), count))
    return _Table(bounds, width, requests, answer.inputs[1:])


def _by_shard(keys: Ids, bounds: tuple[int, ...]) -> Sequence[Ids | slice]:
    """The places of the keys of each shard; all of them as a slice, which copies nothing, where there is one."""
    if len(bounds) == 2:
        return [slice(None)]
    shards = np.searchsorted(bounds, keys, side="right") - 1
    return [np.flatnonzero(shards == k) for k in range(len(bounds) - 1)]

"""Rows of caches' slots, out and in: in host memory, or on an accelerator by way of pinned memory (cDLRM 5.2)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.executor.host.watch import Activity
from htrain.ops.lookahead_loops import read_rows, take_into, write_rows

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
_CHUNK_BYTES = 32 << 20  # of pinned memory, twice: one part is copied while the host fills or empties the other


class SlotRows(Protocol):
    """The slots of one table, each a row with the optimizer's states behind it."""

    @property
    def width(self) -> int:
        """Numbers of a slot."""

    def read(self, slots: Ids) -> Rows:
        """rows[n,W] of slots[n], as they are behind all steps so far."""

    def write(self, slots: Ids, rows: Rows) -> None:
        """The reverse of `read`, before the next step."""


@dataclass(frozen=True)
class Filling:
    """Rows[n,W], or with `places`[n] those of rows[m,W], for slots[n] of a table."""

    table: SlotRows
    slots: Ids
    rows: Rows
    places: Ids | None = None


def read_all(asked: Sequence[tuple[SlotRows, Ids]]) -> list[Rows]:
    """The rows of slots of several tables: of those that lie in one tensor together."""
    found: dict[int, Rows] = {}
    for whole, places in _together([table for table, _ in asked]):
        if whole is None:
            found |= {place: asked[place][0].read(asked[place][1]) for place in places}
            continue
        counts = [asked[place][1].size for place in places]
        found |= dict(zip(places, whole.read(_numbered(asked[place] for place in places), counts), strict=True))
    return [found[place] for place in range(len(asked))]


def write_all(given: Sequence[Filling]) -> None:
    """Put rows into slots of several tables: of those that lie in one tensor together."""
    for whole, places in _together([filling.table for filling in given]):
        fillings = [given[place] for place in places]
        if whole is not None:
            whole.write(_numbered((f.table, f.slots) for f in fillings), [(f.rows, f.places) for f in fillings])
            continue
        for filling in fillings:
            rows = filling.rows if filling.places is None else filling.rows[filling.places]
            filling.table.write(filling.slots, rows)


def _together(tables: Sequence[SlotRows]) -> Iterator[tuple["DeviceSlots | None", list[int]]]:
    """Tensors of slots, and the places of the tables in each; None for those in host memory."""
    wholes = {id(table.whole): table.whole for table in tables if isinstance(table, DeviceRows)}
    yield None, [place for place, table in enumerate(tables) if not isinstance(table, DeviceRows)]
    for whole in wholes.values():
        yield whole, [p for p, table in enumerate(tables) if isinstance(table, DeviceRows) and table.whole is whole]


def _numbered(asked: Any) -> Ids:
    """Slots of tables, as they are numbered in their tensor."""
    return np.concatenate([table.first + slots for table, slots in asked])


class HostRows:
    """Slots in host memory: parts[slots, ..]."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self._arrays = [part.numpy() for part in parts]
        self._width = sum(array[0].size for array in self._arrays)

    @property
    def width(self) -> int:
        """As SlotRows."""
        return self._width

    def read(self, slots: Ids) -> Rows:
        """As SlotRows."""
        return read_rows(self._arrays, slots, 0)

    def write(self, slots: Ids, rows: Rows) -> None:
        """As SlotRows."""
        write_rows(self._arrays, slots, rows, 0)


class Staging:
    """Pinned memory between a device and the host, which its user takes in turns. For one thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._turns: list[tuple[torch.Tensor, Any]] = []

    def rows(self, count: int, width: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """Parts of `count` rows of `width` numbers, each with pinned memory float32[n,W] that no copy uses any more."""
        at_once = max(1, _CHUNK_BYTES // (4 * width))
        for start in range(0, count, at_once):
            end = min(count, start + at_once)
            yield slice(start, end), self._take(at_once * width)[: (end - start) * width].view(end - start, width)

    def copied(self) -> Any:
        """Copies out of, or into, what was taken last have begun: it is taken again when they have ended. The event of that, None on a host."""
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
        self._turns[-1] = (self._turns[-1][0], event)
        return event

    def _take(self, numbers: int) -> torch.Tensor:
        memory, event = self._turns.pop(0) if len(self._turns) == 2 else (torch.empty(0), None)
        if event:
            event.synchronize()
        if memory.numel() < numbers:
            memory = torch.empty(max(numbers, _CHUNK_BYTES // 4), pin_memory=self._device.type == "cuda")
        self._turns.append((memory, None))
        return memory


class DeviceSlots:
    """The slots of all tables of a width on an accelerator: parts[slots, ..]. For the thread that steps them, which is busy with `activity` while it moves
    rows."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self.activity = Activity("slots")
        self._parts, self._staging = parts, Staging(parts[0].device)
        self._widths = [part[0].numel() for part in parts]
        self.width = sum(self._widths)

    def read(self, slots: Ids, counts: Sequence[int]) -> list[Rows]:
        """rows[n,W] of slots[n], in parts of so many rows."""
        with self.activity.at("moving rows", num_bytes=4 * slots.size * self.width):
            return self._read(slots, counts)

    def _read(self, slots: Ids, counts: Sequence[int]) -> list[Rows]:
        parts = [np.empty((count, self.width), np.float32) for count in counts]
        places = self._places(slots)
        pending: list[tuple[slice, torch.Tensor, Any]] = []
        for part, buffer in self._staging.rows(slots.size, self.width):
            own = places[part]
            found = torch.cat([p.index_select(0, own).reshape(len(own), -1) for p in self._parts], 1)
            buffer.copy_(found, non_blocking=True)
            pending.append((part, buffer, self._staging.copied()))
            if len(pending) > 1:  # the one before is emptied while this one is filled
                _empty(parts, *pending.pop(0))
        for each in pending:
            _empty(parts, *each)
        return parts

    def write(self, slots: Ids, sources: Sequence[tuple[Rows, Ids | None]]) -> None:
        """The reverse: rows[m,W] of each source, or those at its places, one source behind another."""
        with self.activity.at("moving rows", num_bytes=4 * slots.size * self.width):
            self._write(slots, sources)

    def _write(self, slots: Ids, sources: Sequence[tuple[Rows, Ids | None]]) -> None:
        there = self._places(slots)
        counts = [len(rows) if places is None else len(places) for rows, places in sources]
        for part, buffer in self._staging.rows(slots.size, self.width):
            out = buffer.numpy()
            for number, own, there_of in _within(counts, part):
                rows, places = sources[number]
                taken = (rows[own],) if places is None else (rows, places[own])
                take_into(out[there_of], *taken)
            moved, at = buffer.to(there.device, non_blocking=True), there[part]
            self._staging.copied()
            for tensor, columns in zip(self._parts, moved.split(self._widths, 1), strict=True):
                tensor.index_copy_(0, at, columns.reshape(len(at), *tensor.shape[1:]))

    def _places(self, slots: Ids) -> torch.Tensor:
        return torch.from_numpy(slots).to(self._parts[0].device)


def _within(counts: Sequence[int], part: slice) -> Iterator[tuple[int, slice, slice]]:
    """Of arrays of so many rows, one behind another, those that have rows in a part of the whole: its number, which of its rows, and where in the part."""
    first = 0
    for number, count in enumerate(counts):
        begin, end = max(first, part.start), min(first + count, part.stop)
        if begin < end:
            yield number, slice(begin - first, end - first), slice(begin - part.start, end - part.start)
        first += count


def _empty(parts: Sequence[Rows], part: slice, buffer: torch.Tensor, copied: Any) -> None:
    """Copy what has come into pinned memory to the arrays that it is for."""
    if copied:
        copied.synchronize()
    for number, own, there in _within([len(rows) for rows in parts], part):
        take_into(parts[number][own], buffer.numpy()[there])


@dataclass(frozen=True)
class DeviceRows:
    """The slots of one table among those of all, from the `first` on."""

    whole: DeviceSlots
    first: int

    @property
    def width(self) -> int:
        """As SlotRows."""
        return self.whole.width

    def read(self, slots: Ids) -> Rows:
        """As SlotRows."""
        return self.whole.read(slots + self.first, [slots.size])[0]

    def write(self, slots: Ids, rows: Rows) -> None:
        """As SlotRows."""
        self.whole.write(slots + self.first, [(rows, None)])

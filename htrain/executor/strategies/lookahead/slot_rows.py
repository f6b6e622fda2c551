"""Rows of caches' slots, out and in: in host memory, or on an accelerator by way of pinned memory (cDLRM 5.2)."""

from collections.abc import Callable, Iterator, Sequence
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


class HostRows:
    """Slots in host memory: parts[slots, ..]."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self.arrays = [part.numpy() for part in parts]
        self._width = sum(array[0].size for array in self.arrays)

    @property
    def width(self) -> int:
        """As SlotRows."""
        return self._width

    def read(self, slots: Ids) -> Rows:
        """As SlotRows."""
        return read_rows(self.arrays, slots, 0)

    def write(self, slots: Ids, rows: Rows) -> None:
        """As SlotRows."""
        write_rows(self.arrays, slots, rows, 0)


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
    rows; `way_in` and `way_out` are for those who bring and fetch some beside it."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self.activity = Activity("slots")
        self.device = parts[0].device
        self._parts, self._staging = parts, Staging(parts[0].device)
        self._widths = [part[0].numel() for part in parts]
        self.width = sum(self._widths)
        self.way_in, self.way_out = Way(self.device), Way(self.device)

    def gathered(self, there: torch.Tensor) -> torch.Tensor:
        """rows[n,W] of slots there[n], both on the device."""
        parts = zip(self._parts, self._widths, strict=True)
        return torch.cat([part.index_select(0, there).reshape(len(there), width) for part, width in parts], 1)

    def put(self, there: torch.Tensor, rows: torch.Tensor) -> None:
        """The reverse of `gathered`."""
        for tensor, columns in zip(self._parts, rows.split(self._widths, 1), strict=True):
            tensor.index_copy_(0, there, columns.reshape(len(there), *tensor.shape[1:]))

    def read(self, slots: Ids, counts: Sequence[int]) -> list[Rows]:
        """rows[n,W] of slots[n], in parts of so many rows."""
        with self.activity.at("moving rows", num_bytes=4 * slots.size * self.width):
            return self._read(slots, counts)

    def _read(self, slots: Ids, counts: Sequence[int]) -> list[Rows]:
        parts = [np.empty((count, self.width), np.float32) for count in counts]
        places = self._places(slots)
        pending: list[tuple[slice, torch.Tensor, Any]] = []
        for part, buffer in self._staging.rows(slots.size, self.width):
            buffer.copy_(self.gathered(places[part]), non_blocking=True)
            pending.append((part, buffer, self._staging.copied()))
            if len(pending) > 1:  # the one before is emptied while this one is filled
                _empty(parts, *pending.pop(0))
        for each in pending:
            _empty(parts, *each)
        return parts

    def write(self, slots: Ids, sources: Sequence[Rows]) -> None:
        """The reverse: rows[m,W] of each source, one behind another."""
        with self.activity.at("moving rows", num_bytes=4 * slots.size * self.width):
            self._write(slots, sources)

    def _write(self, slots: Ids, sources: Sequence[Rows]) -> None:
        there = self._places(slots)
        counts = [len(rows) for rows in sources]
        for part, buffer in self._staging.rows(slots.size, self.width):
            out = buffer.numpy()
            for number, own, there_of in _within(counts, part):
                take_into(out[there_of], sources[number][own])
            moved = buffer.to(there.device, non_blocking=True)
            self._staging.copied()
            self.put(there[part], moved)

    def _places(self, slots: Ids) -> torch.Tensor:
        return torch.from_numpy(slots).to(self.device)


def there_already() -> None:
    """What waits for rows that are there."""


class Way:
    """A stream of its own between a device and the host, and the pinned memory of what is on it; on a host, neither. Memory is PyTorch's, which gives it out
    again when its copies have ended."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: Any = None

    def pinned(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Memory to copy from, or to."""
        return torch.empty(shape, dtype=dtype, pin_memory=self._device.type == "cuda")

    def bring(self, *values: torch.Tensor) -> tuple[Sequence[torch.Tensor], Any]:
        """Copies of pinned values on the device, which are there at an event."""
        if self._device.type != "cuda":
            return values, None
        with torch.cuda.device(self._device), torch.cuda.stream(self._own()):
            there = [value.to(self._device, non_blocking=True) for value in values]
            arrived = torch.cuda.Event()
            arrived.record(self._own())
        return there, arrived

    def fetch(self, value: torch.Tensor) -> tuple[torch.Tensor, Callable[[], None]]:
        """A copy on the host of what the present stream makes, and what waits for it."""
        if self._device.type != "cuda":
            return value, there_already
        made = torch.cuda.Event()
        made.record(torch.cuda.current_stream(self._device))
        here = self.pinned(*value.shape)
        with torch.cuda.device(self._device), torch.cuda.stream(self._own()):
            self._own().wait_event(made)
            here.copy_(value, non_blocking=True)
            value.record_stream(self._own())
            copied = torch.cuda.Event()
            copied.record(self._own())
        return here, copied.synchronize

    def _own(self) -> Any:
        self._stream = self._stream or torch.cuda.Stream(self._device)
        return self._stream


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
        self.whole.write(slots + self.first, [rows])

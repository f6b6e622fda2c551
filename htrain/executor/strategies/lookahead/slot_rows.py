"""Rows of a cache's slots, out and in: in host memory, or on an accelerator by way of pinned memory (cDLRM 5.2)."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.ops.lookahead_loops import read_rows, write_rows

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
_CHUNK_BYTES = 32 << 20  # of pinned memory, twice: one part is copied while the host fills or empties the other


class SlotRows(Protocol):
    """The slots of one table: `width` numbers each, its row and the optimizer's states behind it."""

    width: int

    def read(self, slots: Ids) -> Rows:
        """rows[n,W] of slots[n], as they are behind all steps so far."""

    def write(self, slots: Ids, rows: Rows, places: Ids | None = None) -> None:
        """The reverse of `read`: rows[n,W], or with `places`[n] those of rows[m,W], into slots[n], before the next step."""


class HostRows:
    """Slots in host memory: parts[slots, ..]."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self._arrays = [part.numpy() for part in parts]
        self.width = sum(array[0].size for array in self._arrays)

    def read(self, slots: Ids) -> Rows:
        """As SlotRows."""
        return read_rows(self._arrays, slots, 0)

    def write(self, slots: Ids, rows: Rows, places: Ids | None = None) -> None:
        """As SlotRows."""
        write_rows(self._arrays, slots, rows if places is None else rows[places], 0)


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
            buffer = self._take()[: (end - start) * width].view(end - start, width)
            yield slice(start, end), buffer

    def copied(self) -> Any:
        """Copies out of, or into, what was taken last have begun: it is taken again when they have ended. The event of that, None on a host."""
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
        self._turns[-1] = (self._turns[-1][0], event)
        return event

    def _take(self) -> torch.Tensor:
        if len(self._turns) < 2:
            numbers = max(1 << 20, _CHUNK_BYTES // 4)
            self._turns.append((torch.empty(numbers, pin_memory=self._device.type == "cuda"), None))
            return self._turns[-1][0]
        memory, event = self._turns.pop(0)
        if event:
            event.synchronize()
        self._turns.append((memory, None))
        return memory


class DeviceRows:
    """Slots on an accelerator: parts[slots, ..]; `staging` is shared by tables that one thread reads and writes."""

    def __init__(self, parts: Sequence[torch.Tensor], staging: Staging) -> None:
        self._parts, self._staging = parts, staging
        self._widths = [part[0].numel() for part in parts]
        self.width = sum(self._widths)

    def read(self, slots: Ids) -> Rows:
        """As SlotRows."""
        rows = np.empty((slots.size, self.width), np.float32)
        places = self._places(slots)
        pending: list[tuple[slice, torch.Tensor, Any]] = []
        for part, buffer in self._staging.rows(slots.size, self.width):
            own = places[part]
            found = torch.cat([p.index_select(0, own).reshape(len(own), -1) for p in self._parts], 1)
            buffer.copy_(found, non_blocking=True)
            pending.append((part, buffer, self._staging.copied()))
            if len(pending) > 1:  # the one before is emptied while this one is filled
                self._empty(rows, *pending.pop(0))
        for each in pending:
            self._empty(rows, *each)
        return rows

    def write(self, slots: Ids, rows: Rows, places: Ids | None = None) -> None:
        """As SlotRows."""
        there, source = self._places(slots), torch.from_numpy(rows)
        for part, buffer in self._staging.rows(slots.size, self.width):
            if places is None:
                buffer.copy_(source[part])
            else:
                torch.index_select(source, 0, torch.from_numpy(places[part]), out=buffer)
            moved, own = buffer.to(there.device, non_blocking=True), there[part]
            self._staging.copied()
            for tensor, columns in zip(self._parts, moved.split(self._widths, 1), strict=True):
                tensor.index_copy_(0, own, columns.reshape(len(own), *tensor.shape[1:]))

    def _places(self, slots: Ids) -> torch.Tensor:
        return torch.from_numpy(slots).to(self._parts[0].device)

    @staticmethod
    def _empty(rows: Rows, part: slice, buffer: torch.Tensor, copied: Any) -> None:
        if copied:
            copied.synchronize()
        torch.from_numpy(rows)[part].copy_(buffer)

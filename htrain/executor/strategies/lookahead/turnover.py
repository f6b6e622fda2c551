"""What a window changes of caches' slots (cDLRM 5.2).

On an accelerator its rows, and the numbers of all its slots, are brought there while the window before is trained on; between the two the device gathers and
scatters rows, and the trainer waits for nothing: what leaves comes to the host on a stream of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch

from htrain.executor.strategies.lookahead.slot_rows import (
    DeviceRows,
    DeviceSlots,
    HostRows,
    Ids,
    Rows,
    SlotRows,
    there_already,
)
from htrain.ops.lookahead_loops import copy_into, read_tables, write_tables

_AHEAD_BYTES = (
    512 << 20
)  # of rows that come in, and of rows that leave: a window with more moves them in parts when it is placed


@dataclass(frozen=True)
class Turning:
    """What a window changes of the slots of a table: the rows of `leaving`[l] go, rows[n,W] come into `entering`[n]."""

    table: SlotRows
    leaving: Ids
    entering: Ids
    rows: Rows


class Left(NamedTuple):
    """Rows[n,W] that have left slots, on their way until `arrived` returns."""

    rows: Rows
    arrived: Callable[[], None]


class Turns(Protocol):
    """What a window changes of slots that are in one place."""

    def leave(self) -> Sequence[Left]:
        """The rows that leave, of each of its tables, as they are behind all steps so far."""

    def enter(self) -> None:
        """Put the rows that come into their slots, before the next step."""


class Turnover:
    """What a window changes of the slots of all tables. Made by any thread, ahead of its placing; for the trainer's from then on."""

    def __init__(self, turnings: Sequence[Turning]) -> None:
        self._count = len(turnings)
        self._turns: list[tuple[list[int], Turns]] = []
        on_host = {place: t.table for place, t in enumerate(turnings) if isinstance(t.table, HostRows)}
        if on_host:
            own = [turnings[place] for place in on_host]
            self._turns.append(([*on_host], _OnHost([*on_host.values()], own)))
        for whole, places in _together(turnings):
            own = [turnings[place] for place in places]
            self._turns.append((places, _InParts(whole, own) if _are_many(whole, own) else _Ahead(whole, own)))

    def leave(self) -> list[Left]:
        """As Turns."""
        found = {
            place: left for places, turns in self._turns for place, left in zip(places, turns.leave(), strict=True)
        }
        return [found[place] for place in range(self._count)]

    def enter(self) -> None:
        """As Turns."""
        for _, turns in self._turns:
            turns.enter()


class _OnHost:
    """In host memory, where rows are moved when the window is placed."""

    def __init__(self, tables: Sequence[HostRows], turnings: Sequence[Turning]) -> None:
        self._tables = [table.arrays for table in tables]
        self._turnings, self._first_rows = turnings, [0] * len(turnings)

    def leave(self) -> Sequence[Left]:
        rows = read_tables(self._tables, [turning.leaving for turning in self._turnings], self._first_rows)
        return [Left(each, there_already) for each in rows]

    def enter(self) -> None:
        entering, rows = zip(*((turning.entering, turning.rows) for turning in self._turnings), strict=True)
        write_tables(self._tables, entering, rows, self._first_rows)


class _Ahead:
    """On a device, where rows are brought before the window is placed."""

    def __init__(self, whole: DeviceSlots, turnings: Sequence[Turning]) -> None:
        self._whole = whole
        self._leaving = [turning.leaving.size for turning in turnings]
        way, counts = whole.way_in, [len(turning.rows) for turning in turnings]
        slots = [_numbered(turnings, side) for side in ("leaving", "entering")]
        numbers = way.pinned(sum(each.size for each in slots), dtype=torch.int64)
        numbers.copy_(torch.from_numpy(np.concatenate(slots)))
        rows = way.pinned(sum(counts), whole.width)
        copy_into(rows.numpy(), [turning.rows for turning in turnings])
        (there, self._rows), self._arrived = way.bring(numbers, rows)
        self._out, self._in = there.split([each.size for each in slots])

    def leave(self) -> Sequence[Left]:
        with self._whole.activity.at("moving rows", num_bytes=4 * len(self._out) * self._whole.width):
            self._await()
            rows, arrived = self._whole.way_out.fetch(self._whole.gathered(self._out))
        return [Left(part, arrived) for part in np.split(rows.numpy(), np.cumsum(self._leaving)[:-1])]

    def enter(self) -> None:
        with self._whole.activity.at("moving rows", num_bytes=4 * len(self._in) * self._whole.width):
            self._await()
            self._whole.put(self._in, self._rows)

    def _await(self) -> None:
        """The present stream waits for what was brought; this thread does not."""
        if self._arrived:
            stream = torch.cuda.current_stream(self._whole.device)
            stream.wait_event(self._arrived)
            for each in (self._out, self._in, self._rows):
                each.record_stream(stream)


class _InParts:
    """On a device, where rows are moved in parts, when the window is placed."""

    def __init__(self, whole: DeviceSlots, turnings: Sequence[Turning]) -> None:
        self._whole, self._turnings = whole, turnings

    def leave(self) -> Sequence[Left]:
        leaving = _numbered(self._turnings, "leaving")
        rows = self._whole.read(leaving, [t.leaving.size for t in self._turnings])
        return [Left(each, there_already) for each in rows]

    def enter(self) -> None:
        entering = _numbered(self._turnings, "entering")
        self._whole.write(entering, [t.rows for t in self._turnings])


def _together(turnings: Sequence[Turning]) -> Iterator[tuple[DeviceSlots, list[int]]]:
    """Tensors of slots on a device, and the places of the tables in each."""
    tables = {place: t.table for place, t in enumerate(turnings) if isinstance(t.table, DeviceRows)}
    for whole in {id(table.whole): table.whole for table in tables.values()}.values():
        yield whole, [place for place, table in tables.items() if table.whole is whole]


def _are_many(whole: DeviceSlots, turnings: Sequence[Turning]) -> bool:
    """Whether more rows come, or go, than the device keeps beside its slots."""
    rows = max(sum(turning.entering.size for turning in turnings), sum(turning.leaving.size for turning in turnings))
    return 4 * rows * whole.width > _AHEAD_BYTES


def _numbered(turnings: Sequence[Turning], side: Literal["leaving", "entering"]) -> Ids:
    """Slots of tables, as they are numbered in their tensor."""
    slots = []
    for turning in turnings:
        assert isinstance(turning.table, DeviceRows)
        own: Ids = getattr(turning, side)
        slots.append(turning.table.first + own)
    return np.concatenate(slots)

"""The look-ahead cache of one table: its slots on the device, its occupancy table, and what has left it lately (cDLRM 5)."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.net.placement import CacheGeometry
from htrain.ops.accelerated import read_slots, write_slots
from htrain.ops.lookahead_loops import read_rows, write_rows
from htrain.ops.sparse_loops import dedupe
from htrain.sync.lookahead.journal import Journal, Written
from htrain.sync.lookahead.occupancy import Occupancy, Placement

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
NO_IDS: Ids = np.empty(0, np.int64)


@dataclass
class WindowOfTable:
    """A look-ahead window of one table: the distinct ids of each of this trainer's batches, `keys`[n] of all trainers' together, and the
    `rows`[n,W] of the `wanted` ones, which were elsewhere and were read from the store; `read` is the read's number in the journal. When it is
    placed, `victims` are the conflict victims of each batch, sorted, of all trainers; without any, there are none.
    """

    batches: deque[Ids]
    keys: Ids
    wanted: NDArray[np.bool_]
    read: int
    rows: Rows
    placement: Placement | None = None
    victims: deque[Ids] = field(default_factory=deque)

    def take(self, fetched: Rows) -> None:
        """The rows of the wanted keys have come: fetched[m,W], in the order of the keys."""
        self.rows[self.wanted] = fetched

    @property
    def fresh(self) -> Ids:
        """Places of the keys whose rows are to be put into slots. Requires: a placement."""
        assert self.placement
        return self.placement.fresh


@dataclass
class LookaheadCounts:
    """Distinct rows that steps asked for: `hits` were in the cache, `misses` conflict victims. Of a window's rows `loaded` were put into the
    cache and `evicted` left it; `stale` had changed since they were read."""

    hits: int = 0
    misses: int = 0
    loaded: int = 0
    evicted: int = 0
    stale: int = 0


@dataclass
class TableCache:
    """`parts` are the slots: rows[slots + victims, D], and the optimizer's states beside them, [.., D] or [..], on the host or on an accelerator. Of
    several trainers with the same cache one `writes` rows back; all of them keep `track` of the rows that their steps have touched.

    Three threads use it: the prefetcher calls `announce`, `announced` and `window`, the writer `stored`, the trainer everything else.
    """

    geometry: CacheGeometry
    parts: Sequence[torch.Tensor]
    patch: bool
    on_host: bool = True
    counts: LookaheadCounts = field(default_factory=LookaheadCounts)
    writes: bool = True
    track: bool = False

    def __post_init__(self) -> None:
        self._occupancy = Occupancy(self.geometry, seed=0)
        self._journal = Journal()
        self._lock = threading.Lock()  # of the journal
        self._announced: list[Ids] = []
        self._window: WindowOfTable | None = None
        self._slots = self._victims = self._updated = NO_IDS
        self._touched: list[Ids] = []
        self._read = -1  # of the victims
        self._leaving: list[Written] = []
        self._arrays = [part.numpy() for part in self.parts] if self.on_host else []
        self._width = sum(part[0].numel() for part in self.parts)

    # -- ahead of training -------------------------------------------------------------------------------------------

    def announce(self, ids: Ids) -> None:
        """The distinct ids[u] of the next batch that has been read."""
        self._announced.append(ids)

    def announced(self) -> Ids:
        """The distinct ids of all batches since the last window."""
        return distinct(self._announced)

    def window(self, keys: Ids) -> WindowOfTable:
        """The batches since the last window, as one; `keys`[n] are the distinct ids of all trainers. Its wanted rows are to be read from the
        store from now on.

        Requires: the window before has been placed.
        """
        batches, self._announced = deque(self._announced), []
        with self._lock:
            read = self._journal.begin_read()
        wanted = self._occupancy.find(keys) < 0  # what is here stays until the window is placed
        return WindowOfTable(batches, keys, wanted, read, np.full((keys.size, self._width), np.nan, np.float32))

    # -- between windows ---------------------------------------------------------------------------------------------

    def make_room(self, window: WindowOfTable) -> Ids:
        """Give the rows of a window their slots (cDLRM 5.2.1). Slots that are to be left, and were touched since they were averaged."""
        window.placement = self._occupancy.place(window.keys)
        slots = window.placement.evicted_slots
        return slots[np.isin(slots, distinct(self._touched))] if self._touched else NO_IDS

    def evict(self, window: WindowOfTable) -> Ids:
        """What makes room leaves; then the window's fresh rows are put right. Which of them were, as places in the window's keys."""
        assert window.placement
        self._leave(window.placement.evicted_keys, window.placement.evicted_slots)
        self.counts.evicted += window.placement.evicted_keys.size
        fresh = window.fresh
        rows = window.rows[fresh]
        changed = fresh[self._put_right(window.read, window.keys[fresh], rows)]
        window.rows[fresh] = rows
        return changed if self.patch else NO_IDS

    def victims_of(self, window: WindowOfTable) -> list[Ids]:
        """The conflict victims of each of this trainer's batches; nothing at all where no trainer has any."""
        assert window.placement
        if (window.placement.slots >= 0).all():
            return []
        return [ids[self._occupancy.find(ids) < 0] for ids in window.batches]

    def fill(self, window: WindowOfTable) -> None:
        """The window's rows into their slots; its steps can begin."""
        assert window.placement
        self.put(window.placement.slots[window.fresh], window.rows[window.fresh])
        self.counts.loaded += window.fresh.size
        self._window = window

    # -- steps -------------------------------------------------------------------------------------------------------

    def begin_step(self) -> Ids:
        """The next batch of the window: its conflict victims, whose rows are to be fetched."""
        assert self._window
        ids = self._window.batches.popleft()
        self._victims = self._window.victims.popleft() if self._window.victims else NO_IDS
        self._slots = self._occupancy.find(ids)
        missing = np.flatnonzero(self._slots < 0)
        self._slots[missing] = self.geometry.num_slots + np.searchsorted(self._victims, ids[missing])
        self.counts.hits += ids.size - missing.size
        self.counts.misses += missing.size
        if self._victims.size:
            with self._lock:
                self._read = self._journal.begin_read()
        return self._victims

    def put_victims_right(self, fetched: Rows) -> Rows:
        """The rows[v,W] of the victims, put right in place from fetched[v,W], as they were read from the store.

        Without `patch` they stay as they were read; how many of them were stale is counted all the same.
        """
        self._put_right(self._read, self._victims, fetched)
        return fetched

    def take_victims(self, rows: Rows) -> None:
        """The victims' rows[v,W] into the victim table."""
        self.put(self._behind(self._victims), rows)

    def slots(self, ids: Ids) -> Ids:
        """Where the rows of the present step's ids stand. Requires: `begin_step` for this batch, unless it has none."""
        return self._slots

    def flush_victims(self) -> None:
        """The step has updated its rows: its victims are to leave (cDLRM 5.2.3)."""
        if self.track:
            self._touched.append(self._slots[self._slots < self.geometry.num_slots])
        self._updated, self._victims, self._slots = self._victims, NO_IDS, NO_IDS

    @property
    def updated_victims(self) -> Ids:
        """Slots of the victims that a step has updated."""
        return self._behind(self._updated)

    def end_step(self) -> None:
        """Updated victims leave."""
        self._leave(self._updated, self.updated_victims)
        self._updated = NO_IDS

    # -- at any time between steps -----------------------------------------------------------------------------------

    def touched(self) -> Ids:
        """The slots that steps have touched since the last call, if track is kept."""
        touched, self._touched = distinct(self._touched), []
        return touched

    def residents(self) -> tuple[Ids, Ids]:
        """The keys that are here, and their slots."""
        return self._occupancy.residents()

    def rows_at(self, slots: Ids) -> Rows:
        """rows[n,W] of slots[n], each with its optimizer state behind it."""
        return read_rows(self._arrays, slots, 0) if self.on_host else read_slots(self.parts, slots)

    def put(self, slots: Ids, rows: Rows) -> None:
        """The reverse of `rows_at`."""
        if self.on_host:
            write_rows(self._arrays, slots, rows, 0)
        elif slots.size:
            write_slots(self.parts, slots, rows)

    def leave_copies(self) -> None:
        """All rows that are here go to the store, and stay."""
        self._leave(*self.residents())

    def leaving(self) -> list[Written]:
        """What has left since the last call: to be written back in this order."""
        left, self._leaving = self._leaving, []
        return left

    def stored(self, number: int) -> None:
        """A write back has reached the store, and so have all before it."""
        with self._lock:
            self._journal.stored(number)

    def _behind(self, victims: Ids) -> Ids:
        """The slots of the victim table."""
        return self.geometry.num_slots + np.arange(victims.size)

    def _put_right(self, read: int, keys: Ids, rows: Rows) -> NDArray[np.bool_]:
        """Which rows were stale; with the patch they are no more."""
        with self._lock:
            stale = self._journal.patch(read, keys, rows if self.patch else rows.copy())
            self._journal.end_read(read)
        self.counts.stale += int(stale.sum())
        return stale

    def _leave(self, keys: Ids, slots: Ids) -> None:
        if keys.size and self.writes:
            with self._lock:
                self._leaving.append(self._journal.add(keys, self.rows_at(slots)))


def distinct(parts: Sequence[Ids]) -> Ids:
    """The distinct ids[n] of all parts[k][n_k], in each of which they are distinct."""
    return parts[0] if len(parts) == 1 else dedupe(np.concatenate([NO_IDS, *parts]), -1)[0]

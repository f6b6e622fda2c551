"""The look-ahead cache of one table: its slots on the device, its occupancy table, and what has left it lately (cDLRM 5)."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.ops.lookahead_loops import read_rows, write_rows
from htrain.ops.sparse_loops import dedupe
from htrain.placement import CacheGeometry
from htrain.sync.lookahead.journal import Journal, Written
from htrain.sync.lookahead.occupancy import Occupancy

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


@dataclass
class WindowOfTable:
    """A look-ahead window of one table: the distinct ids of each batch, `keys`[n] of them all, and the `rows`[n,W] that were read from the
    store; `read` is the read's number in the journal. Rows that were in the cache when it began are not read: nan."""

    batches: deque[Ids]
    keys: Ids
    wanted: NDArray[np.bool_]
    read: int
    rows: Rows

    def take(self, fetched: Rows) -> None:
        """The rows of the wanted keys have come."""
        self.rows[self.wanted] = fetched


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
    """`parts` are the slots: rows[slots + victims, D], and the optimizer's states beside them, [.., D] or [..].

    Three threads use it: the prefetcher calls `announce` and `window`, the writer `stored`, the trainer everything else.
    """

    geometry: CacheGeometry
    parts: Sequence[torch.Tensor]
    patch: bool
    counts: LookaheadCounts = field(default_factory=LookaheadCounts)

    def __post_init__(self) -> None:
        self._occupancy = Occupancy(self.geometry, seed=0)
        self._journal = Journal()
        self._lock = threading.Lock()  # of the journal
        self._announced: list[Ids] = []
        self._batches: deque[Ids] = deque()
        self._slots: Ids = np.empty(0, np.int64)
        self._victims: Ids = np.empty(0, np.int64)
        self._read = -1  # of the victims
        self._leaving: list[Written] = []
        self._arrays = [part.numpy() for part in self.parts]
        self._width = sum(part[0].size for part in self._arrays)

    # -- ahead of training -------------------------------------------------------------------------------------------

    def announce(self, ids: Ids) -> None:
        """The distinct ids of the next batch that has been read."""
        self._announced.append(ids)

    def window(self) -> WindowOfTable:
        """All that was announced since the last window, as one. Its wanted rows are to be read from the store from now on."""
        batches, self._announced = deque(self._announced), []
        keys, _ = dedupe(np.concatenate([np.empty(0, np.int64), *batches]), -1)
        with self._lock:
            read = self._journal.begin_read()
        missing = self._occupancy.expect(keys) < 0
        wanted = missing if self.patch else np.ones(keys.size, np.bool_)  # what leaves before it is used is in the journal then
        return WindowOfTable(batches, keys, wanted, read, np.full((keys.size, self._width), np.nan, np.float32))

    # -- training ----------------------------------------------------------------------------------------------------

    def place(self, window: WindowOfTable) -> None:
        """Put the rows of a window into the cache (cDLRM 5.2.1); what makes room for them leaves."""
        placement = self._occupancy.place(window.keys)
        self._leave(placement.evicted_keys, placement.evicted_slots)
        keys, rows = window.keys[placement.fresh], window.rows[placement.fresh]
        self._put_right(window.read, keys, rows)
        write_rows(self._arrays, placement.slots[placement.fresh], rows, 0)
        self.counts.loaded += keys.size
        self.counts.evicted += placement.evicted_keys.size
        self._batches = window.batches

    def begin_step(self) -> Ids:
        """The next batch of the window: its conflict victims, whose rows are to be fetched."""
        ids = self._batches.popleft()
        self._slots = self._occupancy.find(ids)
        missing = np.flatnonzero(self._slots < 0)
        self._victims = ids[missing]
        self._slots[missing] = self.geometry.num_slots + np.arange(missing.size)
        self.counts.hits += ids.size - missing.size
        self.counts.misses += missing.size
        if missing.size:
            with self._lock:
                self._read = self._journal.begin_read()
        return self._victims

    def take_victims(self, fetched: Rows) -> None:
        """The rows of the victims, as they were read from the store, into the victim table."""
        self._put_right(self._read, self._victims, fetched)
        write_rows(self._arrays, self._victim_slots, fetched, 0)

    def slots(self, ids: Ids) -> Ids:
        """Where the rows of the present step's ids stand. Requires: `begin_step` for this batch, unless it has none."""
        return self._slots

    def flush_victims(self) -> None:
        """The step has updated its victims: they leave (cDLRM 5.2.3)."""
        self._leave(self._victims, self._victim_slots)
        self._victims = self._slots = np.empty(0, np.int64)

    def leave_copies(self) -> None:
        """All rows that are here go to the store, and stay."""
        self._leave(*self._occupancy.residents())

    def leaving(self) -> list[Written]:
        """What has left since the last call: to be written back in this order."""
        left, self._leaving = self._leaving, []
        return left

    def stored(self, number: int) -> None:
        """A write back has reached the store, and so have all before it."""
        with self._lock:
            self._journal.stored(number)

    @property
    def _victim_slots(self) -> Ids:
        return self.geometry.num_slots + np.arange(self._victims.size)

    def _put_right(self, read: int, keys: Ids, rows: Rows) -> None:
        with self._lock:
            put_right = self._journal.patch if self.patch else self._journal.count_stale
            self.counts.stale += put_right(read, keys, rows)
            self._journal.end_read(read)

    def _leave(self, keys: Ids, slots: Ids) -> None:
        if keys.size:
            with self._lock:
                self._leaving.append(self._journal.add(keys, read_rows(self._arrays, slots, 0)))

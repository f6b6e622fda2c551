"""The look-ahead cache of one table: its slots on the device, its occupancy table, and what has left it lately (cDLRM 5)."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from htrain.executor.strategies.lookahead.slot_rows import Filling, SlotRows
from htrain.net.placement import CacheGeometry
from htrain.ops.sparse_loops import dedupe
from htrain.sync.lookahead.journal import Journal, Written
from htrain.sync.lookahead.occupancy import Occupancy, Placement

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
NO_IDS: Ids = np.empty(0, np.int64)


@dataclass
class WindowOfTable:
    """A look-ahead window of one table: the distinct ids of each of this trainer's batches, `keys`[n] of all trainers' together, and the rows[m,W] of the
    `wanted` ones, which were elsewhere and were read from the store; `read` is the read's number in the journal. When it is placed, `victims` are the
    conflict victims of each batch, sorted, of all trainers; without any, there are none.
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
        self.rows = fetched

    @property
    def fresh(self) -> Ids:
        """Places of the keys whose rows are to be put into slots, all of them wanted. Requires: a placement."""
        assert self.placement
        return self.placement.fresh

    def rows_of(self, places: Ids) -> Ids:
        """Where the rows of wanted keys at `places` are among those of all."""
        if len(self.rows) == self.keys.size:
            return places
        order: Ids = np.cumsum(self.wanted)
        return order[places] - 1


@dataclass
class LookaheadCounts:
    """Distinct rows that steps asked for: `hits` were in the cache, `misses` conflict victims. Of a window's rows `loaded` were put into the
    cache and `evicted` left it; `stale` had changed since they were read."""

    hits: int = 0
    misses: int = 0
    loaded: int = 0
    evicted: int = 0
    stale: int = 0


@dataclass(frozen=True)
class _Prepared:
    """A step to come: the `slots` of its ids, the keys of its conflict `victims` of all trainers, and how many of its ids are `missed`: among these."""

    slots: Ids
    victims: Ids
    missed: int


@dataclass
class TableCache:
    """`rows` are those of its slots, with the optimizer's states; those of the victim table come behind the others. One that `is_whole` has a slot for every
    row of its table: the row's number. Of several trainers with the same cache one `writes` rows back; all of them keep `track` of the rows that their
    steps have touched.

    Threads use it: the prefetcher calls `announce`, `announced` and `window`, the writer `stored`, who prepares steps `prepare_step` and `slots`, and the
    trainer everything else.
    """

    geometry: CacheGeometry
    rows: SlotRows
    patch: bool
    is_whole: bool = False
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
        self._prepared: deque[_Prepared] = deque()
        self._found: dict[int, Ids] = {}  # the slots of prepared steps, by where their ids are in memory
        self._touched: list[Ids] = []
        self._read = -1  # of the victims
        self._leaving: list[Written] = []

    # -- ahead of training -------------------------------------------------------------------------------------------

    def announce(self, ids: Ids) -> None:
        """The distinct ids[u] of the next batch that has been read."""
        self._announced.append(ids)

    @property
    def num_announced(self) -> int:
        """How many ids the batches since the last window have, one with another."""
        return sum(ids.size for ids in self._announced)

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
        return WindowOfTable(batches, keys, wanted, read, np.empty((0, self.rows.width), np.float32))

    # -- between windows ---------------------------------------------------------------------------------------------

    def make_room(self, window: WindowOfTable) -> Ids:
        """Give the rows of a window their slots (cDLRM 5.2.1). Slots that are to be left, and were touched since they were averaged."""
        window.placement = self._occupancy.place(window.keys)
        slots = window.placement.evicted_slots
        return slots[np.isin(slots, distinct(self._touched))] if self._touched else NO_IDS

    def to_leave(self, window: WindowOfTable) -> tuple[SlotRows, Ids]:
        """The slots of what makes room, where this trainer writes it back; nothing where another does."""
        assert window.placement
        self.counts.evicted += window.placement.evicted_keys.size
        return self.rows, window.placement.evicted_slots if self.writes else NO_IDS

    def leave(self, window: WindowOfTable, rows: Rows) -> None:
        """What makes room leaves: the rows[n,W] of `to_leave`."""
        assert window.placement
        if len(rows):
            with self._lock:
                self._leaving.append(self._journal.add(window.placement.evicted_keys, rows))

    def put_right(self, window: WindowOfTable) -> Ids:
        """Put right the window's fresh rows that have changed since they were read. Which of its rows these are.

        Requires: what makes room for them, none of which is theirs, has not left yet.
        """
        if not self._missed(window.read):
            return NO_IDS
        fresh = window.fresh
        own = window.rows_of(fresh)
        rows = window.rows[own]
        changed = own[self._put_right(window.read, window.keys[fresh], rows)]
        window.rows[own] = rows
        return changed if self.patch else NO_IDS

    def _missed(self, read: int) -> bool:
        """Whether anything may have changed since a read began; where nothing has, it has ended."""
        with self._lock:
            missed = self._journal.missed(read)
            if not missed:
                self._journal.end_read(read)
        return missed

    def victims_of(self, window: WindowOfTable) -> list[Ids]:
        """The conflict victims of each of this trainer's batches; nothing at all where no trainer has any."""
        assert window.placement
        if (window.placement.slots >= 0).all():
            return []
        return [ids[self._occupancy.find(ids) < 0] for ids in window.batches]

    def filling(self, window: WindowOfTable) -> Filling:
        """The window's fresh rows, and their slots; when they are there, its steps can begin."""
        assert window.placement
        self.counts.loaded += window.fresh.size
        self._window = window
        slots = window.placement.slots[window.fresh]
        is_all = slots.size == len(window.rows)
        return Filling(self.rows, slots, window.rows, None if is_all else window.rows_of(window.fresh))

    # -- steps -------------------------------------------------------------------------------------------------------

    @property
    def next_count(self) -> int:
        """The number of ids of the step that is prepared next."""
        assert self._window
        return self._window.batches[0].size

    def prepare_step(self) -> None:
        """Find the slots of the next batch of the window, ahead of its step. At any time between the window's placing and that step."""
        assert self._window
        ids = self._window.batches.popleft()
        victims = self._window.victims.popleft() if self._window.victims else NO_IDS
        slots = ids if self.is_whole else self._occupancy.find(ids)
        missed = 0
        if victims.size:
            missing = np.flatnonzero(slots < 0)
            slots[missing] = self.geometry.num_slots + np.searchsorted(victims, ids[missing])
            missed = missing.size
        if ids.size:
            self._found[_address(ids)] = slots
        self._prepared.append(_Prepared(slots, victims, missed))

    def begin_step(self) -> Ids:
        """The next batch of the window: its conflict victims, whose rows are to be fetched."""
        if not self._prepared:
            self.prepare_step()
        step = self._prepared.popleft()
        self._slots, self._victims = step.slots, step.victims
        self.counts.hits += step.slots.size - step.missed
        self.counts.misses += step.missed
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
        """Where the rows of ids[u] stand, as they were announced. Requires: their step has been prepared; it is asked once."""
        return self._found.pop(_address(ids)) if ids.size else NO_IDS

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
        if self._updated.size:
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
        return self.rows.read(slots)

    def put(self, slots: Ids, rows: Rows) -> None:
        """The reverse of `rows_at`."""
        if slots.size:
            self.rows.write(slots, rows)

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
            rows = self.rows_at(slots)  # others share threads with this, and may wait for the lock in them
            with self._lock:
                self._leaving.append(self._journal.add(keys, rows))


def _address(ids: Ids) -> int:
    """Where ids are in memory, in which those of steps under way differ: they have not gone."""
    address: int = ids.__array_interface__["data"][0]
    return address


def distinct(parts: Sequence[Ids]) -> Ids:
    """The distinct ids[n] of all parts[k][n_k], in each of which they are distinct."""
    return parts[0] if len(parts) == 1 else dedupe(np.concatenate([NO_IDS, *parts]), -1)[0]

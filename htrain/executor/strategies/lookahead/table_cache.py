"""The look-ahead cache of one table: its slots on the device, its occupancy table, and what has left it lately (cDLRM 5)."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from htrain.executor.strategies.lookahead.slot_rows import SlotRows
from htrain.executor.strategies.lookahead.turnover import Left, Turning
from htrain.net.placement import CacheGeometry
from htrain.ops.sparse_loops import dedupe
from htrain.sync.lookahead.journal import Journal, Written
from htrain.sync.lookahead.occupancy import Occupancy, Placement

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
NO_IDS: Ids = np.empty(0, np.int64)


@dataclass
class WindowOfTable:
    """A look-ahead window of one table: the distinct ids of each of this trainer's `batches`, `places` of these among `keys`[n], those of all trainers
    together, and the slots that `placement` gives them; `asked` are the sizes of the batches. The rows[f,W] of its fresh keys are read from the store; `read`
    is the read's number in the journal.

    Of conflict victims `missed` are those of this trainer's batches, `victims`, sorted, of everybody's; without any, there are none.
    """

    batches: deque[Ids]
    places: deque[Ids]
    keys: Ids
    placement: Placement
    asked: Sequence[int]
    missed: Sequence[Ids]
    rows: Rows
    read: int = -1
    victims: deque[Ids] = field(default_factory=deque)

    @property
    def fresh_keys(self) -> Ids:
        """The keys whose rows are to be put into slots."""
        return self.keys[self.placement.fresh]

    @property
    def fresh_slots(self) -> Ids:
        """The slots of these."""
        return self.placement.slots[self.placement.fresh]


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

    Threads use it: the planner calls `announce`, `announced` and `plan`, the prefetcher `begin_read`, `put_right` and `turning`, the writer `stored`, who
    prepares steps `prepare_step` and `slots`, and the trainer everything else.
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
        self._planning = threading.Lock()  # of the occupancy table, which is ahead of the slots by what is planned
        self._planned: deque[WindowOfTable] = deque()
        self._announced: list[Ids] = []
        self._places: list[Ids] = []  # of announced ids among the distinct ones of all
        self._to_prepare: deque[WindowOfTable] = deque()
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
        keys, self._places = distinct_places(self._announced)
        return keys

    def plan(self, announced: Sequence[Ids], own: int = 0) -> WindowOfTable:
        """The batches since the last window, as one, and the slots of its rows, for when it is placed (cDLRM 5.2.1). Every trainer has `announced` its distinct
        ids, this one those at place `own`; batches that have been read since then have none."""
        keys, joint = distinct_places(announced)
        batches, self._announced = deque(self._announced), []
        places = deque(self._places if len(announced) == 1 else [joint[own][each] for each in self._places])
        places.extend([NO_IDS] * (len(batches) - len(places)))
        with self._planning:
            placement = self._occupancy.place(keys)
            missed: Sequence[Ids] = ()
            if keys.size and placement.slots.min() < 0:
                missed = [ids[placement.slots[at] < 0] for ids, at in zip(batches, places, strict=True)]
            asked, rows = [ids.size for ids in batches], np.empty((0, self.rows.width), np.float32)
            window = WindowOfTable(batches, places, keys, placement, asked=asked, missed=missed, rows=rows)
            self._planned.append(window)
        if len(announced) == 1:  # no others have any
            window.victims.extend(map(np.sort, missed))
        self._to_prepare.append(window)
        return window

    def begin_read(self, window: WindowOfTable) -> None:
        """The window's fresh rows are read from the store from now on. Requires: the window before has been placed."""
        with self._lock:
            window.read = self._journal.begin_read()

    def put_right(self, window: WindowOfTable, fetched: Rows) -> None:
        """The window's fresh rows have come, fetched[f,W]: put right those that have left a cache, and were not in the store when they were read."""
        if self.patch and self.writes:
            with self._lock:
                if self._journal.missed(window.read):
                    self._journal.patch(window.read, window.fresh_keys, fetched)
                    self._journal.patched(window.read)

    def turning(self, window: WindowOfTable) -> Turning:
        """What the window changes of the slots; of several trainers one writes back what makes room."""
        leaving = window.placement.evicted_slots if self.writes else NO_IDS
        return Turning(self.rows, leaving, window.fresh_slots, window.rows)

    # -- between windows ---------------------------------------------------------------------------------------------

    def touched_of(self, window: WindowOfTable) -> Ids:
        """Slots that make room for a window, and were touched since they were averaged."""
        slots = window.placement.evicted_slots
        return slots[np.isin(slots, distinct(self._touched))] if self._touched else NO_IDS

    def leave(self, window: WindowOfTable, left: Left) -> None:
        """What makes room leaves, where this trainer writes it back."""
        self.counts.evicted += window.placement.evicted_keys.size
        if len(left.rows):
            with self._lock:
                self._leaving.append(self._journal.add(window.placement.evicted_keys, left.rows, left.arrived))

    def put_right_since(self, window: WindowOfTable) -> Ids:
        """Put right the window's fresh rows that have changed since then, as conflict victims. Which of its rows these are.

        Requires: what makes room for them, none of which is theirs, has not left yet.
        """
        with self._lock:
            if not self._journal.missed(window.read):
                self._journal.end_read(window.read)
                return NO_IDS
        stale = np.flatnonzero(self._put_right(window.read, window.fresh_keys, window.rows))
        return stale if self.patch else NO_IDS

    def enter(self, window: WindowOfTable) -> None:
        """The window's fresh rows are in their slots: its steps can begin."""
        self.counts.loaded += window.placement.fresh.size
        with self._planning:
            placed = self._planned.popleft()
            assert placed is window

    # -- steps -------------------------------------------------------------------------------------------------------

    @property
    def next_count(self) -> int:
        """The number of ids of the step that is prepared next."""
        return self._to_prepare[0].batches[0].size

    def prepare_step(self) -> None:
        """The slots of the next batch, ahead of its step, from when its window has been planned, and its victims are known."""
        window = self._to_prepare[0]
        ids, places = window.batches.popleft(), window.places.popleft()
        victims = window.victims.popleft() if window.victims else NO_IDS
        if not window.batches:
            self._to_prepare.popleft()
        slots = ids if self.is_whole else window.placement.slots[places]
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
        with self._planning:
            return self._occupancy.residents([window.placement for window in self._planned])

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


def distinct_places(parts: Sequence[Ids]) -> tuple[Ids, list[Ids]]:
    """The same, and the places of each part's ids among them."""
    if len(parts) == 1:
        return parts[0], [np.arange(parts[0].size)]
    keys, places = dedupe(np.concatenate([NO_IDS, *parts]), -1)
    return keys, np.split(places, np.cumsum([part.size for part in parts])[:-1])

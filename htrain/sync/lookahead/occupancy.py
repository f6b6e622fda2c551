"""The occupancy table: which rows of one table stand in which slots of its set-associative cache (cDLRM 3.2, 5.2.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htrain.net.placement import CacheGeometry
from htrain.sync.lookahead import loops

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Placement:
    """Where the rows of a window stand: `slots`[n], -1 for a conflict victim. `fresh`[f] are places in the window's keys whose rows must be
    put into their slots; before that, the rows `evicted_keys`[e] leave the slots `evicted_slots`[e]."""

    slots: Ids
    fresh: Ids
    evicted_keys: Ids
    evicted_slots: Ids


class Occupancy:
    """Slot s is way s % ways of set s // ways; `keys`[slots] is the row that stands there, -1 for none."""

    def __init__(self, geometry: CacheGeometry, seed: int) -> None:
        self.geometry = geometry
        self.keys: Ids = np.full(geometry.num_slots, -1, np.int64)
        self._pins = np.full(geometry.num_slots, -1, np.int32)  # the last window that uses the slot
        self._window = -1
        self._random = np.array([2 * seed + 1], np.uint64)  # never 0

    def place(self, keys: Ids) -> Placement:
        """Make room for the rows of the next window. Those that are here stay and are pinned; every other one takes an unpinned way of its
        set: an empty one, else any. A row whose set is pinned whole becomes a conflict victim. What is chosen depends on nothing but the
        windows that were placed.

        Requires: `keys`[n] distinct.
        """
        self._window += 1
        slots = np.empty(keys.size, np.int64)
        fresh, evicted_keys, evicted_slots = (np.empty(keys.size, np.int64) for _ in range(3))
        loops.pin_hits(
            self.keys,
            self._pins,
            ways=self.geometry.ways,
            sets=self.geometry.sets,
            window=self._window,
            keys=keys,
            slots=slots,
        )
        filled, evicted = loops.place_misses(
            self.keys, self._pins, ways=self.geometry.ways, sets=self.geometry.sets, window=self._window, random=self._random, keys=keys, slots=slots,
            fresh=fresh, evicted_keys=evicted_keys, evicted_slots=evicted_slots,
        )  # fmt: skip
        return Placement(slots, fresh[:filled].copy(), evicted_keys[:evicted].copy(), evicted_slots[:evicted].copy())

    def find(self, keys: Ids) -> Ids:
        """The slots[n] of keys[n], -1 for one that is not here. No state changes."""
        slots = np.empty(keys.size, np.int64)
        loops.find_slots(self.keys, self.geometry.ways, self.geometry.sets, keys, slots)
        return slots

    def residents(self, undone: Sequence[Placement] = ()) -> tuple[Ids, Ids]:
        """The keys that are here, and their slots; as it was before the last windows, whose placements are `undone`."""
        keys = self.keys.copy() if undone else self.keys
        for placement in reversed(undone):
            keys[placement.slots[placement.fresh]] = -1
            keys[placement.evicted_slots] = placement.evicted_keys
        slots = np.flatnonzero(keys >= 0)
        return keys[slots], slots

    def forget(self) -> None:
        """Nothing is here any more."""
        self.keys.fill(-1)
        self._pins.fill(-1)

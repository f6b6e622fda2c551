"""The memory of a HET client: a slot per row, its values, clocks and place in the policy's lists, and the index of keys."""

import numpy as np

from htrain.sync.het import loops
from htrain.sync.het.policy import ABOVE, AHEAD, LIST, UNLISTED, Lists, Meta, new_lists
from htrain.sync.index import add_counts, index_all, new_index
from htrain.sync.request import Rows
from htrain.sync.territory import Ids


class Slots:
    """`key_of`[n] is -1 for a free slot; `rows`[n,W], `meta`[n,8] and `lists` are as `htrain.sync.het.loops` has them; `free` is a stack."""

    def __init__(self, row_width: int, num_slots: int) -> None:
        self.rows: Rows = np.empty((0, row_width), np.float32)
        self.meta: Meta = np.zeros((0, 8), np.int32)
        self.lists: Lists = new_lists(0)
        self.key_of: Ids = np.empty(0, np.int64)
        self.free: Ids = np.empty(0, np.int64)
        self.num_free = 0
        self._ahead = new_index(0)  # of keys that are not here: how many announced batches will use them
        self._num_ahead = 0
        self.grow(num_slots)

    @property
    def num_taken(self) -> int:
        """How many slots hold a row."""
        return len(self.key_of) - self.num_free

    @property
    def num_expected(self) -> int:
        """Uses by announced batches, of rows that are here and others."""
        here = self.meta[self.key_of >= 0, AHEAD].sum()
        return int(here + np.maximum(self._ahead[1::2], 0).sum())

    def expect(self, keys: Ids, counts: Ids) -> None:
        """Announced batches will use rows that are not here: counts[n] more for keys[n]."""
        if 2 * (self._num_ahead + keys.size) > self._ahead.size // 2:
            known = np.flatnonzero(self._ahead[1::2] > 0)
            old, self._ahead = self._ahead, new_index(2 * (known.size + keys.size))
            self._num_ahead = add_counts(self._ahead, old[2 * known].copy(), old[2 * known + 1].copy())
        self._num_ahead += add_counts(self._ahead, keys, counts)

    def settle_in(self, keys: Ids, announced: int, slots: Ids, width: int) -> None:
        """Give each key that slots[i] < 0 says is not here a free slot. Requires: enough of them."""
        missing = int((slots < 0).sum())
        self.num_free = loops.settle_in(
            self.index, self.meta, key_of=self.key_of, rows=self.rows, width=width, free=self.free, num_free=self.num_free,
            keys=keys, ahead=self._ahead, announced=announced, slots=slots,
        )  # fmt: skip
        self._num_ahead -= missing * announced

    def grow(self, num_slots: int) -> None:
        """Make room for `num_slots` rows in all; those that are there keep their slots."""
        old, rows = len(self.key_of), np.empty((num_slots, self.rows.shape[1]), np.float32)
        meta, key_of = np.zeros((num_slots, 8), np.int32), np.full(num_slots, -1, np.int64)
        meta[:, LIST] = UNLISTED
        rows[:old], meta[:old], key_of[:old] = self.rows, self.meta, self.key_of
        self.rows, self.meta, self.key_of = rows, meta, key_of
        self._add_lists(num_slots)
        self._add_free(old, num_slots)
        self.index = new_index(num_slots)
        index_all(self.index, key_of)

    def _add_lists(self, num_slots: int) -> None:
        """More lists for the policy, in front of those that are free."""
        known, lists = len(self.lists), new_lists(num_slots)
        lists[:known] = self.lists
        lists[known:, ABOVE] = [*range(known + 1, len(lists)), self.lists[1, ABOVE]]
        lists[1, ABOVE] = known
        self.lists = lists

    def _add_free(self, old: int, num_slots: int) -> None:
        free = np.empty(num_slots, np.int64)
        free[: self.num_free] = self.free[: self.num_free]
        self.num_free += num_slots - old
        free[self.num_free - (num_slots - old) : self.num_free] = np.arange(num_slots - 1, old - 1, -1)
        self.free = free

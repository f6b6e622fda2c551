"""Rows by the order in which they first came, so that playing a cache takes memory for the rows that batches ask for, not for whole tables."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.jit import njit
from htrain.sync.index import add_counts, find, insert, new_index

Ids = NDArray[np.int64]


class Numbering:
    """Numbers for keys, which stay in the order of their shards: shard i, of the keys from bounds[i] to bounds[i+1], has the numbers from
    first[i] on, room for all of its keys, or for `most` where there are more."""

    def __init__(self, bounds: Sequence[int], most: int) -> None:
        self._bounds = np.array(bounds, np.int64)
        rooms = np.minimum(self._bounds[1:] - self._bounds[:-1], most)
        self.first: Ids = np.concatenate([[0], rooms.cumsum()]).astype(np.int64)
        self._used = np.zeros(len(rooms), np.int64)
        self._index = new_index(0)
        self._known = 0

    @property
    def size(self) -> int:
        """Numbers that there are room for."""
        return int(self.first[-1])

    def numbers(self, keys: Ids) -> Ids:
        """The number of each of the distinct `keys`; new ones get the next of their shard. Raises DataError for a key that no shard has."""
        if keys.size and not self._bounds[0] <= keys.min() <= keys.max() < self._bounds[-1]:
            bad = keys[(keys < self._bounds[0]) | (keys >= self._bounds[-1])][0]
            raise DataError(f"row {bad} is asked for, the cached tables have {self._bounds[-1]}: is an id too large?")
        self._make_room(keys.size)
        numbers = np.empty(keys.size, np.int64)
        self._known += _number(self._index, self._bounds, first=self.first, used=self._used, keys=keys, numbers=numbers)
        return numbers

    def _make_room(self, more: int) -> None:
        if 2 * (self._known + more) > self._index.size // 2:
            old, self._index = self._index, new_index(2 * (self._known + more))
            places = np.flatnonzero(old[1::2] >= 0)
            add_counts(self._index, old[2 * places], old[2 * places + 1])


@njit(nogil=True, cache=True)
def _number(index, bounds, first, used, keys, numbers):  # type: ignore[no-untyped-def]
    new = 0
    for i in range(keys.size):
        number = find(index, keys[i])
        if number < 0:
            shard = np.searchsorted(bounds, keys[i], side="right") - 1
            number = first[shard] + used[shard]
            used[shard] += 1
            insert(index, keys[i], number)
            new += 1
        numbers[i] = number
    return new

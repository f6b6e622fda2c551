"""What has been written back lately: which prefetched rows have changed since they were read, and what they are now.

cDLRM accepts that a prefetched row is stale when it leaves the cache, changed, between being read and being used (5.3). Here every write back
has a number, a read remembers how many had reached the store when it began, and rows written back since are put right from memory.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htrain.sync.index import find_all, new_index, put_all

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Written:
    """A write back: `rows`[n,W], each with its optimizer state behind it, of `keys`[n]."""

    number: int
    keys: Ids
    rows: Rows


class Journal:
    """The write backs that a read under way may have missed, in order. Not thread-safe: its caller locks.

    Write backs are numbered 0, 1, 2, ... and reach the store in this order.
    """

    def __init__(self) -> None:
        self._written: list[Written] = []  # those that are kept, in order
        self._starts: list[int] = []  # the position of the first row of each
        self._end = 0  # the position that the next row will have
        self._next = 0
        self._stored = 0  # how many have reached the store
        self._reads: dict[int, int] = {}  # how many had reached the store when a read began
        self._next_read = 0
        self._index = new_index(0)  # key -> position; positions before the first start are of the past
        self._indexed = 0

    @property
    def num_rows(self) -> int:
        """Rows that are kept."""
        return self._end - (self._starts[0] if self._starts else self._end)

    @property
    def num_pending(self) -> int:
        """Write backs that have not reached the store."""
        return self._next - self._stored

    def begin_read(self) -> int:
        """Rows will be read from the store from now on. The number of this read."""
        self._reads[self._next_read] = self._stored
        self._next_read += 1
        return self._next_read - 1

    def missed(self, read: int) -> bool:
        """Whether rows have been written back that had not reached the store when a read began."""
        return self._reads[read] - self._first_number < len(self._written)

    def end_read(self, number: int) -> None:
        """What was read has been used."""
        del self._reads[number]
        self._trim()

    def add(self, keys: Ids, rows: Rows) -> Written:
        """Rows leave the cache: rows[n,W] of keys[n], distinct. They are the caller's no more."""
        written = Written(self._next, keys, rows)
        self._next += 1
        self._written.append(written)
        self._starts.append(self._end)
        if 2 * (self._indexed + keys.size) > self._index.size // 2:
            self._rebuild(keys.size)
        self._indexed += put_all(self._index, keys, self._end)
        self._end += keys.size
        return written

    def stored(self, number: int) -> None:
        """A write back has reached the store, and so have all before it."""
        self._stored = max(self._stored, number + 1)
        self._trim()

    def patch(self, read: int, keys: Ids, rows: Rows) -> NDArray[np.bool_]:
        """Put right, in rows[n,W] of keys[n], those that were written back since the read began. stale[n]: which of them differed."""
        first = self._reads[read] - self._first_number
        start = self._starts[first] if first < len(self._starts) else self._end
        places = self._places(keys, start)
        stale = places >= 0
        before = rows[stale]
        self._copy(places, rows)
        stale[stale] = (rows[stale] != before).any(axis=1)
        return stale

    @property
    def _first_number(self) -> int:
        return self._next - len(self._written)

    def _places(self, keys: Ids, start: int) -> Ids:
        """The position of each key, -1 where it is before `start` or of the past."""
        places = np.empty(keys.size, np.int64)
        start = max(start, self._starts[0] if self._starts else self._end)
        if not find_all(self._index, keys, places):
            return places
        places[places < start] = -1
        return places

    def _copy(self, places: Ids, rows: Rows) -> None:
        found = np.flatnonzero(places >= 0)
        if not found.size:
            return
        parts = np.searchsorted(self._starts, places[found], side="right") - 1
        for part in np.unique(parts):
            at = found[parts == part]
            rows[at] = self._written[part].rows[places[at] - self._starts[part]]

    def _trim(self) -> None:
        """Drop write backs that had reached the store before every read under way began."""
        keep = min(self._reads.values(), default=self._stored) - self._first_number
        if keep > 0:
            del self._written[:keep]
            del self._starts[:keep]
        if not self._written and self._indexed:
            self._index, self._indexed = new_index(0), 0

    def _rebuild(self, more: int) -> None:
        """An index with room for `more` keys, without those of the past."""
        self._index, self._indexed = new_index(2 * (self.num_rows + more)), 0
        for start, written in zip(self._starts[:-1], self._written[:-1], strict=True):
            self._indexed += put_all(self._index, written.keys, start)

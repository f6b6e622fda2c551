"""What has been written back lately: which prefetched rows have changed since they were read, and what they are now.

cDLRM accepts that a prefetched row is stale when it leaves the cache, changed, between being read and being used (5.3). Here every write back
has a number, a read remembers how many had reached the store when it began, and rows written back since are put right from memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htrain.sync.index import new_index, put_all
from htrain.sync.lookahead import loops

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Written:
    """A write back: `rows`[n,W], each with its optimizer state behind it, of `keys`[n]. They are on their way there until `arrived` returns."""

    number: int
    keys: Ids
    rows: Rows
    arrived: Callable[[], None] = lambda: None


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
        self._indexed = 0  # entries there
        self._indexed_end = 0  # the position behind them: what comes later is indexed when something is looked for

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

    def add(self, keys: Ids, rows: Rows, arrived: Callable[[], None] = lambda: None) -> Written:
        """Rows leave the cache: rows[n,W] of keys[n], distinct, which `arrived` waits for. They are the caller's no more."""
        written = Written(self._next, keys, np.ascontiguousarray(rows), arrived)
        self._next += 1
        self._written.append(written)
        self._starts.append(self._end)
        self._end += keys.size
        return written

    def stored(self, number: int) -> None:
        """A write back has reached the store, and so have all before it."""
        self._stored = max(self._stored, number + 1)
        self._trim()

    def patch(self, read: int, keys: Ids, rows: Rows) -> NDArray[np.bool_]:
        """Put right, in rows[n,W] of keys[n], those that were written back since the read began. stale[n]: which of them differed."""
        first = self._reads[read] - self._first_number
        starts, written = np.array(self._starts[first:], np.int64), self._written[first:]
        stale = np.zeros(keys.size, np.bool_)
        if written and keys.size:
            self._index_all()
            for each in written:
                each.arrived()
            addresses = np.array([each.rows.__array_interface__["data"][0] for each in written], np.int64)
            loops.put_right(self._index, keys, rows, starts=starts, addresses=addresses, stale=stale)
        return stale

    def patched(self, read: int) -> None:
        """All that was written back so far has been put right in what a read has brought: it goes on as one that begins now, and finds it in the store."""
        self._reads[read] = self._next
        self._trim()

    @property
    def _first_number(self) -> int:
        return self._next - len(self._written)

    def _trim(self) -> None:
        """Drop write backs that had reached the store before every read under way began."""
        keep = min([self._stored, *self._reads.values()]) - self._first_number
        if keep > 0:
            del self._written[:keep]
            del self._starts[:keep]
        if not self._written and self._indexed:
            self._index, self._indexed = new_index(0), 0
        self._indexed_end = max(self._indexed_end, self._starts[0] if self._starts else self._end)

    def _index_all(self) -> None:
        """Find what has been written since something was looked for the last time."""
        more = self._end - self._indexed_end
        if 2 * (self._indexed + more) > self._index.size // 2:  # a new one, without the keys of the past
            self._index, self._indexed, self._indexed_end = new_index(2 * self.num_rows), 0, 0
        for start, written in zip(self._starts, self._written, strict=True):
            if start >= self._indexed_end:
                self._indexed += put_all(self._index, written.keys, start)
        self._indexed_end = self._end

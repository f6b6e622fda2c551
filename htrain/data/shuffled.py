"""The rows of a source in another order: shuffled within windows of so many rows, in every epoch otherwise, and the same for the same seed.

A window is one chunk after another of a shard, until it has enough rows. It has the number of its first chunk, so that a run goes on from the row where it
stood, after the window has been read again. What has come since an epoch was begun is in windows of its own: those before stay as they were.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htrain.data.hashing import GOLDEN, mixed
from htrain.data.malformed import Malformed
from htrain.data.reader import Source
from htrain.data.rows import Rows, joined
from htrain.errors import DataError
from htrain.jit import njit


@dataclass(frozen=True)
class Shuffle:
    """Windows of at least `rows` rows, drawn from `seed`."""

    rows: int
    seed: int
    regroups = True

    @property
    def option(self) -> str:
        """See `Order`."""
        return "shuffle"

    def of(self, source: Source, epoch: int, begins: Sequence[int]) -> Source:
        """A source as it is read in an epoch. No window goes over one of `begins`."""
        return Shuffled(source, self.rows, self.seed, epoch, tuple(begins))


@dataclass(frozen=True)
class Shuffled:
    """A source in one epoch."""

    source: Source
    rows: int
    seed: int
    epoch: int
    begins: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The source's name."""
        return self.source.name

    def num_examples(self) -> int:
        """As many as the source has."""
        return self.source.num_examples()

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Requires: `first` is the number of a window, or 0."""
        chunks = self.source.chunks(shard=shard, num_shards=num_shards, first=first, malformed=malformed)
        for number, parts in self._windows(chunks):
            rows = joined([rows for _, rows in parts])
            yield number, rows.take(self._order(number, rows.count))

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """See `Source`: the source's name for the row that is `row` here. It reads the window again; raises DataError where that is there no more."""
        for shard in range(num_shards):
            chunks = self.source.chunks(
                shard=shard, num_shards=num_shards, first=number, malformed=Malformed(share=1.0)
            )
            found, parts = next(self._windows(chunks), (-1, []))
            if found == number:
                there = int(self._order(number, sum(rows.count for _, rows in parts))[row])
                for chunk, rows in parts:
                    if there < rows.count:
                        return self.source.place(number=chunk, row=there, num_shards=num_shards)
                    there -= rows.count
        raise DataError(f"{self.source.name}: was written to while it was read")

    def _windows(self, chunks: Iterator[tuple[int, Rows]]) -> Iterator[tuple[int, list[tuple[int, Rows]]]]:
        """Chunks by windows; each has the number of its first chunk."""
        parts: list[tuple[int, Rows]] = []
        count = 0
        for chunk, rows in chunks:
            if parts and bisect_right(self.begins, chunk) > bisect_right(self.begins, parts[0][0]):
                yield parts[0][0], parts
                parts, count = [], 0
            parts.append((chunk, rows))
            count += rows.count
            if count >= self.rows:
                yield parts[0][0], parts
                parts, count = [], 0
        if parts:
            yield parts[0][0], parts

    def _order(self, number: int, count: int) -> NDArray[np.int64]:
        """Which row of a window comes at each place."""
        keys = np.empty(count, np.uint64)
        key = (self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xD1B54A32D192ED03 + number * 0x8CB92BA72F3D8DD7) % 2**64
        _draw(np.uint64(key), keys)
        return np.argsort(keys, kind="stable")


@njit(nogil=True, cache=True)
def _draw(key, keys):  # type: ignore[no-untyped-def]
    """A number for each row of a window, by its place: no library's generator, which may be another with its next version."""
    start = mixed(key)
    for i in range(keys.size):
        keys[i] = mixed(start + GOLDEN * np.uint64(i + 1))

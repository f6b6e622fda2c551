"""A part of data that is held out, row by row: to train on one part of a file and validate on the other.

Which part a row is in follows from a hash of its inputs, label left out: rows that are alike are never in both parts, and format, order, files and the number
of trainers make no difference.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from htrain.data.hashing import GOLDEN, mixed
from htrain.data.malformed import Malformed
from htrain.data.reader import Dataset, Source
from htrain.data.rows import Rows
from htrain.errors import DataError

OPTIONS = ("test", "part")
_PARTS = ("train", "test")


def part_of(dataset: Dataset, values: Mapping[str, str]) -> Dataset:
    """The rows of one part, as the options `test`, the share that is held out, and `part`, train or test, say; all where neither is given. Raises DataError."""
    if not values:
        return dataset
    if "test" not in values:
        raise DataError(f"option part={values['part']}: has no effect without test=SHARE, the share that is held out")
    part = values.get("part", "train")
    if part not in _PARTS:
        raise DataError(f"option part={part}: want train or test")
    share = _share(values["test"])
    if dataset.partition or dataset.num_workers:
        raise DataError(
            f"{dataset.source.name}: was packed by a partition, which has all examples: hold out test={values['test']} of what is partitioned"
        )
    return replace(dataset, source=HeldOut(dataset.source, share, part == "test"))


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:  # false for nan, too
        raise DataError(f"option test={text}: want a share above 0 and below 1")
    return share


@dataclass(frozen=True)
class HeldOut:
    """The rows of a source that are held out, or with `is_test` False all others. Chunks have the numbers that they have there."""

    source: Source
    share: float
    is_test: bool

    @property
    def name(self) -> str:
        """The source's name, and which part of it."""
        return f"{self.source.name} (part {'test' if self.is_test else 'train'} of test={self.share:g})"

    def num_examples(self) -> int:
        """About as many as the share says; 0 where the source does not tell."""
        return round(self.source.num_examples() * (self.share if self.is_test else 1 - self.share))

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Chunks in which no row is left are among them."""
        for number, rows in self.source.chunks(shard=shard, num_shards=num_shards, first=first, malformed=malformed):
            yield number, rows.take(self._places(rows))

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """See `Source`: the source's name for the row that is `row` here. It reads the chunk again; raises DataError where that is there no more."""
        for shard in range(num_shards):
            seen = Malformed(share=1.0)
            chunks = self.source.chunks(shard=shard, num_shards=num_shards, first=number, malformed=seen)
            found, rows = next(chunks, (-1, None))
            if found == number and rows is not None:
                there = int(self._places(rows)[row])
                return self.source.place(number=number, row=there, num_shards=num_shards)
        raise DataError(f"{self.source.name}: was written to while it was read")

    def _places(self, rows: Rows) -> NDArray[np.int64]:
        """Which rows of a chunk are in this part."""
        return np.flatnonzero((fractions(rows) < self.share) == self.is_test)


def fractions(rows: Rows) -> NDArray[np.float64]:
    """A number from 0 to below 1 for each row, float64[n], the same for the same inputs."""
    hashes = np.full(rows.count, GOLDEN, np.uint64)
    inputs = {name: values for name, values in rows.fixed.items() if name != "label"}
    for name in sorted(inputs):
        values = inputs[name]
        _fold(hashes, _words(values).reshape(rows.count, math.prod(values.shape[1:])))
    for name in sorted(rows.lists):
        values, starts = rows.lists[name]
        _fold_lists(hashes, _words(values), starts)
    return (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53


def _words(values: np.ndarray) -> NDArray[np.uint64]:
    """Numbers as 64 bits: integers whatever their size here, and floats by their bits, both zeros alike."""
    if values.dtype.kind == "f":
        return (values.astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.uint64)
    return np.ascontiguousarray(values, np.int64).view(np.uint64)


@njit(nogil=True, cache=True)
def _fold(hashes, words):  # type: ignore[no-untyped-def]
    for i in range(hashes.size):
        for j in range(words.shape[1]):
            hashes[i] = mixed(hashes[i] * GOLDEN + words[i, j])


@njit(nogil=True, cache=True)
def _fold_lists(hashes, words, starts):  # type: ignore[no-untyped-def]
    for i in range(hashes.size):
        hashes[i] = mixed(hashes[i] * GOLDEN + np.uint64(starts[i + 1] - starts[i]))
        for j in range(starts[i], starts[i + 1]):
            hashes[i] = mixed(hashes[i] * GOLDEN + words[j])

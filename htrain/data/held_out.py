"""A part of data that is held out, row by row: to train on one part of a file and validate on the other.

Which part a row is in follows from a hash of its inputs, label left out: rows that are alike are never in both parts; or from its time. Format, order, files
and the number of trainers make no difference.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from htrain.data.hashing import GOLDEN, mixed
from htrain.data.malformed import Malformed
from htrain.data.reader import Dataset, Source
from htrain.data.rows import Rows
from htrain.data.times import instant_of, shown
from htrain.errors import DataError
from htrain.jit import njit

OPTIONS = ("test", "test_from", "test_until", "part")
_PARTS = ("train", "test")


class Part(Protocol):
    """Which rows of data are in a part of it."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def share(self) -> float:
        """About the share of all rows that it has; nan where that is not known."""

    def places(self, rows: Rows) -> NDArray[np.int64]:
        """Which of some rows are in it."""


@dataclass(frozen=True)
class ByHash:
    """The share `test` of the rows, chosen by a hash of their inputs, or with `is_test` False all others."""

    test: float
    is_test: bool

    @property
    def name(self) -> str:
        """See `Part`."""
        return f"part {_PARTS[self.is_test]} of test={self.test:g}"

    @property
    def share(self) -> float:
        """See `Part`."""
        return self.test if self.is_test else 1 - self.test

    def places(self, rows: Rows) -> NDArray[np.int64]:
        """See `Part`."""
        return np.flatnonzero((fractions(rows) < self.test) == self.is_test)


@dataclass(frozen=True)
class ByTime:
    """The rows of times from `begin` to before `end`, both in microseconds since the epoch, or with `is_test` False those before `begin`."""

    begin: int
    end: int
    is_test: bool

    @property
    def name(self) -> str:
        """See `Part`."""
        until = f", test_until={shown(self.end)}" if self.is_test and self.end != _NEVER else ""
        return f"part {_PARTS[self.is_test]} of test_from={shown(self.begin)}{until}"

    @property
    def share(self) -> float:
        """See `Part`."""
        return math.nan

    def places(self, rows: Rows) -> NDArray[np.int64]:
        """See `Part`. Requires: the rows have times."""
        assert rows.times is not None
        is_in = (rows.times >= self.begin) & (rows.times < self.end) if self.is_test else rows.times < self.begin
        return np.flatnonzero(is_in)


_NEVER = 2**63 - 1


def part_of(values: Mapping[str, str]) -> Part | None:
    """The part that options say: `test`, the share that is held out, or `test_from` and `test_until`, the times of what is; and `part`, train or test. None
    where none is given. Raises DataError for what is no part.
    """
    if not values:
        return None
    part = values.get("part", "train")
    if part not in _PARTS:
        raise DataError(f"option part={part}: want train or test")
    if "test" in values and "test_from" in values:
        raise DataError(f"option test_from={values['test_from']}: want either test=SHARE or times, not both")
    if "test" in values and "test_until" not in values:
        return ByHash(_share(values["test"]), part == "test")
    if "test_from" not in values:
        name = "test_until" if "test_until" in values else "part"
        cure = "test_from=TIME" if name == "test_until" else "test=SHARE, the share that is held out, or test_from=TIME"
        raise DataError(f"option {name}={values[name]}: has no effect without {cure}")
    begin, end = (_time(name, values) if name in values else _NEVER for name in ("test_from", "test_until"))
    if end <= begin:
        raise DataError(f"option test_until={values['test_until']}: is not after test_from={values['test_from']}")
    return ByTime(begin, end, part == "test")


def _time(name: str, values: Mapping[str, str]) -> int:
    try:
        return instant_of(values[name])
    except ValueError as error:
        raise DataError(
            f"option {name}={values[name]}: want a day or a time such as 2026-11-20 or 2026-11-20T06:00+01:00"
        ) from error


def held_out(dataset: Dataset, part: Part) -> Dataset:
    """The rows of one part. Raises DataError for data that has none."""
    name = dataset.source.name
    if dataset.partition or dataset.num_workers:
        raise DataError(
            f"{name}: was packed by a partition, which has all examples: hold out {part.name.partition(' of ')[2]} of what is partitioned"
        )
    if isinstance(part, ByTime) and not dataset.is_timed:
        raise DataError(
            f"{name}: has no times of rows, which {part.name} is by: a schema file names their column (time: COLUMN), packed data has those of its source"
        )
    return dataset.through(lambda source: HeldOut(source, part))


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
    """The rows of a source that are in one part of it. Chunks have the numbers that they have there."""

    source: Source
    part: Part

    @property
    def name(self) -> str:
        """The source's name, and which part of it."""
        return f"{self.source.name} ({self.part.name})"

    def num_examples(self) -> int:
        """About as many as the share says; 0 where that, or the source, does not tell."""
        return 0 if math.isnan(self.part.share) else round(self.source.num_examples() * self.part.share)

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Chunks in which no row is left are among them."""
        for number, rows in self.source.chunks(shard=shard, num_shards=num_shards, first=first, malformed=malformed):
            yield number, rows.take(self.part.places(rows))

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """See `Source`: the source's name for the row that is `row` here. It reads the chunk again; raises DataError where that is there no more."""
        for shard in range(num_shards):
            seen = Malformed(share=1.0)
            chunks = self.source.chunks(shard=shard, num_shards=num_shards, first=number, malformed=seen)
            found, rows = next(chunks, (-1, None))
            if found == number and rows is not None:
                there = int(self.part.places(rows)[row])
                return self.source.place(number=number, row=there, num_shards=num_shards)
        raise DataError(f"{self.source.name}: was written to while it was read")


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

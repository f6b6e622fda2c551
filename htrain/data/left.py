"""What is left of data of which some has been read, by another number of shards than are to read on (docs/decisions/runs-and-resumes.md).

Chunks are cut for the shards that an epoch is read by, so an epoch that was begun is read to its end as it was cut. The chunks of shard k that are left go to
who reads on; where these are more than the shards were, each shard falls into parts, by the numbers of its chunks. Who reads several of them reads their
chunks in the order of their numbers: what it has read is told by one position, as ever.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from htrain.data.batch import Position
from htrain.data.malformed import Malformed
from htrain.data.rows import Rows

_MOST_PLACES = 1 << 12  # of one Left: more would not make shares more even
_CHUNK_BITS = 32  # of a chunk's number that count within its file (htrain.data.files)


class Chunks(Protocol):
    """Where chunks come from (htrain.data.reader.Source)."""

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """The shard's chunks from number `first` on, with their numbers, in order."""


@dataclass(frozen=True)
class Left:
    """Part p of `parts` of shard k of `shards` has been read up to positions[k * parts + p]. Raises ValueError for what does not hold together."""

    shards: int
    parts: int
    positions: tuple[Position, ...]

    def __post_init__(self) -> None:
        if self.shards < 1 or self.parts < 1 or len(self.positions) != self.shards * self.parts:
            raise ValueError(f"{len(self.positions)} positions of {self.shards} shards in {self.parts} parts each")
        if any(min(at.epoch, at.chunk, at.row) < 0 for at in self.positions):
            raise ValueError("a position before the first row")

    @property
    def last_epoch(self) -> int:
        """The last epoch of which something has been read: those behind it are read as any are."""
        return max(at.epoch if at.chunk or at.row else at.epoch - 1 for at in self.positions)

    def among(self, readers: int) -> "Left":
        """The same, cut so that so many readers have as many places each: reader j those at j, j + readers and so on."""
        finer = readers // math.gcd(readers, len(self.positions))
        if finer * len(self.positions) > _MOST_PLACES:
            finer = -(-readers // len(self.positions))
        parts = self.parts * finer
        places = [(shard, part) for shard in range(self.shards) for part in range(parts)]
        positions = tuple(self.positions[shard * self.parts + part % self.parts] for shard, part in places)
        return Left(self.shards, parts, positions)

    def read_to(self, positions: Sequence[Position]) -> "Left":
        """What is left once so many readers have come to these positions, of which those behind the last epoch count as its end."""
        end = Position(self.last_epoch + 1, 0, 0)
        cut, readers = self.among(len(positions)), [min(at, end, key=_order) for at in positions]
        of_reader = [readers[place % len(readers)] for place in range(len(cut.positions))]
        at = (max(both, key=_order) for both in zip(cut.positions, of_reader, strict=True))
        return Left(cut.shards, cut.parts, tuple(at))

    def first_epoch(self, reader: int, readers: int) -> int:
        """The first epoch of which a reader's share has something left; one behind the last where none has."""
        own = self.among(readers).positions[reader::readers]
        return min(min(at.epoch for at in own), self.last_epoch + 1)

    def chunks(
        self, source: Chunks, *, epoch: int, reader: int, readers: int, first: int | None, malformed: Malformed
    ) -> Iterator[tuple[int, Rows, int]]:
        """The chunks of a reader in an epoch up to the last, those from number `first` on; each with how many of its rows were read before.

        A source that makes its chunks of others, as one of windows does, begins with none but its own, and others have told of theirs: it is read from its
        beginning, where `first` is None.
        """
        cut = self.among(readers)
        of: dict[int, dict[int, tuple[int, int]]] = {}  # shard: part: the chunk and the row to go on from
        for place in range(reader, len(cut.positions), readers):
            at = cut.positions[place]
            if at.epoch <= epoch:
                begin = (at.chunk, at.row) if at.epoch == epoch else (0, 0)
                of.setdefault(place // cut.parts, {})[place % cut.parts] = begin
        shards = [cut._of_shard(source, shard, begins, first, malformed) for shard, begins in of.items()]
        yield from heapq.merge(*shards, key=lambda chunk: chunk[0])

    def _of_shard(
        self, source: Chunks, shard: int, begins: dict[int, tuple[int, int]], first: int | None, malformed: Malformed
    ) -> Iterator[tuple[int, Rows, int]]:
        """What is left of those parts of a shard that begin with these chunks and rows. Of chunks of others nothing is told."""
        seen = _Seen()
        begin = 0 if first is None else max(first, min(chunk for chunk, _ in begins.values()))
        for number, rows in source.chunks(shard=shard, num_shards=self.shards, first=begin, malformed=seen):
            chunk, row = begins.get(self._part(number, regroups=first is None), (math.inf, 0))
            if number >= chunk:
                seen.tell(malformed)
                yield number, rows, row if number == chunk else 0
            seen.forget()

    def _part(self, number: int, *, regroups: bool) -> int:
        """The part of its shard that a chunk belongs to. Files of one chunk each are shared out, too; of groups of chunks the numbers may all be even, and are
        mixed."""
        if regroups:
            return int.from_bytes(blake2b(b"%d" % number, digest_size=8).digest(), "big") % self.parts
        within = number & ((1 << _CHUNK_BITS) - 1)
        return (within // self.shards + (number >> _CHUNK_BITS)) % self.parts


def left_by(before: Sequence[Left], positions: Sequence[Position]) -> tuple[Left, ...]:
    """What is left where `before` was, and as many readers as there are positions have come to them: one Left for the epochs of each number of shards, in the
    order of epochs. Some may stand in an epoch that others have not begun."""
    found = [left.read_to(positions) for left in before]
    first = Position(max((left.last_epoch for left in before), default=-1) + 1, 0, 0)
    newest = Left(len(positions), 1, tuple(max(at, first, key=_order) for at in positions))
    return *(left for left in found if any(at.epoch <= left.last_epoch for at in left.positions)), newest


def left_in(left: Sequence[Left], epoch: int) -> Left | None:
    """That which an epoch is read by; None for one that is read as any is."""
    return next((each for each in left if epoch <= each.last_epoch), None)


def begin_of(left: Sequence[Left], reader: int, readers: int) -> Position:
    """Where a reader begins with what `left_by` has made."""
    for each in left:
        if (epoch := each.first_epoch(reader, readers)) <= each.last_epoch:
            return Position(epoch, 0, 0)
    return Position(left[-1].last_epoch + 1, 0, 0)


def _order(at: Position) -> tuple[int, int, int]:
    return at.epoch, at.chunk, at.row


@dataclass
class _Seen(Malformed):
    """The malformed rows of chunks of which it is not yet known whether they are read here."""

    share: float = 1.0
    said: list[tuple[int, int, Callable[[int], str]]] = field(default_factory=list)

    def saw(self, rows: int, bad: int, describe: Callable[[int], str]) -> None:
        """Keep what was seen."""
        self.said.append((rows, bad, describe))

    def tell(self, malformed: Malformed) -> None:
        """Count it. Raises DataError as `Malformed.saw` does."""
        for each in self.said:
            malformed.saw(*each)

    def forget(self) -> None:
        """It was of a chunk that is over."""
        self.said.clear()

"""Data that grows from one part of a run to the next, as logs do: what an epoch reads that was begun before (docs/decisions/runs-and-resumes.md).

What has come is read in the epoch that was begun last, behind all that this had before; the epochs behind it read the files as they are then. So an epoch is
cut into segments: what there was when it was begun, and what came each time that a run went on. A part of a file is a source of its own, with a place of its
own among all parts (htrain.data.files): what comes behind changes no chunk before it, and a position means the same row whatever has come.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from htrain.data.batch import Position
from htrain.data.files import CHUNK_BITS
from htrain.data.left import Left


class FileSize(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file of data, and how many of its bytes are read."""

    name: str
    num_bytes: int


class FilePart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes of a file, by its number among the files of data, from `begin` to before `end`. A file that was empty has those from 0 to 0: it keeps its place
    among the parts. Raises ValueError for other places without a byte."""

    file: int
    begin: int
    end: int

    def __post_init__(self) -> None:
        if self.file < 0 or not (0 <= self.begin < self.end or self.begin == self.end == 0):
            raise ValueError(f"no bytes of file {self.file}: {self.begin} to {self.end}")


Segment = tuple[FilePart, ...]


class Cut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How epochs up to `last_epoch`, those behind the ones of an earlier cut, read their data: one segment after another, one part of it after another. Raises
    ValueError for a segment without a part."""

    last_epoch: int
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if self.last_epoch < 0 or not self.segments or not all(self.segments):
            raise ValueError(f"no cut of epoch {self.last_epoch}")

    @property
    def parts(self) -> tuple[FilePart, ...]:
        """All parts, in the order in which they are read."""
        return tuple(part for segment in self.segments for part in segment)

    @property
    def begins(self) -> tuple[int, ...]:
        """The numbers that the chunks of each segment but the first begin with."""
        ends = [sum(map(len, self.segments[:number])) for number in range(1, len(self.segments))]
        return tuple(end << CHUNK_BITS for end in ends)


class Extent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files that a run reads, as long as they were when it began or went on; none for data that is not in files. Epochs that were begun on less are
    `cuts`, in the order of epochs. With `by_parts` pieces of files belong to one reader each (htrain.data.owners); without, all is shared out by chunks, as an
    older htrain did. Raises ValueError where cuts are not of the files."""

    files: tuple[FileSize, ...] = ()
    cuts: tuple[Cut, ...] = ()
    by_parts: bool = False

    def __post_init__(self) -> None:
        sizes = [file.num_bytes for file in self.files]
        for part in (part for cut in self.cuts for part in cut.parts):
            if part.file >= len(sizes) or part.end > sizes[part.file]:
                raise ValueError(f"no file has the bytes {part.begin} to {part.end} of file {part.file}")


@dataclass(frozen=True)
class Reading:
    """Where readers stand: each at a position, in what others have `left`, and in epochs that are cut."""

    positions: tuple[Position, ...]
    left: tuple[Left, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def last_epoch(self) -> int:
        """The last epoch of which anything has been read; -1 where nothing has."""
        own = Left(len(self.positions), 1, self.positions)
        return max(each.last_epoch for each in (own, *self.left))

    def grown(self, before: Sequence[int], now: Sequence[int], begins: Sequence[int] = ()) -> "Reading":
        """The same once files of so many bytes `before` are of so many `now`, of which some may be new: who had come to the end of the epoch that was begun
        last stands where what has come begins. In each file from before that is where it ended, or one of the bytes `begins`: at a line that goes on.

        Requires: no file has fewer bytes than before.
        """
        last = self.last_epoch
        new = _new(before, now, begins or before)
        if last < 0 or not new:
            return self
        whole = (tuple(FilePart(file, 0, size) for file, size in enumerate(before)),)

        def segments(epoch: int) -> tuple[Segment, ...]:
            return next((cut.segments for cut in self.cuts if epoch <= cut.last_epoch), whole)

        earlier = [cut for cut in self.cuts if cut.last_epoch < last]
        if last > 0 and (not earlier or earlier[-1].last_epoch < last - 1):
            earlier.append(Cut(last - 1, segments(last - 1)))
        cut = Cut(last, (*segments(last), new))
        end, begin = Position(last + 1, 0, 0), Position(last, cut.begins[-1], 0)

        def moved(positions: Sequence[Position]) -> tuple[Position, ...]:
            return tuple(begin if at == end else at for at in positions)

        left = tuple(Left(each.shards, each.parts, moved(each.positions)) for each in self.left)
        return Reading(moved(self.positions), left, (*earlier, cut))


def _new(before: Sequence[int], now: Sequence[int], begins: Sequence[int]) -> Segment:
    """The parts of files that were not there before."""
    added = [0] * (len(now) - len(before))
    parts = enumerate(zip((*before, *added), (*begins, *added), now, strict=True))
    return tuple(FilePart(file, begin, end) for file, (old, begin, end) in parts if old < end)


def still(cuts: Sequence[Cut], epoch: int) -> tuple[Cut, ...]:
    """The cuts of an epoch and of those behind it."""
    return tuple(cut for cut in cuts if epoch <= cut.last_epoch)

"""Data in many files: which a place names, and their rows one file after another."""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from htrain.data.malformed import Malformed
from htrain.data.reader import Source
from htrain.data.rows import Rows
from htrain.data.text import readable
from htrain.errors import DataError

CHUNK_BITS = 32  # of a chunk's number that count within its file
_CHUNKS = (1 << CHUNK_BITS) - 1


def files_at(place: str, uri: str) -> list[Path]:
    """The files that a place names, in order: one, those of a folder, those that a pattern (`day-*.parquet`, `**/*.csv`) matches, or of places between commas.

    Of a folder and a pattern they come by name; hidden ones, and those that begin with `_`, as other tools mark what is no data, are left out. Raises
    DataError for a folder or a pattern that names none, and for a file that is named twice. A file that is named by itself need not be there.
    """
    with readable(Path(place)):
        if not place or Path(place).is_file():
            return [Path(place)]
    found = [path for part in place.split(",") for path in _files_of(part, uri)]
    if len(set(found)) < len(found):
        twice = next(path for path in found if found.count(path) > 1)
        raise DataError(f"{twice}: is named twice (in '{uri}')")
    return found


def _files_of(place: str, uri: str) -> list[Path]:
    path = Path(place)
    with readable(path):
        if not path.is_dir() and not glob.has_magic(place):
            return [path]
        named = path.iterdir() if path.is_dir() else map(Path, glob.glob(place, recursive=True))
        found = sorted(each for each in named if each.is_file() and _is_data(each.name))
        if not found:
            raise DataError(f"{place}: {'has no file' if path.is_dir() else 'no such file'} (from '{uri}')")
        return found


def _is_data(name: str) -> bool:
    """Whether a file is no hidden one, no mark of another tool, and not what `htrain data synth` says beside its data."""
    return name[0] not in "._" and not name.endswith(".meta.json")


@dataclass(frozen=True)
class Files:
    """The rows of several sources, one after another. The number of a chunk is that of its source, and behind it its own there.

    A shard begins one further in each source, so that small files, of one chunk each, are shared out, too.
    """

    parts: Sequence[Source]

    @property
    def name(self) -> str:
        """The first file, and how many more."""
        return f"{self.parts[0].name} and {len(self.parts) - 1} more"

    def num_examples(self) -> int:
        """Of all files; 0 where one does not tell."""
        counts = [part.num_examples() for part in self.parts]
        return sum(counts) if all(counts) else 0

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Raises DataError for a file that cannot be read."""
        for place in range(first >> CHUNK_BITS, len(self.parts)):
            begin = first & _CHUNKS if place == first >> CHUNK_BITS else 0
            of_shard = (shard - place) % num_shards
            for number, rows in self.parts[place].chunks(
                shard=of_shard, num_shards=num_shards, first=begin, malformed=malformed
            ):
                yield place << CHUNK_BITS | number, rows

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """See `Source`."""
        return self.parts[number >> CHUNK_BITS].place(number=number & _CHUNKS, row=row, num_shards=num_shards)

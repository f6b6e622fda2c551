"""Data in many files: which a place names, and their rows one file after another."""

import glob
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from htrain.data.address import Address, AnyPath, has_pattern, no_such_file, path_of
from htrain.data.malformed import Malformed
from htrain.data.owners import owners
from htrain.data.reader import Pieced, Source
from htrain.data.rows import Rows
from htrain.data.text import readable
from htrain.errors import DataError
from htrain.printable import is_unicode

CHUNK_BITS = 32  # of a chunk's number that count within its file
_CHUNKS = (1 << CHUNK_BITS) - 1


def files_at(place: str, uri: str) -> list[AnyPath]:
    """The files that a place names, in order: one, those of a folder, those that a pattern (`day-*.parquet`, `**/*.csv`) matches, or of places between commas.
    Each place is local, or an address.

    Of a folder and a pattern they come by name; hidden ones, and those that begin with `_`, as other tools mark what is no data, are left out. Raises
    DataError for a folder or a pattern that names none, for a name that is no text, and for a file that is named twice. A file that is named by itself need not
    be there.
    """
    with readable(Path(place)):
        if not place or Path(place).is_file():
            return [Path(place)]
    found = [path for part in place.split(",") for path in _files_of(part, uri)]
    if len(set(found)) < len(found):
        twice = next(path for path in found if found.count(path) > 1)
        raise DataError(f"{twice}: is named twice (in '{uri}')")
    return found


def _files_of(place: str, uri: str) -> list[AnyPath]:
    path = path_of(place)
    with readable(path):
        is_folder = path.is_dir()
        if not is_folder and not has_pattern(place):
            return [path]
        named = _files_in(path) if is_folder else _files_like(path)
        found = sorted((each for each in named if _is_data(each.name)), key=lambda each: each.parts)
        if not found:
            raise DataError(f"{place}: {'has no file' if is_folder else no_such_file(path)} (from '{uri}')")
        if other := next((each for each in found if not is_unicode(str(each))), None):
            raise DataError(f"{str(other)!r}: a name that is not UTF-8, which no run can write down: rename the file")
        return found


def _files_in(folder: AnyPath) -> Iterable[AnyPath]:
    return folder.files() if isinstance(folder, Address) else (each for each in folder.iterdir() if _is_file(each))


def _files_like(pattern: AnyPath) -> Iterable[AnyPath]:
    if isinstance(pattern, Address):
        return pattern.matching()
    return (each for each in map(Path, glob.glob(str(pattern), recursive=True)) if _is_file(each))


def _is_file(path: Path) -> bool:
    """Whether it is no folder. Raises DataError for what cannot be read, and is called as data: a link to a file that has gone is no file less."""
    if path.is_file() or path.is_dir() or not _is_data(path.name):
        return path.is_file()
    raise DataError(
        f"{path}: {'a link to what is not there' if path.is_symlink() else 'no file'}: restore it, or take it away"
    )


def _is_data(name: str) -> bool:
    """Whether a file is no hidden one, no mark of another tool, and not what `htrain data synth` says beside its data."""
    return name[0] not in "._" and not name.endswith(".meta.json")


@dataclass(frozen=True)
class NoRows:
    """A file that is empty. Among others it keeps the place at which rows may come to it."""

    name: str

    def num_examples(self) -> int:
        """None."""
        return 0

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`: none."""
        return iter(())

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """See `Source`. Raises DataError: it has no row."""
        raise DataError(f"{self.name}: is empty")


@dataclass(frozen=True)
class Files:
    """The rows of several sources, one after another. The number of a chunk is that of its source, and behind it its own there.

    A shard begins one further in each source, so that small files, of one chunk each, are shared out, too. With `segments`, how many sources came together each
    time, their pieces are read by one shard each, as far as all shards have about as many then (htrain.data.owners).
    """

    parts: Sequence[Source]
    segments: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The first file, and how many more."""
        return f"{self.parts[0].name} and {len(self.parts) - 1} more" if len(self.parts) > 1 else self.parts[0].name

    def num_examples(self) -> int:
        """Of all files; 0 where one does not tell."""
        counts = [part.num_examples() for part in self.parts if not isinstance(part, NoRows)]
        return sum(counts) if all(counts) else 0

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Raises DataError for a file that cannot be read."""
        parts = self._shared_among(num_shards)
        for place in range(first >> CHUNK_BITS, len(parts)):
            begin = first & _CHUNKS if place == first >> CHUNK_BITS else 0
            of_shard = (shard - place) % num_shards
            for number, rows in parts[place].chunks(
                shard=of_shard, num_shards=num_shards, first=begin, malformed=malformed
            ):
                yield place << CHUNK_BITS | number, rows

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """See `Source`."""
        part = self._shared_among(num_shards)[number >> CHUNK_BITS]
        return part.place(number=number & _CHUNKS, row=row, num_shards=num_shards)

    @cached_property
    def _pieces(self) -> list[tuple[int, ...]]:
        """The sizes of each source's pieces: a store is asked for them once."""
        return [part.pieces if isinstance(part, Pieced) else () for part in self.parts]

    def _shared_among(self, num_shards: int) -> Sequence[Source]:
        """The sources, whose pieces belong to shards; what comes in a later segment changes nothing of those before."""
        begin, found = 0, list(self.parts)
        for count in self.segments:
            pieces = self._pieces[begin : begin + count]
            of_pieces = iter(owners(tuple(chain.from_iterable(pieces)), num_shards))
            for place, sizes in enumerate(pieces, begin):
                part, of_part = self.parts[place], islice(of_pieces, len(sizes))
                if isinstance(part, Pieced) and sizes:
                    own = (None if shard is None else (shard - place) % num_shards for shard in of_part)
                    found[place] = part.owned(tuple(own))
            begin += count
        return found

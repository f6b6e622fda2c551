"""Text files by chunks of bytes: a row belongs to the chunk in which its first byte lies."""

import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from htrain.data.malformed import Malformed
from htrain.data.rows import Rows
from htrain.errors import DataError

MIN_CHUNK_BYTES = 64 * 1024
MAX_CHUNK_BYTES = 4 * 1024 * 1024
Fault = tuple[int, str]  # a line of the chunk, from 0, and what is wrong with it
Parse = Callable[[np.ndarray], tuple[Rows, Sequence[Fault]]]


@dataclass(frozen=True)
class TextSource:
    """Rows of a text file, plain or .gz. `parse` turns the bytes of whole lines, uint8[n], into rows and faults.

    `header_bytes` at the start of the file belong to no row.
    """

    path: Path
    parse: Parse
    header_bytes: int = 0

    @property
    def name(self) -> str:
        return str(self.path)

    def num_examples(self) -> int:
        """Estimated from the first chunk's lines; exact for a file of one chunk."""
        size = self.path.stat().st_size
        with open_text(self.path) as file:
            head = file.read(MAX_CHUNK_BYTES)
        lines = head.count(b"\n") + (not head.endswith(b"\n"))
        if self.path.suffix == ".gz":
            return 0 if len(head) == MAX_CHUNK_BYTES else lines
        return lines * size // max(len(head), 1)

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        try:
            for number, offset, data in self._bytes(shard, num_shards, first):
                rows, faults = self.parse(np.frombuffer(data, np.uint8))
                bad = [f"{self.path}:{self._line(offset, line)}: {reason}" for line, reason in faults[:16]]
                malformed.saw(rows.count + len(faults), bad + [""] * (len(faults) - len(bad)))
                yield number, rows
        except (OSError, EOFError) as error:
            raise DataError(f"{self.path}: cannot be read: {error}") from error

    def _bytes(self, shard: int, num_shards: int, first: int) -> Iterator[tuple[int, int, bytes]]:
        """The shard's chunks: number, offset of the first byte, bytes of whole lines."""
        if self.path.suffix == ".gz":
            yield from self._streamed(shard, num_shards, first)
            return
        size = self.path.stat().st_size
        step = chunk_bytes(size, num_shards)
        number = first + (shard - first) % num_shards
        with self.path.open("rb") as file:
            while number * step < size:
                offset, data = _lines_between(
                    file, max(number * step, self.header_bytes), min((number + 1) * step, size)
                )
                if data:
                    yield number, offset, data
                number += num_shards

    def _streamed(self, shard: int, num_shards: int, first: int) -> Iterator[tuple[int, int, bytes]]:
        """A compressed file has no way in but from its start: every shard reads it all and keeps its own."""
        with gzip.open(self.path, "rb") as file:
            offset = len(file.read(self.header_bytes))
            number = 0
            while data := file.read(MIN_CHUNK_BYTES):
                data += file.readline()
                if number >= first and number % num_shards == shard:
                    yield number, offset, data
                offset += len(data)
                number += 1

    def _line(self, offset: int, line: int) -> int:
        """The number, from 1, of a line of the chunk that starts at `offset`."""
        before = 0
        with open_text(self.path) as file:
            while offset > 0 and (data := file.read(min(offset, MAX_CHUNK_BYTES))):
                before += data.count(b"\n")
                offset -= len(data)
        return before + line + 1


def open_text(path: Path) -> BinaryIO:
    """A text file's bytes, decompressed."""
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def chunk_bytes(size: int, num_shards: int) -> int:
    """Chunks small enough that every shard gets several, and a file of few rows is still shared out."""
    return min(MAX_CHUNK_BYTES, max(1, min(MIN_CHUNK_BYTES, size // (num_shards * 8) + 1), size // (num_shards * 16)))


def _lines_between(file: BinaryIO, start: int, end: int) -> tuple[int, bytes]:
    """The lines whose first byte lies in [start, end), and where they start."""
    if start > 0:
        file.seek(start - 1)
        start += len(file.readline()) - 1
    if start >= end:
        return start, b""
    file.seek(start)
    data = file.read(end - start)
    return start, data if data.endswith(b"\n") else data + file.readline()

"""Text files by chunks of bytes: a row belongs to the chunk in which its first byte lies."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from htrain.data.address import LINE_BYTES
from htrain.data.gzipped import DAMAGES, open_gzip
from htrain.data.malformed import Malformed
from htrain.data.prefix import Prefix, TextPath
from htrain.data.rows import Rows
from htrain.errors import DataError

MIN_CHUNK_BYTES = 64 * 1024  # of a chunk, where a file is large enough for its shards
MAX_CHUNK_BYTES = 4 * 1024 * 1024  # what a reader holds of a file at once
MAX_LINE_BYTES = 16 * 1024 * 1024  # a binary file may have no line end at all
_FEWEST_ASKED_BYTES = 1024 * 1024  # of a file at an address: an answer takes longer to begin than such a one to arrive
Fault = tuple[int, str]  # a line of the chunk, from 0, and what is wrong with it
Parse = Callable[[np.ndarray], tuple[Rows, Sequence[Fault]]]


@dataclass(frozen=True)
class TextSource:
    """Rows of a text file, plain or .gz. `parse` turns the bytes of whole lines, uint8[n], into rows and faults.

    `header_bytes` at the start of the file belong to no row. Lines before `begin` bytes of a plain file are none of its rows: one ends there. A .gz file may
    have an `owner`, the shard that reads it alone: others would decompress it, too.
    """

    path: TextPath
    parse: Parse
    header_bytes: int = 0
    begin: int = 0
    owner: int | None = None

    @property
    def pieces(self) -> tuple[int, ...]:
        """See `Pieced`: a .gz file is one."""
        return (self.path.stat().st_size,) if self.path.suffix == ".gz" else ()

    def owned(self, owners: tuple[int | None, ...]) -> "TextSource":
        """See `Pieced`."""
        return replace(self, owner=owners[0])

    @property
    def name(self) -> str:
        """The file."""
        return str(self.path)

    def num_examples(self) -> int:
        """Estimated from the first chunk's lines; exact for a file of one chunk without blank lines."""
        with readable(self.path), open_text(self.path) as file:
            size = self.path.stat().st_size - file.seek(max(self.begin, self.header_bytes))
            head = file.read(MAX_CHUNK_BYTES)
        if not head:
            return 0
        lines = head.count(b"\n") + (not head.endswith(b"\n"))
        if self.path.suffix == ".gz":
            return 0 if len(head) == MAX_CHUNK_BYTES else lines
        return lines * size // len(head)

    def within(self, begin: int, end: int) -> "TextSource":
        """The lines from one byte of the file to before another, at both of which one begins; of a .gz file, which ends there, all."""
        path = self.path.path if isinstance(self.path, Prefix) else self.path
        return replace(self, path=Prefix(path, end), begin=begin)

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Raises DataError for a file that cannot be read."""
        with readable(self.path):
            for number, offset, data in self._bytes(shard, num_shards, first):
                rows, faults = self.parse(np.frombuffer(data, np.uint8))
                malformed.saw(rows.count + len(faults), len(faults), partial(self._describe, offset, faults))
                yield number, rows

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """See `Source`. The row is on the last of the fewest lines of the chunk that hold so many good rows."""
        with readable(self.path):
            _, offset, data = next(self._bytes(number % num_shards, num_shards, number))
            ends = np.append(np.flatnonzero(np.frombuffer(data, np.uint8) == 10) + 1, len(data))
            line = bisect_left(ends, row + 1, key=lambda end: self.parse(np.frombuffer(data[:end], np.uint8))[0].count)
            return f"{self.path}:{self._line(offset, line)}"

    def _describe(self, offset: int, faults: Sequence[Fault], i: int) -> str:
        line, reason = faults[i]
        return f"{self.path}:{self._line(offset, line)}: {reason}"

    def _bytes(self, shard: int, num_shards: int, first: int) -> Iterator[tuple[int, int, bytes]]:
        """The shard's chunks: number, offset of the first byte, bytes of whole lines."""
        if self.path.suffix == ".gz":
            yield from self._streamed(shard, num_shards, first)
            return
        total = self.path.stat().st_size
        size = total - self.begin
        step = chunk_bytes(size, num_shards)
        number = first + (shard - first) % num_shards
        asked = max(_FEWEST_ASKED_BYTES, step + step // 16)  # a chunk, and the rest of its last line
        with open_text(self.path, ahead_bytes=asked) as file:
            while number * step < size:
                start = max(self.begin + number * step, self.header_bytes)
                end = min(self.begin + (number + 1) * step, total)
                offset, data = _lines_between(file, start, end, self.path)
                if data:
                    yield number, offset, data
                number += num_shards

    def _streamed(self, shard: int, num_shards: int, first: int) -> Iterator[tuple[int, int, bytes]]:
        """The chunks of a compressed file. It can only be read from its start: every shard reads it all and keeps its
        own chunks, unless one has it alone.
        """
        if self.owner not in (None, shard):
            return
        step = min(MIN_CHUNK_BYTES, chunk_bytes(self.path.stat().st_size, num_shards))
        with open_text(self.path, ahead_bytes=MAX_CHUNK_BYTES) as file:
            offset = len(file.read(self.header_bytes))
            number, each = (0, 1) if self.owner is None else (shard, num_shards)
            while data := read_lines(file, step, self.path):
                if number >= first and number % num_shards == shard:
                    yield number, offset, data
                offset += len(data)
                number += each

    def _line(self, offset: int, line: int) -> int:
        """The number, from 1, of a line of the chunk that starts at `offset`."""
        before = 0
        with open_text(self.path) as file:
            while offset > 0 and (data := file.read(min(offset, MAX_CHUNK_BYTES))):
                before += data.count(b"\n")
                offset -= len(data)
        return before + line + 1


@contextmanager
def readable(path: TextPath) -> Iterator[None]:
    """Within, what goes wrong in reading `path` raises DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except DAMAGES as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def open_text(path: TextPath, *, ahead_bytes: int = LINE_BYTES) -> BinaryIO:
    """The file, open for reading, decompressed where it is .gz. At an address `ahead_bytes` of it are asked for at once."""
    if isinstance(path, Path):
        return open_gzip(path) if path.suffix == ".gz" else path.open("rb")
    file = path.open(buffering=ahead_bytes)
    return open_gzip(file) if path.suffix == ".gz" else file


def chunk_bytes(size: int, num_shards: int) -> int:
    """Bytes of a chunk of a file of `size` bytes: so few that every shard gets several chunks, also of a file with few
    rows.
    """
    return min(MAX_CHUNK_BYTES, max(1, min(MIN_CHUNK_BYTES, size // (num_shards * 8) + 1), size // (num_shards * 16)))


def read_lines(file: BinaryIO, size: int, path: TextPath) -> bytes:
    """About `size` bytes of whole lines from here on, none at the end. Raises DataError for a line that has no end."""
    data = file.read(size)
    return data if not data or data.endswith(b"\n") else data + read_line(file, path)


def read_line(file: BinaryIO, path: TextPath) -> bytes:
    """The rest of the line. Raises DataError for one that does not end soon: a binary file would be read whole."""
    line = file.readline(MAX_LINE_BYTES)
    if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
        raise DataError(f"{path}: a line is longer than {MAX_LINE_BYTES >> 20} MiB; is this a text file?")
    return line


def _lines_between(file: BinaryIO, start: int, end: int, path: TextPath) -> tuple[int, bytes]:
    """The lines whose first byte lies in [start, end), and where they start.

    Requires: `file` stands at its start, or where another call, for a chunk before this one, has left it: at the start of a line. So it only goes forward, as
    some servers want it.
    """
    if file.tell() < start:
        file.seek(start - 1)
        read_line(file, path)
    start = file.tell()
    return start, read_lines(file, end - start, path) if start < end else b""

"""Packed files: rows that were parsed once, as an Arrow IPC file (`htrain data pack`, htrain.data.pack).

| part of the file                | holds                                                                          |
|---------------------------------|--------------------------------------------------------------------------------|
| metadata of the Arrow schema    | `htrain.packed`: a Header as JSON                                                |
| record batch c                  | the rows of the source's chunk c, as one reader of the whole source has them     |
| a last record batch, empty      | in its metadata what is known at the end only: `htrain.packed`, Totals as JSON;  |
|                                 | `htrain.blocks`, an index of the blocks with their digests; and `htrain.seal`, a |
|                                 | digest of all that is no block (htrain.data.seal). With a partition,             |
|                                 | `htrain.workers`: the worker of each block, in two bytes each                    |

With the source's chunks as blocks, a reader of a packed file gives the batches of its source in the source's order. In a file that was packed by a partition
for K workers, a block has examples of one worker, in the source's order: block j of worker w is chunk j K + w, so that shard w of K reads what is worker w's.

A file is read by read(), not mapped: one that is cut short while it is in use is then an error, not a signal that kills the process. A block is held against
its digest when it is read, everything else when the file is opened.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from htrain.data.address import Address, AnyPath, is_address
from htrain.data.format import Format
from htrain.data.malformed import Malformed
from htrain.data.packed_rows import arrow_schema, is_sound, to_rows
from htrain.data.reader import Dataset
from htrain.data.rows import Rows
from htrain.data.schema import Input, Schema
from htrain.data.seal import BLANK, Block, digest_of, from_index, seal_of
from htrain.decoding import from_json
from htrain.errors import DataError
from htrain.printable import as_word

KEY, BLOCKS, SEAL, WORKERS = b"htrain.packed", b"htrain.blocks", b"htrain.seal", b"htrain.workers"
VERSION = 4
_READ = (2, 3, VERSION)  # a file of version 2 has no partition, one of version 3 no times of rows
_HEAD_BYTES = 1 << 20  # the header of a packed file is in them
_SCHEMA_AT = 8  # behind Arrow's magic: a mark, the length of the schema's message, and the message


class Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that went into a packed one: its path as seen from the packed file's folder, or its address, and by what a change of it shows."""

    path: str
    bytes: int
    modified_ns: int


class _Version(msgspec.Struct):
    version: int


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was packed: the URI with its options, the files behind it, and the inputs of its schema; by which partition, for how many workers; and whether
    rows have times."""

    version: int
    uri: str
    files: tuple[Stamp, ...]
    inputs: tuple[Input, ...]
    partition: str = ""
    num_workers: int = 0
    is_timed: bool = False

    @property
    def schema(self) -> Schema:
        """The inputs as a schema."""
        return Schema(self.inputs)


class Totals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows and blocks of a packed file, and how many malformed rows of its source were left out."""

    examples: int
    blocks: int
    malformed: int


def looks_packed(path: Path) -> bool:
    """Whether a file is a packed one, damaged or not. Raises OSError for one that cannot be read."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return head.startswith(b"ARROW1") and KEY in head


def stamp(path: AnyPath, folder: Path) -> Stamp:
    """What `path` is now, for a packed file in `folder`. Raises OSError, and DataError for an address that cannot be asked."""
    found = path.stat()
    name = str(path) if isinstance(path, Address) else os.path.relpath(path, folder)
    return Stamp(name, found.st_size, found.st_mtime_ns)


def open_packed(path: Path) -> Dataset:
    """A packed file. Raises DataError when it is none, or when a local file that it came from is there and has changed; addresses are not asked."""
    with reading(path) as opened:
        source = PackedSource(path, opened.header, opened.totals, opened.seal, opened.workers)
    header = source.header
    for packed in header.files:
        file = path.parent / packed.path
        if not is_address(packed.path) and file.exists() and stamp(file, path.parent) != packed:
            again = f"htrain data pack '{header.uri}' --out {as_word(path)}"
            raise DataError(f"{path}: was packed from {file} as it was before it changed: pack it again ({again})")
    return Dataset(
        source,
        header.schema,
        partition=header.partition,
        num_workers=header.num_workers,
        is_timed=header.is_timed,
    )


@dataclass(frozen=True)
class PackedSource:
    """A chunk is a block, or a part of one where shards are many. Blocks that are workers' have `workers`, and are not cut."""

    path: Path
    header: Header
    totals: Totals
    seal: bytes
    workers: tuple[int, ...]

    @property
    def name(self) -> str:
        """The file."""
        return str(self.path)

    def num_examples(self) -> int:
        """Rows of the file, exactly."""
        return self.totals.examples

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Raises DataError for a file that was packed again meanwhile, for a block that has changed, and for shards that are not the workers
        which the file was packed for.
        """
        with reading(self.path) as file:
            if file.seal != self.seal:
                raise DataError(f"{self.path}: was packed again while it was read; start again")
            for number, part in self._parts(num_shards):
                if number >= first and number % num_shards == shard:
                    rows = part.cut(file.rows(part.block))
                    malformed.saw(rows.count, 0, str)
                    yield number, rows

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """The file, and the number of the row in it."""
        part = dict(self._parts(num_shards))[number]
        with reading(self.path) as file:
            before = sum(b.rows for b in file.blocks[: part.block])
            return f"{self.path}: row {before + file.blocks[part.block].rows * part.number // part.num_parts + row + 1}"

    def _parts(self, num_shards: int) -> list[tuple[int, "_Part"]]:
        """The chunks by their numbers, in order. Raises DataError for shards that are not the workers."""
        if not self.workers:
            num_parts = self._num_parts(num_shards)
            numbers = range(self.totals.blocks * num_parts)
            return [(number, _Part(number // num_parts, number % num_parts, num_parts)) for number in numbers]
        num_workers = self.header.num_workers
        if num_shards not in (1, num_workers):
            raise DataError(
                f"{self.path}: packed for {num_workers} workers, the run has {num_shards} trainers: pack it again with a partition for {num_shards}"
            )
        ends = list(range(num_workers))  # the number of each worker's next chunk
        parts = []
        for block, worker in enumerate(self.workers):
            parts.append((ends[worker], _Part(block, 0, 1)))
            ends[worker] += num_workers
        return sorted(parts, key=lambda part: part[0])

    def _num_parts(self, num_shards: int) -> int:
        """Blocks are cut where there are few, so that shards are of about one size. One shard: not at all."""
        return 1 if num_shards == 1 else max(1, -(-8 * num_shards // max(1, self.totals.blocks)))


@dataclass(frozen=True)
class _Part:
    """Part `number` of `num_parts` of a block."""

    block: int
    number: int
    num_parts: int

    def cut(self, rows: Rows) -> Rows:
        """The part of the block's rows."""
        return rows.cut(rows.count * self.number // self.num_parts, rows.count * (self.number + 1) // self.num_parts)


@dataclass(frozen=True)
class OpenFile:
    """An open packed file whose seal holds."""

    descriptor: int
    columns: pa.Schema
    header: Header
    totals: Totals
    blocks: list[Block]
    seal: bytes
    workers: tuple[int, ...]

    def rows(self, number: int) -> Rows:
        """The rows of a block. Raises ValueError for one that does not hold together."""
        block = self.blocks[number]
        data = self.content(number)
        try:
            rows = to_rows(pa.ipc.read_record_batch(pa.py_buffer(data), self.columns), self.header.schema)
        except (ValueError, pa.ArrowException) as error:
            raise ValueError(f"block {number}: {error}") from error
        if rows.count != block.rows:
            raise ValueError(f"block {number}: has {rows.count} rows, want {block.rows}")
        return rows

    def content(self, number: int) -> bytes:
        """The bytes of a block. Raises ValueError for one that has changed."""
        block = self.blocks[number]
        data = os.pread(self.descriptor, block.length, block.offset)
        if digest_of(data) != block.digest:
            raise ValueError(f"block {number}: its bytes have changed since it was written")
        return data


@contextmanager
def reading(path: Path) -> Iterator[OpenFile]:
    """The open file, looked over. Raises DataError for whatever is wrong with it, then or later."""
    again = f"pack the data again: htrain data pack SOURCE --out {as_word(path)}"
    try:
        with path.open("rb", buffering=0) as file:
            yield _opened(path, file.fileno())
    except OSError as error:
        if error.errno:
            raise DataError(f"{path}: cannot be read: {os.strerror(error.errno)}") from error
        raise DataError(f"{path}: is cut short or damaged ({_one_line(error)}); {again}") from error
    except (pa.ArrowException, msgspec.MsgspecError, ValueError, struct.error) as error:
        raise DataError(f"{path}: is no packed file, or a damaged one ({_one_line(error)}); {again}") from error


def _opened(path: Path, descriptor: int) -> OpenFile:
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file)
        header = _header(reader)
        last = _last(reader)
        totals = from_json(last[KEY], Totals)
        blocks = from_index(last[BLOCKS])
        if (
            not len(blocks) == totals.blocks == reader.num_record_batches - 1
            or totals.examples != sum(b.rows for b in blocks)
            or totals.examples < 1
        ):
            raise ValueError(f"it has {reader.num_record_batches - 1} blocks, want {totals.blocks}")
        seal = last[SEAL]
        if _seal_now(descriptor, blocks, seal) != seal:
            raise ValueError("its bytes have changed since it was written")
        workers = _workers(last, header, len(blocks))
        return OpenFile(descriptor, reader.schema, header, totals=totals, blocks=blocks, seal=seal, workers=workers)


def _workers(last: dict[bytes, bytes], header: Header, num_blocks: int) -> tuple[int, ...]:
    """The worker of each block; none without a partition. Raises ValueError where they are not those of the header."""
    workers = tuple(np.frombuffer(last.get(WORKERS, b""), "<u2").tolist())
    if len(workers) != (num_blocks if header.partition else 0) or any(w >= header.num_workers for w in workers):
        raise ValueError("its blocks are not those of its workers")
    return workers


def header_bytes(start: bytes) -> int:
    """Where the blocks begin, from the first bytes of a file. Raises ValueError for a file that does not begin as
    Arrow's do.
    """
    mark, length = struct.unpack_from("<Ii", start, _SCHEMA_AT)
    if mark != 0xFFFFFFFF or length < 0:
        raise ValueError("it does not begin as an Arrow file does")
    return _SCHEMA_AT + 8 + int(length)


def _seal_now(descriptor: int, blocks: list[Block], seal: bytes) -> bytes:
    """The seal that the file's bytes have, where blocks lie one behind the other from the header on."""
    begin, size = header_bytes(os.pread(descriptor, _SCHEMA_AT + 8, 0)), os.fstat(descriptor).st_size
    end = begin
    for block in blocks:
        if block.offset != end:
            raise ValueError("its blocks do not follow each other")
        end += block.length
    if end > size:
        raise ValueError("its blocks end behind its end")
    tail = os.pread(descriptor, size - end, end)
    if tail.count(seal) != 1 or len(seal) != len(BLANK):
        raise ValueError("it has no seal")
    return seal_of(os.pread(descriptor, begin, 0), tail.replace(seal, BLANK))


def _header(reader: pa.RecordBatchFileReader) -> Header:
    raw = (reader.schema.metadata or {}).get(KEY)
    if raw is None:
        raise ValueError("an Arrow file that something else wrote")
    version = from_json(raw, _Version).version
    if version not in _READ:
        raise ValueError(f"of version {version}, this htrain reads versions {', '.join(map(str, _READ))}")
    header = from_json(raw, Header)
    if not is_sound(header.schema) or not reader.schema.equals(arrow_schema(header.schema, is_timed=header.is_timed)):
        raise ValueError("its columns are not those of its schema")
    return header


def _last(reader: pa.RecordBatchFileReader) -> dict[bytes, bytes]:
    """The metadata of the last block. Raises ValueError where that is none."""
    num_batches = reader.num_record_batches
    last = reader.get_batch_with_custom_metadata(num_batches - 1) if num_batches else None
    metadata = dict(last.custom_metadata or {}) if last else {}
    if not {KEY, BLOCKS, SEAL} <= metadata.keys():
        raise ValueError("it has no last block")
    return metadata


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


FORMATS = (Format("packed", lambda path, _: open_packed(path), is_local=True),)

"""Packed files: rows that were parsed once, as an Arrow IPC file (`htrain data pack`, htrain.data.pack).

| part of the file                | holds                                                                          |
|---------------------------------|--------------------------------------------------------------------------------|
| metadata of the Arrow schema    | `htrain.packed`: a Header as JSON                                                |
| record batch c                  | the rows of the source's chunk c, as one reader of the whole source has them     |
| a last record batch, empty      | in its metadata `htrain.packed`: Totals as JSON, which are known at the end only |

With the source's chunks as blocks, a reader of a packed file gives the batches of its source in the source's order. A file is read by
read(), not mapped: one that is cut short while it is in use is then an error, not a signal that kills the process.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from htrain.data.malformed import Malformed
from htrain.data.packed_rows import arrow_schema, is_sound, to_rows
from htrain.data.reader import Dataset
from htrain.data.rows import Rows
from htrain.data.schema import Input, Schema
from htrain.errors import DataError

KEY = b"htrain.packed"
VERSION = 1


class Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that went into a packed one: its path as seen from the packed file's folder, and by what a change of it shows."""

    path: str
    bytes: int
    modified_ns: int


class _Version(msgspec.Struct):
    version: int


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was packed: the URI with its options, the files behind it, and the inputs of its schema."""

    version: int
    uri: str
    files: tuple[Stamp, ...]
    inputs: tuple[Input, ...]

    @property
    def schema(self) -> Schema:
        return Schema(self.inputs)


class Totals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows and blocks of a packed file, and how many malformed rows of its source were left out."""

    examples: int
    blocks: int
    malformed: int


def stamp(path: Path, folder: Path) -> Stamp:
    """What `path` is now, for a packed file in `folder`. Raises OSError."""
    found = path.stat()
    return Stamp(os.path.relpath(path, folder), found.st_size, found.st_mtime_ns)


def open_packed(path: Path) -> Dataset:
    """A packed file. Raises DataError when it is none, or when a file that it came from is there and has changed."""
    with _reading(path) as (_, header, totals):
        source = PackedSource(path, header, totals)
    for packed in header.files:
        file = path.parent / packed.path
        if file.exists() and stamp(file, path.parent) != packed:
            again = f"htrain data pack '{header.uri}' --out {path}"
            raise DataError(f"{path}: was packed from {file} as it was before it changed: pack it again ({again})")
    return Dataset(source, header.schema)


@dataclass(frozen=True)
class PackedSource:
    """A chunk is a block, or a part of one where shards are many."""

    path: Path
    header: Header
    totals: Totals

    @property
    def name(self) -> str:
        return str(self.path)

    def num_examples(self) -> int:
        return self.totals.examples

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        num_parts = self._num_parts(num_shards)
        with _reading(self.path) as (reader, header, totals):
            if (header, totals) != (self.header, self.totals):
                raise DataError(f"{self.path}: was packed again while it was read; start again")
            for number in range(first + (shard - first) % num_shards, totals.blocks * num_parts, num_shards):
                rows = _block(reader, number // num_parts, header.schema)
                part = number % num_parts
                rows = rows.cut(rows.count * part // num_parts, rows.count * (part + 1) // num_parts)
                malformed.saw(rows.count, 0, str)
                yield number, rows

    def _num_parts(self, num_shards: int) -> int:
        """Blocks are cut where there are few, so that shards are of about one size. One shard: not at all."""
        return 1 if num_shards == 1 else max(1, -(-8 * num_shards // max(1, self.totals.blocks)))


def _block(reader: pa.RecordBatchFileReader, number: int, schema: Schema) -> Rows:
    try:
        return to_rows(reader.get_batch(number), schema)
    except (ValueError, pa.ArrowException) as error:
        raise ValueError(f"block {number}: {error}") from error


@contextmanager
def _reading(path: Path) -> Iterator[tuple[pa.RecordBatchFileReader, Header, Totals]]:
    """The open file, looked over. Whatever is wrong with it, then or later, becomes a DataError."""
    again = f"pack the data again: htrain data pack SOURCE --out {path}"
    try:
        with pa.OSFile(str(path)) as file:
            reader = pa.ipc.open_file(file)
            yield reader, _header(reader), _totals(reader)
    except OSError as error:
        if error.errno:
            raise DataError(f"{path}: cannot be read: {os.strerror(error.errno)}") from error
        raise DataError(f"{path}: is cut short or damaged ({_one_line(error)}); {again}") from error
    except (pa.ArrowException, msgspec.MsgspecError, ValueError) as error:
        raise DataError(f"{path}: is no packed file, or a damaged one ({_one_line(error)}); {again}") from error


def _header(reader: pa.RecordBatchFileReader) -> Header:
    raw = (reader.schema.metadata or {}).get(KEY)
    if raw is None:
        raise ValueError("an Arrow file that something else wrote")
    version = msgspec.json.decode(raw, type=_Version).version
    if version != VERSION:
        raise ValueError(f"of version {version}, this htrain reads version {VERSION}")
    header = msgspec.json.decode(raw, type=Header)
    if not is_sound(header.schema) or not reader.schema.equals(arrow_schema(header.schema)):
        raise ValueError("its columns are not those of its schema")
    return header


def _totals(reader: pa.RecordBatchFileReader) -> Totals:
    num_batches = reader.num_record_batches
    last = reader.get_batch_with_custom_metadata(num_batches - 1) if num_batches else None
    raw = (last.custom_metadata or {}).get(KEY) if last else None
    if raw is None:
        raise ValueError("it has no last block")
    totals = msgspec.json.decode(raw, type=Totals)
    if totals.blocks != num_batches - 1 or totals.examples < 1:
        raise ValueError(f"it has {num_batches - 1} blocks, want {totals.blocks}")
    return totals


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

"""Parse data once and keep it: any source to a packed file (htrain.data.formats.packed)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa

from htrain.data.address import AnyPath
from htrain.data.files import CHUNK_BITS
from htrain.data.formats.packed import KEY, VERSION, Header, Stamp, Totals, looks_packed, stamp
from htrain.data.malformed import Malformed
from htrain.data.packed_rows import arrow_schema, to_batch
from htrain.data.packed_writer import PackedWriter
from htrain.data.reader import Dataset
from htrain.data.source import files_of, open_data
from htrain.errors import DataError
from htrain.files import new_file


def pack(uri: str, out: Path, *, malformed: Malformed) -> Totals:
    """Write the rows of `uri` to `out`; nothing is left of a write that was cut short. Returns what is in the file.

    Raises DataError for data that cannot be read or holds too many malformed rows, for files that change meanwhile, and for an
    `out` that cannot be written.
    """
    with packing(uri, out) as (file, dataset, stamps):
        header = Header(VERSION, uri, stamps, dataset.schema.inputs, is_timed=dataset.is_timed)
        return _write(file, dataset, header, malformed)


def pack_table(dataset: Dataset, out: Path, malformed: Malformed) -> Totals:
    """Write the rows of a table in memory to `out`, as `pack` does. Raises DataError for too many malformed rows, and for an `out` that cannot be written."""
    try:
        with new_file(out, looks_packed) as file:
            header = Header(VERSION, dataset.source.name, (), dataset.schema.inputs, is_timed=dataset.is_timed)
            totals = _write(file, dataset, header, malformed)
            file.flush()
            os.fsync(file.fileno())
            return totals
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from error


@contextmanager
def packing(uri: str, out: Path) -> Iterator[tuple[BinaryIO, Dataset, tuple[Stamp, ...]]]:
    """The file that will be `out`, the dataset that goes into it, and the files that this is read from. Raises DataError as `pack` does."""
    dataset, files = open_data(uri), files_of(uri)
    if dataset.partition:
        raise DataError(f"'{uri}': was packed by a partition, which gave its rows other numbers; pack its source")
    if dataset.order:
        raise DataError(
            f"'{uri}': {dataset.order.option} has no effect on what is packed: say it when it is read, as packed:{out}?{dataset.order.option}=..."
        )
    try:
        if any(out.exists() and isinstance(file, Path) and out.samefile(file) for file in files):
            raise DataError(f"{out}: is what would be packed; give another --out")
        before = _stamps(files, out)
        with new_file(out, looks_packed) as file:
            yield file, dataset, before
            file.flush()
            os.fsync(file.fileno())
            if _stamps(files, out) != before:
                raise DataError(f"'{uri}' was written to while it was packed; pack it again when it is whole")
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from error


def _stamps(files: list[AnyPath], out: Path) -> tuple[Stamp, ...]:
    return tuple(stamp(file, out.parent) for file in files)


def _write(file: BinaryIO, dataset: Dataset, header: Header, malformed: Malformed) -> Totals:
    columns = arrow_schema(dataset.schema, is_timed=dataset.is_timed)
    empty = pa.RecordBatch.from_pylist([], schema=columns)
    writer = PackedWriter(file, columns.with_metadata({KEY: msgspec.json.encode(header)}))
    begin, file_number = 0, 0
    for number, rows in dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=malformed):
        if number >> CHUNK_BITS != file_number:
            begin, file_number = len(writer.blocks), number >> CHUNK_BITS
        for _ in range(
            begin + (number & (1 << CHUNK_BITS) - 1) - len(writer.blocks)
        ):  # chunks without rows are blocks too: of one file, a block's number is its chunk's
            writer.write(empty)
        writer.write(to_batch(rows, columns))
    return finished(writer, dataset, malformed, {})


def finished(writer: PackedWriter, dataset: Dataset, malformed: Malformed, metadata: Mapping[bytes, bytes]) -> Totals:
    """Write what ends a packed file, and more `metadata` with it. Returns what is in the file; raises DataError where nothing is."""
    totals = Totals(sum(block.rows for block in writer.blocks), len(writer.blocks), malformed.count)
    if not totals.examples:
        none = f"no row of {dataset.source.name} can be read"
        raise DataError(f"{malformed.examples[0]} ({none})" if malformed.examples else none)
    writer.finish({KEY: msgspec.json.encode(totals), **metadata})
    return totals

"""Pack data by a partition: rows by new numbers, in blocks that belong to workers (htrain.data.formats.packed)."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import pyarrow as pa

from htrain.data.assign import Assign, as_partitioned, by_known_rows
from htrain.data.drift import Drift, DriftCounter
from htrain.data.edges import edges_of
from htrain.data.formats.packed import KEY, VERSION, WORKERS, Header, Totals
from htrain.data.identity import identity_of
from htrain.data.malformed import Malformed
from htrain.data.numbering import Numbering, open_numbering
from htrain.data.numbering_loops import Longs
from htrain.data.pack import finished, packing
from htrain.data.packed_rows import arrow_schema, to_batch
from htrain.data.packed_writer import PackedWriter
from htrain.data.partition_file import read_tensor
from htrain.data.renumbered import new_rows, new_schema, require_tables
from htrain.data.rows import Rows, joined
from htrain.errors import DataError

_BLOCK_BYTES = 4 << 20  # of the rows of a block, in memory
_HELD_BYTES = 256 << 20  # of all blocks that are being filled


class PackedParts(msgspec.Struct, frozen=True):
    """What was packed; whether its examples are those that were partitioned, or were assigned while they were read; and what their batches need."""

    totals: Totals
    is_partitioned: bool
    drift: Drift


def pack_by_partition(uri: str, partition: Path, out: Path, *, malformed: Malformed) -> PackedParts:
    """Write the rows of `uri` to `out` as a partition says; nothing is left of a write that was cut short.

    Data that is what was partitioned has its examples where the partition has them; examples of other data go where their rows are (htrain.data.assign).
    Raises DataError as `pack` does, for a file that is no partition or a damaged one, and for data whose tables are not those of the partition.
    """
    numbering = open_numbering(partition)
    with packing(uri, out) as (file, dataset, stamps):
        require_tables(dataset, numbering)
        schema, drift = new_schema(dataset.schema, numbering), DriftCounter(numbering)
        header = Header(
            VERSION, uri, stamps, schema.inputs, partition=numbering.digest, num_workers=numbering.num_workers
        )
        blocks = _Blocks(file, header)
        is_partitioned = not numbering.facts.data.difference(identity_of(uri))
        assign = _labels(uri, partition, numbering) if is_partitioned else by_known_rows(numbering, schema)
        for _, rows in dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=malformed):
            for worker, mine in _dealt_out(new_rows(rows, dataset.schema, numbering), assign):
                drift.add(worker, *edges_of(mine, schema, numbering.tables))
                blocks.add(worker, mine)
        blocks.flush()
        totals = finished(blocks.writer, dataset, malformed, {WORKERS: np.array(blocks.workers, "<u2").tobytes()})
        if is_partitioned and totals.examples != numbering.facts.num_examples:
            raise DataError(
                f"'{uri}': {totals.examples:,} examples can be read, {numbering.facts.num_examples:,} were partitioned: partition it again"
            )
    return PackedParts(totals, is_partitioned, drift.found())


def _labels(uri: str, partition: Path, numbering: Numbering) -> Assign:
    samples = np.concatenate([*read_tensor(partition, numbering.facts, "samples")])
    return as_partitioned(samples, name=f"'{uri}'")


def _dealt_out(rows: Rows, assign: Assign) -> Iterator[tuple[int, Rows]]:
    """The rows of each worker that has any, in their order."""
    workers: Longs = assign(rows)
    order = np.argsort(workers, kind="stable")
    found, starts = np.unique(workers[order], return_index=True)
    for worker, places in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        yield worker, rows.take(places)


class _Blocks:
    """Blocks of rows, each of one worker, written when they are large enough; `workers` are whose they are."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        self._columns = arrow_schema(header.schema)
        self.writer = PackedWriter(file, self._columns.with_metadata({KEY: msgspec.json.encode(header)}))
        self.workers: list[int] = []
        self._held: list[list[Rows]] = [[] for _ in range(header.num_workers)]
        self._held_bytes = [0] * header.num_workers
        self._most_bytes = min(_BLOCK_BYTES, _HELD_BYTES // header.num_workers)

    def add(self, worker: int, rows: Rows) -> None:
        """More rows of a worker."""
        self._held[worker].append(rows)
        self._held_bytes[worker] += rows.num_bytes
        if self._held_bytes[worker] >= self._most_bytes:
            self._write(worker)

    def flush(self) -> None:
        """Write what has not been written."""
        for worker, held in enumerate(self._held):
            if held:
                self._write(worker)

    def _write(self, worker: int) -> None:
        batch: pa.RecordBatch = to_batch(joined(self._held[worker]), self._columns)
        self.writer.write(batch)
        self.workers.append(worker)
        self._held[worker], self._held_bytes[worker] = [], 0

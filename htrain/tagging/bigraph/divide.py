"""From data to a partition on a disk: read, partition, replicate, predict."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from htrain.data.identity import identity_of
from htrain.data.malformed import Malformed
from htrain.data.numbering import Numbering, open_numbering
from htrain.data.partition_file import (
    VERSION,
    Facts,
    PartitionFile,
    UsedRow,
    require_writable,
    sealed,
    small,
    write_partition,
)
from htrain.data.reader import Dataset
from htrain.data.source import open_data
from htrain.errors import DataError
from htrain.tagging.bigraph.graph import Bigraph, Floats, Longs
from htrain.tagging.bigraph.of_data import Seen, read_bigraph
from htrain.tagging.bigraph.partition import Partition, Request, at_random, partition
from htrain.tagging.bigraph.repartition import UNKNOWN, owners_before, repartition
from htrain.tagging.bigraph.replicas import Replicas, replicas
from htrain.tagging.bigraph.updates import updates_of

Way = Callable[[Bigraph, Request], Partition]
_MOST_USED = 10  # rows that are told
Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Listener:
    """What hears how far it is: how many examples have been read, of how many (0: not known), and what is done next."""

    examples: Callable[[int, int], None]
    step: Callable[[str], None]


QUIET = Listener(lambda number, total: None, lambda what: None)


def divide(
    uri: str,
    out: Path,
    request: Request,
    *,
    old: Path | None = None,
    replicated: float,
    malformed: Malformed,
    listener: Listener = QUIET,
    way: Way = partition,
) -> PartitionFile:
    """Partition the data of a URI in some `way`, and write what came of it to `out`. Each worker may hold replicas of the share `replicated` of all rows seen.

    With an `old` partition, the search begins from its owners. Raises DataError for an old one that does not belong, for data that cannot be read or
    partitioned, for data that changes meanwhile, and for an `out` that cannot be written.
    """
    require_writable(out)
    older = _older(old, request) if old else None  # before data is read, which may take long
    dataset = _original(uri)
    before = identity_of(uri)
    total = dataset.num_examples()
    graph, seen = read_bigraph(dataset, malformed, on_examples=lambda number: listener.examples(number, total))
    _require_enough(uri, graph, request)
    listener.step(f"partitioning {graph.num_samples:,} samples and {graph.num_rows:,} rows")
    found, before_it = _found(graph, seen, request, older, way)
    listener.step("choosing replicas")
    held = replicas(
        graph, found.samples, found.homes, links=request.links, batch_size=request.batch_size,
        num_rows_each=int(replicated * graph.num_rows),
    )  # fmt: skip
    facts = Facts(
        version=VERSION,
        uri=uri,
        data=before,
        inputs=dataset.schema.inputs,
        tables=seen.tables.names,
        table_rows=_sizes(seen),
        num_examples=graph.num_samples,
        num_seen=graph.num_rows,
        num_edges=len(graph.rows),
        begun=found.begun,
        rows=_matrix(found.fetches.rows),
        replicated=_matrix(held.saved),
        uses=_matrix(found.fetches.uses),
        scattered_rows=(anywhere := at_random(graph, request).fetches).per_batch,
        scattered_uses=anywhere.per_sample,
        most_used=_most_used(graph, seen, found.homes),
        **_moves(before_it, found.homes),
        **_asked(request),
        digests={},
        digest="",
    )
    if difference := before.difference(identity_of(uri)):
        raise DataError(f"'{uri}' was changed while it was partitioned: {difference}; partition it again")
    listener.step("counting updates")
    made = _sealed(facts, graph, seen, found, held)
    write_partition(out, made)
    return made


def _asked(request: Request) -> dict[str, Any]:
    """What facts keep of a request."""
    names = ("num_workers", "batch_size", "seed", "hosts", "link_cost")
    return {name: getattr(request, name) for name in names}


def _original(uri: str) -> Dataset:
    """The data of a URI, which has original ids."""
    dataset = open_data(uri)
    if dataset.partition:
        raise DataError(f"'{uri}': was packed by a partition, which gave its rows other numbers; partition its source")
    if dataset.order:
        raise DataError(f"'{uri}': {dataset.order.option} has no effect on what is partitioned: say it when it is read")
    return dataset


def _sealed(facts: Facts, graph: Bigraph, seen: Seen, found: Partition, held: Replicas) -> PartitionFile:
    """The partition as a file has it, with the updates that a step is expected to bring each row."""
    updates = updates_of(graph, found.samples, num_workers=facts.num_workers, batch_size=facts.batch_size)
    samples, owners = small(found.samples), small(found.homes)
    return sealed(PartitionFile(facts, samples, seen.words, owners=owners, updates=updates, secondaries=held.rows))


def _require_enough(uri: str, graph: Bigraph, request: Request) -> None:
    """Raises DataError for fewer examples than workers."""
    if graph.num_samples < request.num_workers:
        raise DataError(
            f"'{uri}' has {graph.num_samples} examples, fewer than the {request.num_workers} workers that would share them"
        )


def _older(path: Path, request: Request) -> Numbering:
    """The partition whose owners the search begins from. Raises DataError for one of another number of workers."""
    numbering = open_numbering(path)
    if numbering.num_workers != request.num_workers:
        raise DataError(
            f"{path}: is a partition for {numbering.num_workers} workers, want {request.num_workers}: leave --from out"
        )
    return numbering


def _found(graph: Bigraph, seen: Seen, request: Request, old: Numbering | None, way: Way) -> tuple[Partition, Longs]:
    """The partition, and the owner that each row had before it."""
    if old is None:
        return way(graph, request), np.full(graph.num_rows, UNKNOWN)
    owners = owners_before(seen, old)
    return repartition(graph, request, owners), owners


def _moves(before: Longs, after: Longs) -> dict[str, Any]:
    """How many rows had an owner, and how many of them have another one now."""
    is_known = before != UNKNOWN
    return {"known_rows": int(is_known.sum()), "moved_rows": int((before != after)[is_known].sum())}


def _most_used(graph: Bigraph, seen: Seen, homes: Longs) -> tuple[UsedRow, ...]:
    used = np.diff(graph.level.row_starts[: _MOST_USED + 1])  # rows of a level are in falling order of use
    rows = graph.row_order[: len(used)]
    return tuple(
        UsedRow(seen.tables.place(seen.key_of(row)), int(count), int(homes[row]))
        for row, count in zip(rows.tolist(), used, strict=True)
    )


def _sizes(seen: Seen) -> tuple[int, ...]:
    ends = (*seen.tables.starts[1:], seen.tables.num_rows)
    return tuple(end - start for start, end in zip(seen.tables.starts, ends, strict=True))


def _matrix(of: Floats) -> Matrix:
    return tuple(tuple(map(float, row)) for row in of)

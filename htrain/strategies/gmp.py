"""Tables in the trainers, by a partition of the data; replicas of others' rows within bounds (HET-GMP 5)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from htrain.data.numbering import Numbering, open_numbering
from htrain.errors import UsageError
from htrain.net.names import SPARSE_PS, Device, number_of
from htrain.net.net import Attr, BatchDim, Init, Net, Op, Parameter
from htrain.net.placement import Shard
from htrain.ops.asked_rows import row_width
from htrain.ops.gmp import ANSWER, UNBOUNDED, milli
from htrain.spec.sparse_sync import OTHER_BATCHES
from htrain.spec.sparse_sync import Gmp as Asked
from htrain.strategies.behind import Behind, flush_nets, numbered, rates_of
from htrain.strategies.strategy import HoldsRows
from htrain.tagging.columns import Piece, columns_of
from htrain.transform.id_readers import by_new_numbers


class Gmp(HoldsRows[Asked]):
    """A worker's primaries are a range of each table; lookups go to them, to its replicas, and to other workers."""

    @cached_property
    def numbering(self) -> Numbering:
        """The rows of the partition. Raises DataError where it cannot be read, UsageError where it is for another number of workers."""
        found = open_numbering(Path(self.section.partition))
        if found.num_workers != self.cluster.groups:
            raise UsageError(
                f"{self.section.partition}: a partition among {found.num_workers} workers, the cluster has {self.cluster.groups} groups: want --groups "
                f"{found.num_workers}, or a partition made with --workers {self.cluster.groups}"
            )
        return found

    def shards(self, net: Net) -> dict[str, tuple[Shard, ...]]:
        tables = {name: p for name, p in net.parameters.items() if p.kind == "table"}
        for name, table in tables.items():
            if not table.trained:
                raise UsageError(
                    f"table '{name}' is frozen: sparse sync gmp trains all tables; hold them another way (--sparse-sync)"
                )
        columns = self._columns(net)
        for pattern, device in self.cluster.pin:
            if any(fnmatchcase(name, pattern) for name in tables):
                raise UsageError(f"pin {pattern}: {device} has no effect: the partition says where tables are")
        return {name: self._cut(p, columns[name]) for name, p in tables.items()}

    def lookups(self, net: Net, shards: Mapping[str, Sequence[Shard]]) -> Net:
        columns = self._columns(net)
        net = self._compared(net)
        names: list[str] = []
        for (width, _), tables in _alike(net).items():
            pieces = {table: columns[table] for table in tables}
            names.append(numbered(f"replicas_{width}", names))
            net = _Behind(net, names[-1], pieces, shards, self).rewrite()
        return self._padded(net, columns)

    def evaluated(self, net: Net, train: Net) -> Net:
        columns, trained = columns_of(net, self.numbering.facts.inputs), self._columns(train)
        for table in (name for name, p in net.parameters.items() if p.kind == "table"):
            if table not in columns or not set(columns[table]) <= set(trained[table]):
                raise UsageError(
                    f"table '{table}' is looked up in evaluation (model.eval()) by other ids of the data than in training: a partition numbers its rows by "
                    "those of training; look the same up, or hold tables another way (--sparse-sync)"
                )
        return self._padded(self._compared(net), columns)

    def _compared(self, net: Net) -> Net:
        """Rows that ids are compared with, by their new numbers."""
        of_ids = (each for each in self.numbering.facts.inputs if each.kind != "dense")
        return by_new_numbers(net, {each.name: each.tables for each in of_ids}, self._new_number)

    def _new_number(self, table: str, row: int) -> int:
        """Of a row of a table of the data; -1 where it has none such."""
        if not 0 <= row < self.numbering.bounds(table)[-1]:
            return -1
        return int(self.numbering.renumber(table, np.array([row]))[0])

    def nets(self, parts: Mapping[str, Net]) -> Mapping[str, Net]:
        return flush_nets(parts, "Gmp", ANSWER)

    def notes(self, train: Net) -> Iterator[str]:
        facts = self.numbering.facts
        bound = "no bound on staleness" if self.section.staleness == "unbounded" else f"s = {self.section.staleness}"
        yield (
            f"a batch needs {facts.rows_per_batch:.0f} rows of other workers beside its replicas, as the partition predicts "
            f"({facts.scattered_rows:.0f} where rows and samples are anywhere); "
            f"{max(sum(map(len, held.values())) for held in self.replicas):,} replicas on a worker at most ({bound}, writes {self.section.write})"
        )
        if self.options.batch_size != facts.batch_size:
            yield (
                f"{OTHER_BATCHES} {facts.batch_size}, the plan has {self.options.batch_size}: figures of a batch are of the former"
            )
        if self.section.inter and (
            ragged := sorted({op.module for op in train.ops if op.type == "Dedupe" and _ragged(train, op)})
        ):
            yield f"rows of {', '.join(ragged)} are not held to other rows of a sample: their ids come as lists of any length"

    @cached_property
    def replicas(self) -> Sequence[Mapping[str, NDArray[np.int64]]]:
        """The rows, by table of the partition, that each worker has replicas of."""
        return [self.numbering.secondaries(worker) for worker in range(self.numbering.num_workers)]

    @cached_property
    def used(self) -> Mapping[str, float]:
        """The updates that a step brings to each table of the partition."""
        return self.numbering.updates_of_tables()

    def _columns(self, net: Net) -> dict[str, tuple[Piece, ...]]:
        """What of the data looks up each table. Raises UsageError for a table of which the partition says nothing."""
        numbering = self.numbering
        found = columns_of(net, numbering.facts.inputs)
        for name, parameter in net.parameters.items():
            if parameter.kind != "table":
                continue
            if name not in found:
                raise UsageError(
                    f"table '{name}' is looked up by ids that the model computes from those of the data: a partition says nothing of its rows; have the ids as "
                    "columns of the data, or hold tables another way (--sparse-sync)"
                )
            if len({piece.first_row for piece in found[name]}) < len(found[name]):
                raise UsageError(
                    f"table '{name}' is looked up by the ids of {' and '.join(piece.table for piece in found[name])} alike, whose rows the partition "
                    "numbers apart: give each a table of its own, or have them share one in the data, too (tables: or table: in the schema file), and "
                    "partition again"
                )
            for piece, end in zip(
                found[name], (*(p.first_row for p in found[name][1:]), parameter.shape[0]), strict=True
            ):
                rows = numbering.bounds(piece.table)[-1]
                if piece.first_row + rows > end:
                    raise UsageError(
                        f"table '{name}' has {end - piece.first_row:,} rows for those of '{piece.table}' in the partition, which has {rows:,}: compile the "
                        "model for the data that was partitioned"
                    )
        return found

    def _cut(self, table: Parameter, pieces: Sequence[Piece]) -> tuple[Shard, ...]:
        """A shard for each worker and piece; rows that no id of the data means go with those before them."""
        cuts: list[tuple[int, int]] = []  # first row, worker
        for piece in pieces:
            bounds = self.numbering.bounds(piece.table)
            cuts += [(piece.first_row + bounds[k], k) for k in range(len(bounds) - 1) if bounds[k] < bounds[k + 1]]
        cuts = [(0 if place == 0 else first, worker) for place, (first, worker) in enumerate(cuts)]
        ends = [*(first for first, _ in cuts[1:]), table.shape[0]]
        return tuple(
            Shard(table.name, first, end - first, str(Device(SPARSE_PS, worker)))
            for (first, worker), end in zip(cuts, ends, strict=True)
        )

    def _padded(self, net: Net, columns: Mapping[str, tuple[Piece, ...]]) -> Net:
        """Padding ids by their new numbers."""
        return net.with_ops(self._renumbered(op, columns) for op in net.ops)

    def _renumbered(self, op: Op, columns: Mapping[str, tuple[Piece, ...]]) -> Op:
        padding = op.attrs.get("padding_idx", -1)
        if padding == -1 or op.module not in columns:
            return op
        assert isinstance(padding, int)
        piece = max((p for p in columns[op.module] if p.first_row <= padding), key=lambda p: p.first_row)
        row = int(self.numbering.renumber(piece.table, np.array([padding - piece.first_row]))[0])
        return replace(op, attrs={**op.attrs, "padding_idx": piece.first_row + row})


class _Behind(Behind):
    """The rewriting of a net for the tables of one width and rate."""

    family, answer = "Gmp", ANSWER

    def __init__(
        self,
        net: Net,
        name: str,
        pieces: Mapping[str, Sequence[Piece]],
        shards: Mapping[str, Sequence[Shard]],
        gmp: Gmp,
    ) -> None:
        super().__init__(net, name, tuple(pieces), shards, gmp.options.sparse_optimizer)
        self.gmp, self.pieces = gmp, pieces

    def holds(self) -> Parameter:
        shape = (self._replicas, row_width(self.width, self.optimizer.kind))
        return Parameter(self.name, shape, "float32", "cache", Init("constant", (0.0,)), trained=False)

    def beside_ids(self) -> Sequence[str]:
        return [name for op in self.dedupes for name in self._places(op)]

    def asked(self) -> dict[str, Attr]:
        numbering, section = self.gmp.numbering, self.gmp.section
        sources = self._sources
        first_keys = self.territory["first_keys"]
        assert isinstance(first_keys, tuple)
        first = dict(zip((op.inputs[0] for op in self.lookups), first_keys, strict=True))
        order = {op.inputs[0]: number for number, op in enumerate(self.lookups)}
        return {
            "num_tables": len(self.ids), "owners": tuple(map(number_of, self.servers)),
            "place_tables": tuple(order[op.module] for op in self.dedupes for _ in self._places(op)),
            "sources": "\n".join(piece.table for _, piece in sources), "source_keys": tuple(first[table] + piece.first_row for table, piece in sources),
            "partition": numbering.digest, "width": self.width, "staleness": self._staleness, "intra": section.intra, "inter": section.inter,
            "deferred": section.write == "deferred", "asked": self._rows(numbering.facts.rows), "replicated": self._rows(numbering.facts.replicated),
            "secondaries": self._replicas, **self.step(),
        }  # fmt: skip

    def pushed(self) -> dict[str, Attr]:
        tables = [op.inputs[0] for op in self.lookups]
        return {
            "partition": self.gmp.numbering.digest, "tables": "\n".join(tables), "sources": "\n".join(piece.table for _, piece in self._sources),
            "source_tables": tuple(tables.index(table) for table, _ in self._sources), "source_rows": tuple(piece.first_row for _, piece in self._sources),
            "staleness": self._staleness, **self.step(),
        }  # fmt: skip

    def pulled(self) -> dict[str, Attr]:
        return {"barrier": self._staleness == 0}

    @property
    def _sources(self) -> list[tuple[str, Piece]]:
        """What of the data looks up each table, in the order in which keys number their rows."""
        return [(op.inputs[0], piece) for op in self.lookups for piece in self.pieces[op.inputs[0]]]

    @property
    def _staleness(self) -> int:
        bound = self.gmp.section.staleness
        return UNBOUNDED if bound == "unbounded" else bound

    @property
    def _replicas(self) -> int:
        """The most that a worker has of these tables."""
        tables = [piece.table for pieces in self.pieces.values() for piece in pieces]
        return max(1, *(sum(len(held.get(table, ())) for table in tables) for held in self.gmp.replicas))

    def _places(self, dedupe: Op) -> Sequence[str]:
        """Where the rows of a batch's samples are among those of a table, as far as each sample has as many."""
        return (
            dedupe.outputs[1:]
            if self.gmp.section.inter and self._staleness > 0 and not _ragged(self.net, dedupe)
            else ()
        )

    def _rows(self, matrix: Sequence[Sequence[float]]) -> tuple[int, ...]:
        """What a batch needs of each server, in the mean over all workers, as far as it is of these tables; the one beside it needs nothing. A partition tells
        this of all tables together, and of each one, how many updates a step brings."""
        used = self.gmp.used
        share = sum(used[piece.table] for _, piece in self._sources) / max(sum(used.values()), 1e-9)
        workers = range(len(matrix))
        numbers = [number_of(server) for server in self.servers]
        return milli(share * sum(matrix[i][k] for i in workers if i != k) / len(matrix) for k in numbers)


def _ragged(net: Net, dedupe: Op) -> bool:
    """Whether the ids of a table come as lists of any length."""
    return any(
        not isinstance(dim := net.blob(name).shape[0], BatchDim) or dim.bound or dim.per_example != 1
        for name in dedupe.outputs[1:]
    )


def _alike(net: Net) -> dict[tuple[int, Attr], list[str]]:
    """The tables by the width of their rows and the rate of their steps."""
    rates, found = rates_of(net), dict[tuple[int, Attr], list[str]]()
    for name, parameter in net.parameters.items():
        if parameter.kind == "table":
            found.setdefault((parameter.shape[1], rates[name]), []).append(name)
    return found


COMPILE = Gmp

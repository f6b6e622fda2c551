"""Data in original ids to data with the new numbers of a partition's rows (htrain.data.numbering)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from htrain.data.edges import tables_of
from htrain.data.malformed import Malformed
from htrain.data.numbering import Numbering
from htrain.data.reader import Dataset, Source
from htrain.data.rows import Rows
from htrain.data.schema import Schema
from htrain.errors import DataError


def renumbered(dataset: Dataset, numbering: Numbering) -> Dataset:
    """The dataset with new numbers for ids; as it is where it has them, packed by the same partition.

    Raises DataError for data that another partition has numbered, and for data whose tables are not those of the partition.
    """
    if dataset.partition == numbering.digest:
        return dataset
    if dataset.partition:
        raise DataError(
            f"{dataset.source.name}: was packed by the partition {dataset.partition}, and {numbering.name} is the partition {numbering.digest}: "
            "pack its source again by this one"
        )
    require_tables(dataset, numbering)
    source = _Renumbered(dataset.source, dataset.schema, numbering)
    return replace(dataset, source=source, schema=new_schema(dataset.schema, numbering), partition=numbering.digest)


def require_tables(dataset: Dataset, numbering: Numbering) -> None:
    """Raises DataError, naming what differs, where a dataset's ids are not those of the tables of a partition."""
    tables, said = tables_of(dataset.schema), f"{dataset.source.name}: does not belong to {numbering.name}: "
    for name in numbering.tables.names:
        if name not in tables.names:
            raise DataError(f"{said}it has no table '{name}', which the partition has")
    for name in tables.names:
        if name not in numbering.tables.names:
            raise DataError(f"{said}it has a table '{name}', which the partition has not")
        here, there = tables.rows_of(name), numbering.tables.rows_of(name)
        if here != there:
            raise DataError(f"{said}its table '{name}' has {here:,} rows, in the partition {there:,}")


def new_schema(schema: Schema, numbering: Numbering) -> Schema:
    """The schema of renumbered data: a column that had only the first rows of a table that it shares may now have any."""
    rows = numbering.tables.rows_of
    return Schema(tuple(replace(each, rows=tuple(map(rows, each.tables))) for each in schema.inputs))


def new_rows(rows: Rows, schema: Schema, numbering: Numbering) -> Rows:
    """Rows of a schema with new numbers for ids, those that fill up a list included: a model takes them for ids, too."""
    fixed, lists = dict(rows.fixed), dict(rows.lists)
    for each in schema.inputs:
        if each.kind == "bag":
            values, starts = lists[each.name]
            lists[each.name] = numbering.renumber(each.tables[0], values), starts
        elif each.kind == "padded":
            fixed[each.name] = numbering.renumber(each.tables[0], fixed[each.name].reshape(-1)).reshape(-1, each.width)
        elif each.kind == "ids":
            ids = fixed[each.name]
            columns = [numbering.renumber(table, ids[:, c]) for c, table in enumerate(each.tables)]
            fixed[each.name] = np.stack(columns, axis=1)
    return replace(rows, fixed=fixed, lists=lists)


@dataclass(frozen=True)
class _Renumbered:
    """A source, renumbered while it is read."""

    source: Source
    schema: Schema
    numbering: Numbering

    @property
    def name(self) -> str:
        """See `Source`."""
        return self.source.name

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`."""
        for number, rows in self.source.chunks(shard=shard, num_shards=num_shards, first=first, malformed=malformed):
            yield number, new_rows(rows, self.schema, self.numbering)

    def num_examples(self) -> int:
        """See `Source`."""
        return self.source.num_examples()

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """See `Source`."""
        return self.source.place(number=number, row=row, num_shards=num_shards)

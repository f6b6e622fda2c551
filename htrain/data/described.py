"""Whether tables have the columns that a layout describes, in types that its inputs take; and tables in memory as data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from htrain.data.address import AnyPath
from htrain.data.arrow_rows import table_rows
from htrain.data.layout import Layout
from htrain.data.malformed import Malformed
from htrain.data.prefix import TextPath
from htrain.data.reader import Dataset
from htrain.data.rows import Rows, joined
from htrain.data.times import is_time
from htrain.data.values import is_list, is_text, rows_of
from htrain.errors import DataError

MAX_BLOCK_ROWS = 8192
Watch = Callable[[pa.Table, Rows], None]  # of columns as they stand, and the rows that these are
_TIMES = "times, dates, whole numbers or text"


def check_columns(path: TextPath | str, layout: Layout, names: Sequence[str]) -> None:
    """Raises DataError for a column that is not there, or there twice."""
    for column in layout.columns:
        if column not in names:
            raise DataError(f"{path}: no column '{column}'; it has {', '.join(names[:40])}")
        require_one(path, column, names)


def require_one(path: TextPath | str, column: str, names: Sequence[str]) -> None:
    """Raises DataError for a column that is there twice."""
    if names.count(column) > 1:
        raise DataError(f"{path}: has {names.count(column)} columns called '{column}'")


@dataclass(frozen=True)
class TableSource:
    """A table in memory; a chunk is a block of its rows. `name` is what messages call it; `watch` is told of the rows that come as they are read."""

    table: pa.Table
    layout: Layout
    name: str
    watch: Watch | None = None

    def num_examples(self) -> int:
        """Rows of the table, the malformed ones with them."""
        return int(self.table.num_rows)

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`."""
        number = first + (shard - first) % num_shards
        for k in range(number, -(-self.table.num_rows // MAX_BLOCK_ROWS), num_shards):
            start = k * MAX_BLOCK_ROWS
            block = self.table.slice(start, MAX_BLOCK_ROWS)
            rows, faults = table_rows(block, self.layout)
            if self.watch:
                self.watch(rows_of(block, np.delete(np.arange(block.num_rows), [row for row, _ in faults])), rows)
            where = [f"{self.name}: row {start + place + 1}: {reason}" for place, reason in faults]
            malformed.saw(rows.count + len(faults), len(faults), where.__getitem__)
            yield k, rows

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """The number of the row in the table."""
        start = number * MAX_BLOCK_ROWS
        block = self.table.slice(start, MAX_BLOCK_ROWS)
        _, faults = table_rows(block, self.layout)
        good = np.delete(np.arange(block.num_rows), [place for place, _ in faults])
        return f"{self.name}: row {start + int(good[row]) + 1}"


def open_table(table: pa.Table, layout: Layout, name: str, watch: Watch | None = None) -> Dataset:
    """A table in memory as data. Raises DataError when a column of the layout is not in it or of another type."""
    check_fields(name, table.schema, layout)
    source = TableSource(table.select(layout.columns), layout, name, watch)
    return Dataset(source, layout.schema, is_timed=bool(layout.time))


def inputs_of_table(table: pa.Table, layout: Layout, name: str) -> dict[str, np.ndarray]:
    """The arrays that a model gets of the rows of a table, which needs no label. Raises DataError as `open_table` does, and for a row that cannot be read."""
    layout = replace(layout, time=None)
    if all(layout.label not in layout.sources(item) for item in layout.schema.inputs):
        others = table.select([column for column in table.schema.names if column != layout.label])
        table = others.append_column(layout.label, pa.nulls(table.num_rows, pa.float32()).fill_null(0))
    source = open_table(table, layout, name).source
    strict = Malformed(0.0)
    parts = [rows for _, rows in source.chunks(shard=0, num_shards=1, first=0, malformed=strict)]
    if strict.count:
        raise DataError(strict.examples[0])
    columns = joined(parts or [table_rows(table.select(layout.columns), layout)[0]]).columns()
    return {name: values for name, values in columns.items() if name != "label"}


def check_fields(path: AnyPath | str, schema: pa.Schema, layout: Layout) -> None:
    """Raises DataError for a column that is not there, or of a type that no input takes."""
    check_columns(path, layout, schema.names)
    _check_type(path, schema.field(layout.label), "a number or text", _is_scalar)
    if layout.time:
        _check_type(path, schema.field(layout.time.column), _TIMES, is_time)
    for item in layout.schema.inputs:
        for column in layout.sources(item):
            if item.name in layout.moments:
                _check_type(path, schema.field(column), _TIMES, is_time)
            elif item.kind in ("padded", "bag"):
                _check_type(path, schema.field(column), "a list of ids, or text", _is_list)
            else:
                _check_type(path, schema.field(column), "a number or text", _is_scalar)


def _check_type(path: AnyPath | str, field: pa.Field, wanted: str, is_wanted: Callable[[pa.DataType], bool]) -> None:
    if not is_wanted(field.type):
        raise DataError(f"{path}: column '{field.name}' is {field.type}; want {wanted}")


def _is_scalar(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(is_number or pa.types.is_null(kind) or is_text(kind))


def _is_list(kind: pa.DataType) -> bool:
    return is_text(kind) or pa.types.is_null(kind) or (is_list(kind) and _is_scalar(kind.value_type))

"""Batches that come one after another from Python as data: dicts of arrays or tensors, such as those of a `torch.utils.data.DataLoader`, Arrow record batches,
DataFrames, or examples one by one.

They are read once, and no more of them are held than make a block. Their rows are in blocks as those of a table in memory are, however large the batches.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from htrain.data.arrow_rows import table_rows
from htrain.data.described import MAX_BLOCK_ROWS, check_fields
from htrain.data.layout import Layout
from htrain.data.malformed import Malformed
from htrain.data.reader import Dataset
from htrain.data.rows import Rows, joined
from htrain.errors import DataError, Error

_TOO_LARGE = "a column of Python objects has whole numbers that no type of 64 bits holds: give them as text"


def is_stream(data: object) -> bool:
    """Whether batches or examples can come from an object: an iterable, or a sequence such as a dataset of PyTorch."""
    if isinstance(data, str | bytes | Mapping):
        return False
    return hasattr(data, "__iter__") or (hasattr(data, "__getitem__") and hasattr(data, "__len__"))


def open_stream(data: Any, layout: Layout, name: str) -> Dataset:
    """What comes from `data` as rows that can be read once, by one reader."""
    # A dataset of PyTorch may give examples without an end where it is iterated over as a sequence: it need not raise IndexError.
    given = data if hasattr(data, "__iter__") else (data[i] for i in range(len(data)))
    return Dataset(StreamSource(given, layout, name), layout.schema, is_timed=bool(layout.time))


def arrow_of(data: Any, columns: Collection[str] | None) -> pa.Table:
    """A table of what Arrow takes for one. Of a DataFrame of pandas, which has columns of any Python objects, those that are not among
    `columns`, where these are known, need be of no type that Arrow knows.

    Raises TypeError, ValueError and ArrowException.
    """
    try:
        return pa.table(data)
    except OverflowError as error:
        raise ValueError(_TOO_LARGE) from error
    except (TypeError, ValueError, pa.ArrowException):
        pandas = sys.modules.get("pandas")
        if columns is None or pandas is None or not isinstance(data, pandas.DataFrame):
            raise
        return pa.table(data.loc[:, [str(name) in columns for name in data.columns]])


@dataclass(frozen=True)
class StreamSource:
    """A chunk is a block of rows; `name` is what messages call the whole."""

    given: Iterable[Any]
    layout: Layout
    name: str

    def num_examples(self) -> int:
        """Nobody knows."""
        return 0

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Requires: one shard, and nothing has been read. Raises DataError for batches that are none, naming their number."""
        assert (shard, num_shards, first) == (0, 1, 0), "a stream is read once, from its start"
        for number, block in enumerate(self._blocks()):
            parts, place = list[Rows](), number * MAX_BLOCK_ROWS
            for table in block:
                rows, faults = table_rows(table, self.layout)
                where = [f"{self.name}: row {place + row + 1}: {reason}" for row, reason in faults]
                malformed.saw(rows.count + len(faults), len(faults), where.__getitem__)
                parts.append(rows)
                place += table.num_rows
            yield number, joined(parts)

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """The block, which cannot be read again, and which of its rows that are not malformed."""
        return f"{self.name}: row {row + 1} of block {number + 1}"

    def _blocks(self) -> Iterator[list[pa.Table]]:
        """The rows of each block. Batches of the same types are one table; others are each read as what they are, as files are: no value becomes another."""
        held, count = list[pa.Table](), 0
        for table in self._tables():
            rest = table
            while rest.num_rows:
                held.append(rest.slice(0, MAX_BLOCK_ROWS - count))
                rest = rest.slice(held[-1].num_rows)
                count += held[-1].num_rows
                if count == MAX_BLOCK_ROWS:
                    yield _alike(held)
                    held, count = [], 0
        if held:
            yield _alike(held)

    def _tables(self) -> Iterator[pa.Table]:
        """Each batch as a table; examples that come one by one are put together."""
        given = self._items()
        number = 0
        for item in given:
            number += 1
            some = [item, *islice(given, MAX_BLOCK_ROWS - 1)] if self._is_example(item, number) else []
            table = self._table(some or item, number)
            check_fields(f"{self.name}: batch {number}", table.schema, self.layout)
            yield table
            number += max(0, len(some) - 1)

    def _items(self) -> Iterator[Any]:
        """What comes, one after another. Raises DataError for what the user's own code raises: an OSError would be taken for one of the packed file."""
        number = 0
        try:
            for item in self.given:
                number += 1
                yield item
        except (Error, pa.ArrowException):
            raise
        except Exception as error:
            what = f"{self.name}: batch or example {number + 1} cannot be had: {type(error).__name__}"
            raise DataError(f"{what}: {_ends(error)}") from error

    def _is_example(self, item: Any, number: int) -> bool:
        if not isinstance(item, Mapping):
            return False
        if self.layout.label not in item:
            raise DataError(
                f"{self.name}: batch {number}: no column '{self.layout.label}'; it has {', '.join(map(str, item))}"
            )
        label = item[self.layout.label]
        return isinstance(label, str) or not hasattr(label, "__len__") or getattr(label, "ndim", 1) == 0

    def _together(self, some: list[Any], number: int) -> dict[str, Any]:
        if not some or not isinstance(some[0], Mapping):
            raise TypeError(f"its first entry is a {type(some[0]).__name__}" if some else "it is empty")
        names = some[0].keys()
        for place, item in enumerate(some):
            if not isinstance(item, Mapping) or item.keys() != names:
                raise DataError(f"{self.name}: example {number + place} has other columns than example {number}")
        return {name: _stacked([item[name] for item in some]) for name in names}

    def _table(self, item: Any, number: int) -> pa.Table:
        try:
            item = self._together(item, number) if isinstance(item, list) else item
            if isinstance(item, Mapping):
                table = pa.table(dict(self._columns(item)))
            elif isinstance(item, pa.RecordBatch):
                table = pa.Table.from_batches([item])
            else:
                table = arrow_of(item, self.layout.columns)
            wanted = set(self.layout.columns)
            return table.select([place for place, name in enumerate(table.column_names) if name in wanted])
        except (TypeError, ValueError, RuntimeError, pa.ArrowException) as error:
            raise DataError(
                f"{self.name}: batch {number} is a {type(item).__name__}: want a dict of arrays or tensors by the names of columns, an Arrow record batch, "
                f"or a DataFrame ({_one_line(error)[:200]})"
            ) from error

    def _columns(self, item: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The columns that the layout reads. What is x[B,K] and no column of lists is the columns x_0 to x_(K-1), but for those
        that are there by their own names."""
        wanted = set(self.layout.columns)
        lists = {c for i in self.layout.schema.inputs if i.kind in ("padded", "bag") for c in i.columns}
        for name, values in item.items():
            if name not in wanted and not any(column.startswith(f"{name}_") for column in wanted):
                continue
            array = _array(values)
            if name in wanted and getattr(array, "ndim", 1) == 2:
                yield (
                    name,
                    _lists(array) if name in lists else array[:, 0] if array.shape[1] == 1 else _refuse(name, array),
                )
            elif name in wanted:
                yield name, array
            elif getattr(array, "ndim", 1) == 2:
                each = ((f"{name}_{k}", array[:, k]) for k in range(array.shape[1]))
                yield from ((column, part) for column, part in each if column in wanted and column not in item)


def _alike(tables: list[pa.Table]) -> list[pa.Table]:
    """Those that follow each other and have the same types as one."""
    alike = [[tables[0]]]
    for table in tables[1:]:
        if table.schema.equals(alike[-1][-1].schema):
            alike[-1].append(table)
        else:
            alike.append([table])
    return [pa.concat_tables(each) for each in alike]


def _refuse(name: str, array: np.ndarray) -> pa.Array:
    raise ValueError(
        f"'{name}' has {array.shape[1]} numbers for each row: name them {name}_0, {name}_1, ... in the schema"
    )


def _array(values: Any) -> Any:
    """An array of NumPy of a tensor or what else gives one; one of Arrow of a list, and of what knows which of its values are missing."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if (series := _series(values)) is not None:
        return series
    if isinstance(values, list | tuple):
        plain = [_plain(each) for each in values]
        return _of_list([each.item() if isinstance(each, np.ndarray) and not each.ndim else each for each in plain])
    array = _plain(values)
    array = array if isinstance(array, np.ndarray) else np.asarray(array)
    return _of_list(array.tolist()) if array.dtype == object and array.ndim == 1 else array


def _series(values: Any) -> pa.Array | pa.ChunkedArray | None:
    """A column of pandas or Polars with what is missing in it; None for what is none. NumPy's array of it would have other types where some is."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(values, pandas.Series):
        return pa.array(values, from_pandas=True)
    is_column = hasattr(values, "__arrow_c_stream__") and not hasattr(values, "columns")
    return pa.chunked_array(values) if is_column else None


def _of_list(values: list[Any]) -> pa.Array:
    """An array of Python objects. Arrow looks for int64 alone. Raises ValueError for numbers that 64 bits do not hold."""
    try:
        return pa.array(values, from_pandas=True)
    except OverflowError:
        try:
            return pa.array(values, pa.uint64())
        except (OverflowError, pa.ArrowException) as error:
            raise ValueError(_TOO_LARGE) from error


def _stacked(values: list[Any]) -> Any:
    """Values of examples, one array where all have one of the same shape."""
    plain = [_plain(each) for each in values]
    shapes = {each.shape if isinstance(each, np.ndarray) else None for each in plain}
    if None in shapes or len(shapes) > 1:
        return plain
    return np.ma.stack(plain) if any(isinstance(each, np.ma.MaskedArray) for each in plain) else np.stack(plain)


def _plain(values: Any) -> Any:
    """A tensor, on whatever device and part of whatever graph, as an array of NumPy, with its mask where it has one; others as they are."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if isinstance(values, np.ma.MaskedArray):
        return None if values is np.ma.masked else values
    return np.asarray(values) if hasattr(values, "__array__") else values


def _lists(array: np.ndarray) -> pa.Array:
    """x[B,K] as lists of K."""
    starts = np.arange(len(array) + 1, dtype=np.int64) * array.shape[1]
    return pa.LargeListArray.from_arrays(pa.array(starts), pa.array(array.reshape(-1)))


def _ends(error: Exception) -> str:
    """What an exception says, without what stands between its first line and its last: that of a DataLoader's worker has all that led to it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

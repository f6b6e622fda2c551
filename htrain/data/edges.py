"""The rows that each example looks up, as numbers over all tables: the edges of the bigraph of samples and rows (HET-GMP 5.1)."""

from dataclasses import dataclass

import numpy as np

from htrain.data.rows import Rows
from htrain.data.schema import Input, Schema

Longs = np.ndarray


@dataclass(frozen=True)
class Tables:
    """The tables of a schema one after another: row r of table t is row starts[t] + r of all. `never_repeat`: no example looks one row up twice."""

    names: tuple[str, ...]
    starts: tuple[int, ...]
    num_rows: int
    never_repeat: bool

    def start_of(self, table: str) -> int:
        """The number of a table's first row."""
        return self.starts[self.names.index(table)]

    def rows_of(self, table: str) -> int:
        """How many rows a table has."""
        number = self.names.index(table)
        return (*self.starts, self.num_rows)[number + 1] - self.starts[number]

    def place(self, key: int) -> str:
        """A row by its table, as TABLE[ROW]."""
        table = int(np.searchsorted(self.starts, key, side="right")) - 1
        return f"{self.names[table]}[{key - self.starts[table]}]"


def tables_of(schema: Schema) -> Tables:
    """The tables that a schema's ids address, in the order in which they are first named; one that several columns share has the most rows that any says."""
    sizes: dict[str, int] = {}
    repeats = False
    for each in schema.inputs:
        for table, rows in zip(each.tables, each.rows, strict=True):
            repeats |= table in sizes or each.kind != "ids"
            sizes[table] = max(rows, sizes.get(table, 0))
    starts = np.append(0, np.cumsum(list(sizes.values()), dtype=np.int64))
    return Tables(tuple(sizes), tuple(map(int, starts[:-1])), int(starts[-1]), never_repeat=not repeats)


def edges_of(rows: Rows, schema: Schema, tables: Tables) -> tuple[Longs, Longs]:
    """Example i looks up the rows keys[starts[i]:starts[i+1]] of all tables: int64[n+1] and int64[E], what comes twice with them."""
    parts = [_of_input(each, rows, tables) for each in schema.inputs if each.tables]
    lengths = sum((part[0] for part in parts), np.zeros(rows.count, np.int64))
    starts = np.append(0, np.cumsum(lengths))
    keys = np.empty(starts[-1], np.int64)
    begin = starts[:-1].copy()
    for length, found in parts:
        first = np.append(0, np.cumsum(length))[:-1]
        keys[np.repeat(begin - first, length) + np.arange(len(found))] = found
        begin += length
    return starts, keys


def _of_input(each: Input, rows: Rows, tables: Tables) -> tuple[Longs, Longs]:
    """How many rows each example looks up by one input, and which, one example after another."""
    if each.kind == "bag":
        values, starts = rows.lists[each.name]
        return np.diff(starts), values + tables.start_of(each.tables[0])
    ids = rows.fixed[each.name]
    if each.kind == "ids":
        first = np.array([tables.start_of(table) for table in each.tables], np.int64)
        return np.full(rows.count, each.width, np.int64), (ids + first).ravel()
    length = np.minimum(rows.fixed[f"{each.name}_length"], each.width).astype(np.int64)
    is_there = np.arange(each.width) < length[:, None]
    return length, ids[is_there] + tables.start_of(each.tables[0])

"""Rows by new numbers, so that what a worker owns is one range of each table (docs/decisions/bigraph.md).

A partition says who owns which of the rows that its data uses. Numbered anew, worker k's rows of a table are those from bounds[k] to bounds[k + 1] - 1: first
the seen ones that it owns, then a share of the unseen ones, both in the order of their original ids. Shares make the ranges as even as can be.

What is held of a map is a bit for each row of all tables and an owner for each that is seen, both with ranks (htrain.data.numbering_loops), never a number
for each row.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from htrain.data.edges import Tables
from htrain.data.numbering_loops import (
    FAR,
    LINE,
    Longs,
    Owners,
    Table,
    Words,
    by_owner,
    owned_keys,
    rank_in_owner,
    rank_of,
    rank_owners,
    renumber,
    to_lines,
    unseen_keys,
)
from htrain.data.partition_file import Array, Facts, PartitionFile, bits_of, read_facts, read_tensor
from htrain.errors import DataError

_LINE_BYTES = 64  # of the processor's cache
Tensor = Callable[[str], Iterator[Array]]  # name to pieces


def open_numbering(path: Path) -> "Numbering":
    """The numbers that rows have by the partition in a file. Raises DataError for what is none, is of another version, or was damaged."""
    facts = read_facts(path)
    return Numbering(facts, partial(read_tensor, path, facts), name=str(path))


def numbering_of(partition: PartitionFile, *, name: str = "the partition") -> "Numbering":
    """The same, of a partition in memory; `name` is what messages call it."""
    tensors = partition.tensors()
    return Numbering(partition.facts, lambda tensor: iter([tensors[tensor]]), name=name)


class Numbering:
    """New numbers of rows: a bijection of each table's rows, so that each worker's are one range.

    It is made of the `facts` of a partition, which messages call `name`, and of `tensor`, which gives a tensor of it by name, in pieces. Replicas and updates
    are read when they are first asked for, and raise DataError then for a file that has changed.
    """

    def __init__(self, facts: Facts, tensor: Tensor, *, name: str) -> None:
        """Raises DataError where tensors do not belong together."""
        self.facts, self.name, self._tensor = facts, name, tensor
        ends = np.cumsum(facts.table_rows, dtype=np.int64)
        starts = (ends - np.array(facts.table_rows, np.int64)).tolist()
        self.tables = Tables(facts.tables, tuple(starts), int(ends[-1]), never_repeat=False)
        self._lines, num_seen = _lines(tensor, self.tables.num_rows)
        if num_seen != facts.num_seen:
            raise DataError(f"{name}: is damaged: {num_seen:,} rows are seen, want {facts.num_seen:,}; make it again")
        firsts = [rank_of(self._lines, start) for start in starts]
        self._first_seen = np.array([*firsts, num_seen], np.int64)
        before = np.zeros((len(starts) + 1, facts.num_workers), np.int64)
        self._owners, num_owned = _owners(tensor, facts, self._first_seen, before)
        if num_owned != num_seen:
            raise DataError(f"{name}: is damaged: a row is owned by no worker; make it again")
        self._tables = {
            table: _table(start, num_rows, int(first), before[t : t + 2])
            for t, (table, start, num_rows, first) in enumerate(
                zip(facts.tables, starts, facts.table_rows, firsts, strict=True)
            )
        }
        self._updates = np.zeros(0, np.float16)

    @property
    def digest(self) -> str:
        """That of the partition."""
        return self.facts.digest

    @property
    def num_workers(self) -> int:
        """Among whom rows are divided."""
        return self.facts.num_workers

    def bounds(self, table: str) -> tuple[int, ...]:
        """K + 1 numbers: worker k owns the new rows bounds[k] to bounds[k + 1] - 1."""
        return tuple(self._tables[table].bounds.tolist())

    def owned(self, table: str) -> tuple[int, ...]:
        """How many of each worker's rows are seen ones: the first of its range."""
        return tuple(self._tables[table].owned.tolist())

    def sections(self) -> Longs:
        """Where parts of the new rows of all tables begin, int64[2 T K]: of each table, of each worker, the seen rows that it owns, then its unseen ones."""
        tables = self._tables.values()
        firsts = [
            table.start + np.stack([table.bounds[:-1], table.bounds[:-1] + table.owned], axis=1) for table in tables
        ]
        return np.concatenate(firsts).reshape(-1)

    def renumber(self, table: str, ids: Longs) -> Longs:
        """The new numbers int64[N] of original ids int64[N]. Raises DataError for an id that the table does not have."""
        found = self._tables[table]
        _require_within(table, ids, found.num_rows)
        new = np.empty(len(ids), np.int64)
        renumber(self._lines, self._owners, found, np.ascontiguousarray(ids, np.int64), new)
        return new

    def originals(self, table: str, first: int, last: int) -> Longs:
        """The original ids int64[last - first] of the new rows `first` to `last` - 1, which must be rows of the table."""
        found = self._tables[table]
        assert 0 <= first <= last <= found.num_rows, f"rows {first} to {last} of {found.num_rows}"
        parts = [np.zeros(0, np.int64)]
        for k in range(self.num_workers):
            begin, end = max(first, int(found.bounds[k])), min(last, int(found.bounds[k + 1]))
            middle = int(found.bounds[k] + found.owned[k])
            parts += [self._owned(found, k, begin, min(end, middle)), self._unseen(found, k, max(begin, middle), end)]
        return np.concatenate(parts) - found.start

    def _owned(self, table: Table, k: int, first: int, last: int) -> Longs:
        keys = np.empty(max(0, last - first), np.int64)
        if len(keys):
            owned_keys(self._lines, self._owners, k, int(table.before[k]) + first - int(table.bounds[k]), keys)
        return keys

    def _unseen(self, table: Table, k: int, first: int, last: int) -> Longs:
        keys = np.empty(max(0, last - first), np.int64)
        if len(keys):
            inside = first - int(table.bounds[k] + table.owned[k])
            unseen_keys(self._lines, table.start - table.first_seen + int(table.cuts[k]) + inside, keys)
        return keys

    def secondaries(self, worker: int) -> dict[str, Longs]:
        """The new rows of each table that a worker holds replicas of besides its own, ascending; tables without any are left out."""
        rows = np.concatenate([*self._tensor(f"secondaries.{worker}")]).astype(np.int64)
        owner, rank = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        rank_in_owner(self._owners, rows, owner, rank)
        of_table = np.searchsorted(self._first_seen[1:], rows, side="right")
        held = {}
        for t, (name, table) in enumerate(self._tables.items()):
            here = of_table == t
            if here.any():
                held[name] = np.sort((table.bounds[:-1] - table.before)[owner[here]] + rank[here])
        return held

    def updates(self, table: str, rows: Longs) -> NDArray[np.float32]:
        """How many updates a step brings to new rows in the mean, float32[N]: on how many workers a batch uses the row; 0 for unseen rows."""
        found = self._tables[table]
        _require_within(table, rows, found.num_rows)
        if len(self._updates) < self.facts.num_seen:
            self._updates = self._by_owner(np.concatenate([*self._tensor("updates")]))
        owner = np.searchsorted(found.bounds, rows, side="right") - 1
        inside = rows - found.bounds[owner]
        is_seen = inside < found.owned[owner]
        starts = found.first_seen + np.cumsum(found.owned) - found.owned
        updates = np.zeros(len(rows), np.float32)
        updates[is_seen] = self._updates[(starts[owner] + inside)[is_seen]]
        return updates

    def updates_of_tables(self) -> dict[str, float]:
        """The same of all rows of each table together."""
        sums, first = np.zeros(len(self.facts.tables)), 0
        for piece in self._tensor("updates"):
            ends = np.clip(self._first_seen - first, 0, len(piece))
            sums += [piece[begin:end].sum(dtype=np.float64) for begin, end in pairwise(ends)]
            first += len(piece)
        return dict(zip(self.facts.tables, sums.tolist(), strict=True))

    def _by_owner(self, values: Array) -> Array:
        """Values of the seen rows by table, and in it by owner."""
        owned = np.array([table.owned for table in self._tables.values()])
        starts = self._first_seen[:-1, None] + np.cumsum(owned, axis=1) - owned
        ordered = np.empty(len(values), np.uint16)
        by_owner(self._owners, self._first_seen, starts, values.view(np.uint16), ordered)
        return ordered.view(np.float16)


def _lines(tensor: Tensor, num_rows: int) -> tuple[Words, int]:
    """The lines of a bitmap, and how many of its bits are set."""
    lines = _zeros((num_rows // LINE + 1) * 8)
    word, rank = 0, 0
    for piece in tensor("seen"):
        rank = to_lines(piece, word, lines, rank)
        word += len(piece)
    return lines, rank


def _owners(tensor: Tensor, facts: Facts, first_seen: Longs, before: Longs) -> tuple[Owners, int]:
    """The owners, and of how many rows; fills `before`."""
    planes = np.concatenate([*tensor("owners")])
    bits, num_workers = bits_of(facts.num_workers), facts.num_workers
    words = 2
    while words * bits * 4 < num_workers:  # ranks are to take no more than the planes
        words *= 2
    width = words * bits + -(-num_workers // 4)
    records = _zeros(-(-len(planes) // words) * width).reshape(-1, width)
    far = np.zeros((-(-facts.num_seen >> FAR) + 1, num_workers), np.int64)
    num_owned = rank_owners(planes, facts.num_seen, first_seen, records, far, before)
    return Owners(records, far, (0,) * bits, (0,) * words), num_owned


def _zeros(count: int) -> Words:
    """uint64[count] that begin with a line of the cache."""
    raw = np.zeros(8 * count + _LINE_BYTES, np.uint8)
    begin = -raw.ctypes.data % _LINE_BYTES
    return raw[begin : begin + 8 * count].view(np.uint64)


def _table(start: int, num_rows: int, first_seen: int, before: Longs) -> Table:
    """A table, of before[2, K]: the seen rows of each owner before it, and before the next one."""
    owned = before[1] - before[0]
    shares = shares_of(owned, num_rows - int(owned.sum()))
    bounds, cuts = (np.append(0, np.cumsum(counts)) for counts in (owned + shares, shares))
    return Table(start, num_rows, first_seen, before=before[0].copy(), bounds=bounds, owned=owned, cuts=cuts)


def shares_of(owned: Longs, number: int) -> Longs:
    """How many of `number` more rows each worker gets, so that what they own in all, owned[K] with it, is as even as can be."""
    order = np.argsort(owned, kind="stable")
    for count in range(len(owned), 0, -1):  # of the workers that own least, all come to one level
        level, rest = divmod(number + int(owned[order[:count]].sum()), count)
        if level >= owned[order[count - 1]]:
            break
    shares = np.zeros(len(owned), np.int64)
    shares[order[:count]] = level - owned[order[:count]]
    shares[np.sort(order[:count])[:rest]] += 1
    return shares


def _require_within(table: str, rows: Longs, num_rows: int) -> None:
    """Raises DataError for a row that a table does not have."""
    if len(rows) and not 0 <= (low := int(rows.min())) <= (high := int(rows.max())) < num_rows:
        raise DataError(f"table '{table}' has no row {low if low < 0 else high:,}: its rows are 0 to {num_rows - 1:,}")

"""Making a file of vocabularies (htrain.data.vocabulary) from data: the values of columns of ids that come often enough, the most frequent first; behind those
of an earlier file, where it extends one.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from htrain.data.address import AnyPath, no_such_file
from htrain.data.countable import Countable
from htrain.data.counting import Counting, Counts, chosen, columns_of_ids
from htrain.data.layout import Layout
from htrain.data.malformed import Malformed
from htrain.data.vocabulary import EMPTY, FACTS, FIRST, MOST_EXTENDED, Facts, Lineage, VocabularyFile, vocabulary_of
from htrain.errors import DataError
from htrain.files import new_file

_KINDS = pa.schema([("value", pa.large_string()), ("count", pa.int64())])


@dataclass(frozen=True)
class Limits:
    """Which values are kept: those that come at least `min_count` times, and of these the `most` most frequent; 0: all. What is extended is kept first."""

    min_count: int = 1
    most: int = 0


class Counted(msgspec.Struct, frozen=True):
    """A column of a vocabulary: how many different values it has, how many of these are kept, and the rows of its table; how often values come, and how often
    those that are kept; how often a value is missing; and of the rows, how many are of values that came behind those of the vocabulary that it extends."""

    column: str
    distinct: int
    kept: int
    rows: int
    values: int
    values_kept: int
    missing: int
    new_rows: int


class Vocabularies(msgspec.Struct, frozen=True):
    """What was counted, and how many rows of the data were."""

    examples: int
    malformed: int
    columns: tuple[Counted, ...]


def write_vocabulary(
    data: Countable,
    out: Path,
    *,
    limits: Limits,
    columns: Sequence[str],
    together: Sequence[Sequence[str]],
    malformed: Malformed,
    extends: AnyPath | None = None,
) -> Vocabularies:
    """Count the values of columns of ids of `data` in one pass, and write the vocabularies to `out`. Without `columns` they are those of which the schema file
    says that they have a vocabulary, all where it says so of none. Columns that are named `together` are counted as one: each value has the same row in each.
    So are those that the schema has in one table. The values of the file that it `extends` keep their rows; columns that have one vocabulary there have one
    here, and others that are not counted are as they were.

    Raises DataError for data that cannot be read, columns that are none of ids, and an `out` that cannot be written.
    """
    earlier = _Earlier(extends, out) if extends else None
    counting = Counting({})
    layout, source = data.open(
        lambda file, column: EMPTY, lambda table, rows: counting(table, rows)
    )  # the files may not be there yet
    if layout.vocabularies and data.parts_by_ids:
        raise DataError(
            f"'{data.name}': which rows test=SHARE holds out follows from ids, and they from the vocabulary: count all rows, or hold out by test_from=TIME"
        )
    known = columns_of_ids(layout)
    listed = [column for _, column in layout.vocabularies]
    names = chosen(layout, columns, listed or list(known), data.name)
    groups = _joined(_groups(names, together, data.name), [*_of_tables(layout), *(earlier.alike if earlier else [])])
    counting = Counting({column: known[column] for column in names})
    for _ in source.chunks(shard=0, num_shards=1, first=0, malformed=malformed):
        pass
    first = {group: earlier.of(group) if earlier else _KINDS.empty_table() for group in groups}
    came = {g: _sum([counting.counts[c] for c in g if c in counting.counts]) for g in groups}
    kept = {g: _kept(came[g], limits, first[g], data.name) for g in groups}
    group_of = {column: group for group in groups for column in group}
    told = Vocabularies(
        examples=counting.num_examples,
        malformed=malformed.count,
        columns=tuple(
            _told(c, counting.counts[c], kept[group_of[c]], kept[group_of[c]].num_rows - first[group_of[c]].num_rows)
            for c in names
        ),
    )
    if not told.examples:
        raise DataError(f"{source.name}: holds no rows that can be read")
    _require_values(names, counting, told, limits, source.name)
    _write(out, data.name, limits, earlier, {column: kept[group] for group in groups for column in group})
    return told


class _Earlier:
    """The file of vocabularies that another extends."""

    def __init__(self, path: AnyPath, out: Path) -> None:
        """Raises DataError for what is none, and where it is `out`."""
        if isinstance(path, Path) and path.exists() and out.exists() and path.samefile(out):
            raise DataError(
                f"{out}: --out would replace what it extends, by which runs have read their data: write the new one beside it"
            )
        if not path.is_file():
            raise DataError(f"{path}: {no_such_file(path)} (--extends): name the vocabulary that was counted before")
        self._path, self._file = path, VocabularyFile(path, with_counts=True)
        self.columns = self._file.columns
        self._of = cache(self._file.of)

    @property
    def alike(self) -> list[list[str]]:
        """The columns that have one vocabulary, as those that were counted together."""
        by_digest: dict[str, list[str]] = {}
        for column in self.columns:
            by_digest.setdefault(self.digest(column), []).append(column)
        return [columns for columns in by_digest.values() if len(columns) > 1]

    def of(self, group: Sequence[str]) -> pa.Table:
        """The values of columns that are counted as one, by their rows, with their counts. Raises DataError where it has others for one of them."""
        listed = [column for column in group if column in self.columns]
        if not listed:
            return _KINDS.empty_table()
        for column in group:
            if column not in listed or self.digest(column) != self.digest(listed[0]):
                raise DataError(
                    f"{self._path}: has not the same values for '{listed[0]}' and '{column}', which are counted together: some would have other "
                    "rows than they have there"
                )
        return self.rows(listed[0])

    def rows(self, column: str) -> pa.Table:
        """The values of a column and their counts."""
        return self._file.rows(column).select(_KINDS.names).combine_chunks()

    def digest(self, column: str) -> str:
        """That of the vocabulary of a column. Raises DataError where a value is there twice."""
        return self._of(column).digest

    def lineage(self, column: str) -> tuple[str, ...]:
        """The digests of a column's vocabulary here, and of those that it extends."""
        if column not in self.columns:
            return ()
        found = self._of(column)
        return (*found.extends, found.digest)[-MOST_EXTENDED:]


def _groups(names: Sequence[str], together: Sequence[Sequence[str]], name: str) -> list[tuple[str, ...]]:
    """The columns by those that are counted as one."""
    joined = [column for group in together for column in group]
    for column in joined:
        if column not in names:
            raise DataError(f"{name}: together: '{column}' is none of the columns that are counted, {', '.join(names)}")
        if joined.count(column) > 1:
            raise DataError(f"{name}: together: '{column}' is named twice")
    if not all(together):
        raise DataError(
            f"{name}: together: a group without columns: name those that are counted as one, such as user,friend"
        )
    return [*map(tuple, together), *((column,) for column in names if column not in joined)]


def _of_tables(layout: Layout) -> list[list[str]]:
    """The columns that the schema has in one table: they have one vocabulary."""
    found: dict[str, dict[str, None]] = {}
    for item in layout.schema.inputs:
        for column, table in zip(item.columns, item.tables, strict=False):
            found.setdefault(table, {})[column] = None
    return [list(columns) for columns in found.values() if len(columns) > 1]


def _joined(groups: Sequence[tuple[str, ...]], others: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Groups of columns, each with the columns that it has to be one with."""
    found = [list(group) for group in groups]
    for other in others:
        touched = [group for group in found if not set(group).isdisjoint(other)]
        if touched:
            whole = list(dict.fromkeys([column for group in (*touched, other) for column in group]))
            found = [whole, *(group for group in found if group not in touched)]
    return [tuple(group) for group in found]


def _sum(each: Sequence[Counts]) -> pa.Table:
    if len(each) == 1:
        return each[0].table
    every = pa.concat_tables([counts.table for counts in each]).group_by("value", use_threads=False)
    sums = every.aggregate([("count", "sum")])
    return pa.table([sums["value"], sums["count_sum"]], names=["value", "count"])


def _kept(counts: pa.Table, limits: Limits, first: pa.Table, name: str) -> pa.Table:
    """The values that are kept, in the order of their rows: the `first` as they stand, then others by counts, and of the same count by their bytes. Raises
    DataError where the first are more than are to be kept."""
    if limits.most and first.num_rows > limits.most:
        raise DataError(f"{name}: --most {limits.most:,} is less than the {first.num_rows:,} values that it extends")
    came = pc.fill_null(counts["count"].combine_chunks().take(pc.index_in(first["value"], counts["value"])), 0)
    first = pa.table([first["value"], pc.add(first["count"], came)], schema=_KINDS)
    is_new = pc.invert(pc.is_in(counts["value"], value_set=first["value"].combine_chunks()))
    often = counts.filter(pc.and_(is_new, pc.greater_equal(counts["count"], limits.min_count)))
    order = pc.sort_indices(often, sort_keys=[("count", "descending"), ("value", "ascending")])
    return pa.concat_tables([first, often.take(order[: limits.most - first.num_rows] if limits.most else order)])


def _told(column: str, counts: Counts, kept: pa.Table, new_rows: int) -> Counted:
    own = counts.table
    of_kept = own.filter(pc.is_in(own["value"], value_set=kept["value"].combine_chunks()))
    return Counted(
        column=column,
        distinct=own.num_rows,
        kept=of_kept.num_rows,
        rows=FIRST + kept.num_rows,
        values=_total(own),
        values_kept=_total(of_kept),
        missing=counts.missing,
        new_rows=new_rows,
    )


def _require_values(names: Sequence[str], counting: Counting, told: Vocabularies, limits: Limits, name: str) -> None:
    """Raises DataError for a column of which no value is kept: nothing could be looked up in it."""
    for column, each in zip(names, told.columns, strict=True):
        if each.rows == FIRST:
            counts = counting.counts[column].table["count"]
            most = pc.max(counts).as_py() or 0
            raise DataError(
                f"{name}: column '{column}' has no value that comes {limits.min_count} times or more; the most frequent comes {most} times: "
                f"count with a smaller --min-count, or without the column (--columns)"
            )


def _total(counts: pa.Table) -> int:
    return int(np.sum(counts["count"].to_numpy()))


def _write(out: Path, name: str, limits: Limits, earlier: _Earlier | None, counted: Mapping[str, pa.Table]) -> None:
    """Those that were counted, and those of other columns of what they extend."""
    of_earlier = {c: earlier.rows(c) for c in earlier.columns if c not in counted} if earlier else {}
    each = {**of_earlier, **counted}
    grown = {
        c: Lineage(vocabulary_of(kept["value"].combine_chunks()).digest, earlier.lineage(c) if earlier else ())
        for c, kept in each.items()
    }
    facts = Facts(1, name, limits.min_count, limits.most, grown)
    schema = pa.schema([("column", pa.large_string()), *_KINDS], metadata={FACTS: msgspec.json.encode(facts)})
    try:
        with new_file(out, _is_ours) as file, pq.ParquetWriter(file, schema, write_page_checksum=True) as writer:
            for column, kept in each.items():
                names = pa.repeat(pa.scalar(column, pa.large_string()), kept.num_rows)
                writer.write_table(pa.table([names, kept["value"], kept["count"]], schema=schema))
            writer.close()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from error


def _is_ours(path: Path) -> bool:
    try:
        return FACTS in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False

"""Making a file of vocabularies (htrain.data.vocabulary) from data: the values of columns of ids that come often enough, the most frequent first."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from htrain.data.address import AnyPath
from htrain.data.counting import Counting, Counts, chosen, columns_of_ids
from htrain.data.layout import Layout, load_layout
from htrain.data.malformed import Malformed
from htrain.data.source import format_of, watched
from htrain.data.vocabulary import EMPTY, FIRST
from htrain.errors import DataError
from htrain.files import new_file

_KEY = b"htrain.vocabulary"


@dataclass(frozen=True)
class Limits:
    """Which values are kept: those that come at least `min_count` times, and of these the `most` most frequent; 0: all."""

    min_count: int = 1
    most: int = 0


class Counted(msgspec.Struct, frozen=True):
    """A column of a vocabulary: how many different values it has, how many of these are kept, and the rows of its table; how often values come, and how often
    those that are kept; and how often a value is missing."""

    column: str
    distinct: int
    kept: int
    rows: int
    values: int
    values_kept: int
    missing: int


class Vocabularies(msgspec.Struct, frozen=True):
    """What was counted, and how many rows of the data were."""

    examples: int
    malformed: int
    columns: tuple[Counted, ...]


def write_vocabulary(
    uri: str,
    out: Path,
    *,
    limits: Limits,
    columns: Sequence[str],
    together: Sequence[Sequence[str]],
    malformed: Malformed,
) -> Vocabularies:
    """Count the values of columns of ids of `uri` in one pass, and write the vocabularies to `out`. Without `columns` they are those of which the schema file
    says that they have a vocabulary, all where it says so of none. Columns that are named `together` are counted as one: each value has the same row in each.

    Raises DataError for data that cannot be read, columns that are none of ids, and an `out` that cannot be written.
    """
    found: list[Layout] = []

    def layout_at(path: AnyPath) -> Layout:
        found.append(load_layout(path, lambda file, column: EMPTY))  # the files may not be there yet
        if found[0].vocabularies and "test" in format_of(uri)[1]:
            raise DataError(
                f"'{uri}': which rows test=SHARE holds out follows from ids, and they from the vocabulary: count all rows, or hold out by test_from=TIME"
            )
        return found[0]

    counting = Counting({})
    source = watched(uri, layout_at, lambda table, rows: counting(table, rows))
    known = columns_of_ids(found[0])
    listed = [column for _, column in found[0].vocabularies]
    names = chosen(found[0], columns, listed or list(known), uri)
    groups = _groups(names, together, uri)
    counting = Counting({column: known[column] for column in names})
    for _ in source.chunks(shard=0, num_shards=1, first=0, malformed=malformed):
        pass
    kept = {group: _kept(_sum([counting.counts[column] for column in group]), limits) for group in groups}
    group_of = {column: group for group in groups for column in group}
    told = Vocabularies(
        examples=counting.num_examples,
        malformed=malformed.count,
        columns=tuple(_told(column, counting.counts[column], kept[group_of[column]]) for column in names),
    )
    if not told.examples:
        raise DataError(f"{source.name}: holds no rows that can be read")
    _require_values(names, counting, told, limits, source.name)
    _write(out, uri, limits, [(column, kept[group_of[column]]) for column in names])
    return told


def _groups(names: Sequence[str], together: Sequence[Sequence[str]], uri: str) -> list[tuple[str, ...]]:
    """The columns by those that are counted as one."""
    joined = [column for group in together for column in group]
    for column in joined:
        if column not in names:
            raise DataError(f"{uri}: together: '{column}' is none of the columns that are counted, {', '.join(names)}")
        if joined.count(column) > 1:
            raise DataError(f"{uri}: together: '{column}' is named twice")
    if not all(together):
        raise DataError(
            f"{uri}: together: a group without columns: name those that are counted as one, such as user,friend"
        )
    return [*map(tuple, together), *((column,) for column in names if column not in joined)]


def _sum(each: Sequence[Counts]) -> pa.Table:
    if len(each) == 1:
        return each[0].table
    every = pa.concat_tables([counts.table for counts in each]).group_by("value", use_threads=False)
    sums = every.aggregate([("count", "sum")])
    return pa.table([sums["value"], sums["count_sum"]], names=["value", "count"])


def _kept(counts: pa.Table, limits: Limits) -> pa.Table:
    """The values that are kept, in the order of their rows: by counts, and of the same count by their bytes."""
    often = counts.filter(pc.greater_equal(counts["count"], limits.min_count))
    order = pc.sort_indices(often, sort_keys=[("count", "descending"), ("value", "ascending")])
    return often.take(order[: limits.most] if limits.most else order)


def _told(column: str, counts: Counts, kept: pa.Table) -> Counted:
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
    )


def _require_values(names: Sequence[str], counting: Counting, told: Vocabularies, limits: Limits, name: str) -> None:
    """Raises DataError for a column of which no value is kept: nothing could be looked up in it."""
    for column, each in zip(names, told.columns, strict=True):
        if not each.kept:
            counts = counting.counts[column].table["count"]
            most = pc.max(counts).as_py() or 0
            raise DataError(
                f"{name}: column '{column}' has no value that comes {limits.min_count} times or more; the most frequent comes {most} times: "
                f"count with a smaller --min-count, or without the column (--columns)"
            )


def _total(counts: pa.Table) -> int:
    return int(np.sum(counts["count"].to_numpy()))


def _write(out: Path, uri: str, limits: Limits, each: Sequence[tuple[str, pa.Table]]) -> None:
    facts = {"version": 1, "data": uri, "min_count": limits.min_count, "most": limits.most}
    schema = pa.schema(
        [("column", pa.large_string()), ("value", pa.large_string()), ("count", pa.int64())],
        metadata={_KEY: msgspec.json.encode(facts)},
    )
    try:
        with new_file(out, _is_ours) as file, pq.ParquetWriter(file, schema, write_page_checksum=True) as writer:
            for column, kept in each:
                names = pa.repeat(pa.scalar(column, pa.large_string()), kept.num_rows)
                writer.write_table(pa.table([names, kept["value"], kept["count"]], schema=schema))
            writer.close()
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error.strerror or error}") from error


def _is_ours(path: Path) -> bool:
    try:
        return _KEY in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowException):
        return False

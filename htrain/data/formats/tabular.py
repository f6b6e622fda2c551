"""CSV and Parquet through pyarrow, with a YAML schema that says which columns are what.

    label: click
    inputs:
      dense:   {kind: dense, columns: [I1, I2], transform: log1p}   # transform: none (default) or log1p
      sparse:  {kind: ids, columns: [C1, C2], rows: [1000, 5000]}     # rows: one number per column, or one for all
      history: {kind: padded, column: items, length: 50, rows: 100000}
      tags:    {kind: bag, column: tags, rows: 1000, width: 5}         # width: the mean length
      when:    {kind: time, column: at, parts: [hour, weekday]}        # of day and month, too; zone: UTC, unit: s
    words:   {kind: ids, columns: [word], vocabulary: v.parquet}     # or any other ids, in the place of rows

Lists are list columns in Parquet, and ids separated by spaces or | in CSV. A missing id is row 0, a missing number 0; words such as NA
are missing numbers. An id is a whole number modulo rows; other text is hashed; or a vocabulary numbers them (htrain.data.vocabulary). Fields
of a CSV file hold no line breaks: the file is read in chunks of whole lines.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from htrain.data.address import Address, AnyPath
from htrain.data.arrow_rows import ToRows, table_rows
from htrain.data.described import MAX_BLOCK_ROWS, check_columns, check_fields, require_one
from htrain.data.first_rows import FirstRows
from htrain.data.format import Described, Format
from htrain.data.layout import Layout
from htrain.data.malformed import Malformed
from htrain.data.prefix import TextPath
from htrain.data.reader import Dataset
from htrain.data.rows import Rows
from htrain.data.text import Fault, TextSource, open_text, read_line, read_lines, readable
from htrain.errors import DataError
from htrain.jit import njit

_HEAD_BYTES = 8 << 20  # of text that is read at once for its first rows
_REASONS = ("", "has a quote that does not end on its line", "has a carriage return inside the line")


def open_csv(path: TextPath, described: Described) -> Dataset:
    """A CSV file with a header line. Raises DataError when a column of the schema is not in it."""
    layout = described.layout
    with open_text(path) as file:
        header = read_line(file, path)
    names = _column_names(path, header)
    check_columns(path, layout, names)
    parse = partial(parse_csv, names=tuple(names), layout=layout, to_rows=described.to_rows)
    return Dataset(TextSource(path, parse, len(header)), layout.schema, is_timed=bool(layout.time))


def _column_names(path: TextPath, header: bytes) -> list[str]:
    try:
        return _names_in(header)
    except (csv.Error, ValueError) as error:
        raise DataError(f"{path}:1: want a line of column names: {' '.join(str(error).split())}") from error


def _names_in(header: bytes) -> list[str]:
    """The fields of a file's first line. Raises ValueError and csv.Error.

    Not by Arrow: its reader lets go of what it reads on a thread of its own, and a command that ends at once, as for a column that is not there, was aborted by
    that thread in one of some ten.
    """
    line = header.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    if "\r" in line:
        raise ValueError("it has a carriage return inside the line")
    if not line:
        raise ValueError("it is blank")
    reader = csv.reader([line, ""])
    names = next(reader)
    if reader.line_num > 1:
        raise ValueError("it has a quote that does not end on its line")
    return names


def parse_csv(
    data: np.ndarray, names: tuple[str, ...], layout: Layout, to_rows: ToRows = table_rows
) -> tuple[Rows, Sequence[Fault]]:
    """Parse whole lines, uint8[n], into the layout's inputs and `label`: float32[rows].

    `names` are the columns as the file has them. Blank lines are no rows; one that cannot be read is a fault.
    """
    data, unreadable = _readable_lines(data)
    lines = _line_numbers(data)
    table, short = _csv_table(data, names, layout.columns)
    assert table.num_rows + len(short) == lines.size, "Arrow and we see other lines in this CSV file"
    rows, wrong = to_rows(table, layout)
    read = np.delete(lines, [row for row, _ in short])
    faults = [(int(lines[row]), reason) for row, reason in short] + [(int(read[row]), reason) for row, reason in wrong]
    return rows, sorted(unreadable + faults)


def _csv_table(data: np.ndarray, names: Sequence[str], columns: list[str]) -> tuple[pa.Table, list[Fault]]:
    """The columns as text, and the rows, from 0, that have another number of columns; blank lines are no rows."""
    wrong: list[Fault] = []

    def on_invalid(row: Any) -> str:
        wrong.append((row.number - 1, f"has {row.actual_columns} columns, want {row.expected_columns}"))
        return "skip"

    data = data if data.size else np.array([10], np.uint8)  # Arrow reads a blank line, but not nothing
    table = pacsv.read_csv(
        pa.BufferReader(pa.py_buffer(data)),
        read_options=pacsv.ReadOptions(column_names=names, use_threads=False, block_size=data.size + 1),
        parse_options=pacsv.ParseOptions(invalid_row_handler=on_invalid),
        convert_options=pacsv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, pa.string()),
            strings_can_be_null=True,
            null_values=[""],  # NA is missing where a number is wanted, and an id as any other
        ),
    )
    return table, wrong


def _readable_lines(data: np.ndarray) -> tuple[np.ndarray, list[Fault]]:
    """The data without the text of those lines that would spoil others: an open quote swallows the lines after it."""
    codes = np.zeros(int(np.count_nonzero(data == 10)) + 1, np.int8)
    _find_unreadable(data, codes)
    reasons = {line: _REASONS[codes[line]] for line in np.flatnonzero(codes).tolist()}
    content = data.tobytes()
    try:
        content.decode()
    except UnicodeDecodeError:
        reasons |= {i: "is not UTF-8 text" for i, line in enumerate(content.split(b"\n")) if not _is_text(line)}
    if not reasons:
        return data, []
    newlines = data == 10
    spoiled = np.isin(np.cumsum(newlines) - newlines, list(reasons))
    return data[newlines | ~spoiled], list(reasons.items())


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@njit(nogil=True, cache=True)
def _find_unreadable(data, codes):  # type: ignore[no-untyped-def]
    """codes[line] = 1 where a quoted field does not end on its line, 2 where a carriage return stands inside the line."""
    line, at_start, quoted = 0, True, False
    i = 0
    while i < data.size:
        byte = data[i]
        if byte == 10:
            codes[line] = 1 if quoted else codes[line]
            line, at_start, quoted = line + 1, True, False
        elif byte == 13 and i + 1 < data.size and data[i + 1] != 10:
            codes[line] = 2
        elif quoted and byte == 34:
            if i + 1 < data.size and data[i + 1] == 34:
                i += 1  # a doubled quote stands for one
            else:
                quoted = False
        elif not quoted:
            quoted = byte == 34 and at_start
            at_start = byte == 44
        i += 1
    codes[line] = 1 if quoted else codes[line]


def _line_numbers(data: np.ndarray) -> np.ndarray:
    """The numbers, in the chunk, of the lines that are not blank."""
    ends = np.append(np.flatnonzero(data == 10), data.size)
    starts = np.concatenate([[0], ends[:-1] + 1])
    blank = (ends == starts) | ((ends == starts + 1) & (np.append(data, 0)[starts] == 13))
    return np.flatnonzero(~blank)


@dataclass(frozen=True)
class ParquetSource:
    """A chunk is a block of rows; a row group without a block of the shard is not read. `pieces` are the rows of its groups: one is decoded from its first."""

    path: AnyPath
    layout: Layout
    to_rows: ToRows
    pieces: tuple[int, ...]
    owners: tuple[int | None, ...] = ()

    def owned(self, owners: tuple[int | None, ...]) -> "ParquetSource":
        """See `Pieced`."""
        return replace(self, owners=owners)

    @property
    def name(self) -> str:
        """The file."""
        return str(self.path)

    def num_examples(self) -> int:
        """Rows of the file, the malformed ones with them."""
        return int(_parquet_file(self.path).metadata.num_rows)

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        """See `Source`. Raises DataError for a file that cannot be read."""
        try:
            for number, row, batch in self._blocks(shard, num_shards, first):
                rows, faults = self.to_rows(pa.Table.from_batches([batch]), self.layout)
                where = [f"{self.path}: row {row + place + 1}: {reason}" for place, reason in faults]
                malformed.saw(rows.count + len(faults), len(faults), where.__getitem__)
                yield number, rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.path}: cannot be read: {' '.join(str(error).split())}") from error

    def place(self, *, number: int, row: int, num_shards: int) -> str:
        """The file, and the number of the row in it."""
        _, start, batch = next(self._blocks(number % num_shards, num_shards, number))
        _, faults = self.to_rows(pa.Table.from_batches([batch]), self.layout)
        good = np.delete(np.arange(batch.num_rows), [place for place, _ in faults])
        return f"{self.path}: row {start + int(good[row]) + 1}"

    def _blocks(self, shard: int, num_shards: int, first: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """The shard's blocks: number, place of the first row in the file, rows."""
        owners = self.owners or (None,) * len(self.pieces)
        if self.owners and not {shard, None} & set(owners):
            return
        file = _parquet_file(self.path)
        size = max(1, min(MAX_BLOCK_ROWS, file.metadata.num_rows // (num_shards * 8)))
        if _rows_of_groups(file) != self.pieces:
            raise OSError("its row groups are not those that it had when it was opened")
        if sum(self.pieces) != file.metadata.num_rows:
            raise OSError(f"its row groups have {sum(self.pieces):,} rows together, it says {file.metadata.num_rows:,}")
        number, row = 0, 0
        for group, (group_rows, owner) in enumerate(zip(self.pieces, owners, strict=True)):
            blocks = _numbers_of(-(-group_rows // size), number, owner, num_shards)
            mine = {n for n in blocks if n >= first and n % num_shards == shard}
            if mine:
                batches = file.iter_batches(size, row_groups=[group], columns=self.layout.columns, use_threads=False)
                for place, n in enumerate(blocks):
                    begin = place * size
                    batch = next(batches, None)
                    if batch is None or batch.num_rows != min(size, group_rows - begin):
                        raise OSError(f"row group {group + 1} has not the {group_rows:,} rows that the file says")
                    if n in mine:
                        yield n, row + begin, batch
            number, row = blocks[-1] + 1 if blocks else number, row + group_rows


def _numbers_of(count: int, first: int, owner: int | None, num_shards: int) -> range:
    """The numbers of a row group's blocks, from `first` on; where one shard owns it, those of that shard."""
    if owner is None:
        return range(first, first + count)
    begin = first + (owner - first) % num_shards
    return range(begin, begin + count * num_shards, num_shards)


def _rows_of_groups(file: pq.ParquetFile) -> tuple[int, ...]:
    return tuple(int(file.metadata.row_group(group).num_rows) for group in range(file.num_row_groups))


def open_parquet(path: AnyPath, described: Described) -> Dataset:
    """A Parquet file. Raises DataError when it is none, or a column of the schema is not in it or of another type."""
    try:
        file = _parquet_file(path)
        check_fields(path, file.schema_arrow, described.layout)
        groups = _rows_of_groups(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # of a name that is no text
        raise DataError(f"{path}: not a Parquet file: {' '.join(str(error).split())}") from error
    layout = described.layout
    return Dataset(ParquetSource(path, layout, described.to_rows, groups), layout.schema, is_timed=bool(layout.time))


def _parquet_file(path: AnyPath) -> pq.ParquetFile:
    """The open file, whose pages are held against their checksums where it has some. Of an address those parts of a row group are asked for together that lie
    together.
    """
    if isinstance(path, Address):
        return pq.ParquetFile(path.open(buffering=0), pre_buffer=True, page_checksum_verification=True)
    return pq.ParquetFile(path, page_checksum_verification=True)


def first_of_csv(path: AnyPath, rows: int) -> FirstRows:
    """About the first `rows` rows of a CSV file, whose columns are text. Raises DataError for a file without a line of names, or that cannot be read."""
    with readable(path), open_text(path) as file:
        names = _column_names(path, read_line(file, path))
        for name in names:
            require_one(path, name, names)
        parts: list[bytes] = []
        while sum(part.count(b"\n") for part in parts) < rows and (part := read_lines(file, _HEAD_BYTES, path)):
            parts.append(part)
        is_all = not file.read(1)
    data, _ = _readable_lines(np.frombuffer(b"".join(parts), np.uint8))
    table, _ = _csv_table(data, names, names)
    return FirstRows(table.slice(0, rows), is_all and table.num_rows <= rows, {})


def first_of_parquet(path: AnyPath, rows: int) -> FirstRows:
    """The first `rows` rows of a Parquet file. Raises DataError for what is none."""
    try:
        file = _parquet_file(path)
        batches, count = [], 0
        for batch in file.iter_batches(min(rows, 65536), use_threads=False):
            batches.append(batch)
            count += batch.num_rows
            if count >= rows:
                break
        table = pa.Table.from_batches(batches, file.schema_arrow).slice(0, rows)
        return FirstRows(table, file.metadata.num_rows <= rows, _largest(file))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a Parquet file: {' '.join(str(error).split())}") from error


def _largest(file: pq.ParquetFile) -> dict[str, int]:
    """The largest number of each column of whole numbers, where all row groups say it."""
    found: dict[str, int] = {}
    groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
    for place in range(file.metadata.num_columns if groups else 0):
        columns = [group.column(place) for group in groups]
        told = [each.statistics.max for each in columns if each.is_stats_set and each.statistics.has_min_max]
        numbers = [value for value in told if type(value) is int]
        if len(numbers) == len(columns) and "." not in columns[0].path_in_schema:
            found[columns[0].path_in_schema] = max(numbers)
    return found


FORMATS = (
    Format("csv", open_csv, ("schema",), is_described=True, is_text=True, first_rows=first_of_csv),
    Format("parquet", open_parquet, ("schema",), is_described=True, is_pieced=True, first_rows=first_of_parquet),
)

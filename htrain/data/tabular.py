"""CSV and Parquet through pyarrow, with a YAML schema that says which columns are what.

    label: click
    inputs:
      dense:   {kind: dense, columns: [I1, I2], transform: log1p}   # transform: none (default) or log1p
      sparse:  {kind: ids, columns: [C1, C2], rows: [1000, 5000]}     # whole numbers modulo rows; text is hashed
      history: {kind: padded, column: items, length: 50, rows: 100000}
      tags:    {kind: bag, column: tags, rows: 1000, width: 5}         # width: the mean length

Lists are list columns in Parquet, and ids separated by spaces or | in CSV. A missing id is row 0, a missing number 0. Fields of a CSV
file hold no line breaks: the file is read in chunks of whole lines.
"""

import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import yaml

from htrain.data.malformed import Malformed
from htrain.data.reader import Dataset
from htrain.data.rows import Rows
from htrain.data.schema import Input, Schema
from htrain.data.text import Fault, TextSource, open_text
from htrain.errors import DataError

_BLOCK_ROWS = 8192


class _Column(msgspec.Struct, forbid_unknown_fields=True):
    """One input of the schema file."""

    kind: Literal["dense", "ids", "padded", "bag"]
    columns: list[str] = []
    column: str = ""
    rows: int | list[int] = 0
    length: int = 0
    width: int = 1
    transform: Literal["none", "log1p"] = "none"


class _File(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    inputs: dict[str, _Column]


@dataclass(frozen=True)
class Layout:
    """A schema and where its parts come from."""

    schema: Schema
    label: str
    logarithmic: frozenset[str] = field(default_factory=frozenset)

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys([self.label, *(c for i in self.schema.inputs for c in i.columns)]))


def load_layout(path: Path) -> Layout:
    """The layout of a schema file. Raises DataError naming file and field."""
    try:
        file = msgspec.convert(yaml.safe_load(path.read_text()), _File)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror} (schema file)") from error
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise DataError(f"{path}: not a schema: {' '.join(str(error).split())}") from error
    inputs = tuple(_input(path, name, column) for name, column in file.inputs.items())
    if not inputs:
        raise DataError(f"{path}: inputs: want at least one")
    return Layout(Schema(inputs), file.label, frozenset(n for n, c in file.inputs.items() if c.transform == "log1p"))


def _input(path: Path, name: str, column: _Column) -> Input:
    columns = tuple(column.columns or ([column.column] if column.column else []))
    rows = (
        tuple(column.rows)
        if isinstance(column.rows, list)
        else (column.rows,) * (len(columns) if column.kind == "ids" else 1)
    )
    where = f"{path}: inputs.{name}"
    if not columns or (column.kind in ("padded", "bag") and len(columns) != 1):
        raise DataError(f"{where}: name its columns: `columns: [A, B]`, or `column: A` for a {column.kind} input")
    if column.kind == "dense":
        return Input(name, "dense", len(columns), columns)
    wanted = len(columns) if column.kind == "ids" else 1
    if len(rows) != wanted or min(rows) < 1:
        raise DataError(f"{where}: rows: want {wanted} whole numbers above 0, one per table")
    if column.kind == "padded" and column.length < 1:
        raise DataError(f"{where}: length: want the number of ids that a padded list has room for")
    width = {"ids": len(columns), "padded": column.length, "bag": max(1, column.width)}[column.kind]
    return Input(name, column.kind, width, columns, rows, columns)


def open_csv(path: Path, schema_path: Path) -> Dataset:
    """A CSV file with a header line. Raises DataError when a column of the schema is not in it."""
    layout = load_layout(schema_path)
    with open_text(path) as file:
        header = file.readline()
    names = pacsv.read_csv(io.BytesIO(header)).column_names
    _check_columns(path, layout, names)
    return Dataset(TextSource(path, partial(parse_csv, names=tuple(names), layout=layout), len(header)), layout.schema)


def _check_columns(path: Path, layout: Layout, names: Sequence[str]) -> None:
    missing = [c for c in layout.columns if c not in names]
    if missing:
        raise DataError(f"{path}: no column '{missing[0]}'; it has {', '.join(names[:40])}")


def parse_csv(data: np.ndarray, names: tuple[str, ...], layout: Layout) -> tuple[Rows, Sequence[Fault]]:
    """Parse whole lines into the layout's inputs and `label`."""
    faults: list[Fault] = []
    lines = _line_numbers(data)

    def on_invalid(row: Any) -> str:
        faults.append((len(faults), f"has {row.actual_columns} columns, want {row.expected_columns}"))
        invalid.append(row.text)
        return "skip"

    invalid: list[str] = []
    table = pacsv.read_csv(
        pa.BufferReader(pa.py_buffer(data)),
        read_options=pacsv.ReadOptions(column_names=names, use_threads=False, block_size=max(data.size, 1) + 1),
        parse_options=pacsv.ParseOptions(invalid_row_handler=on_invalid),
        convert_options=pacsv.ConvertOptions(
            include_columns=layout.columns,
            column_types={c: pa.string() for c in layout.columns},
            strings_can_be_null=True,
        ),
    )
    bad_lines = _lines_of(data, lines, invalid)
    good_lines = np.setdiff1d(lines, np.asarray(bad_lines, np.int64))
    rows, wrong = table_rows(table, layout)
    found = [(line, reason) for line, (_, reason) in zip(bad_lines, faults, strict=True)]
    return rows, found + [(int(good_lines[row]), reason) for row, reason in wrong]


def _line_numbers(data: np.ndarray) -> np.ndarray:
    """The numbers, in the chunk, of the lines that are not empty."""
    ends = np.flatnonzero(data == 10)
    ends = np.append(ends, data.size) if not ends.size or ends[-1] != data.size - 1 else ends
    starts = np.concatenate([[0], ends[:-1] + 1])
    return np.flatnonzero(ends - starts > 0)


def _lines_of(data: np.ndarray, lines: np.ndarray, texts: Sequence[str]) -> list[int]:
    """Where lines with these texts stand, in order."""
    if not texts:
        return []
    content = data.tobytes().split(b"\n")
    found: list[int] = []
    position = 0
    for text in texts:
        wanted = text.encode().rstrip(b"\r\n")
        while position < len(content) and content[position].rstrip(b"\r") != wanted:
            position += 1
        found.append(position)
        position += 1
    return found


def table_rows(table: pa.Table, layout: Layout) -> tuple[Rows, list[Fault]]:
    """An Arrow table as rows; rows with a value that cannot be read are left out and reported by their place in the table."""
    bad = np.zeros(table.num_rows, bool)
    reasons: dict[int, str] = {}
    label = _numbers(table[layout.label], layout.label, bad, reasons, missing_is_fault=True)
    fixed: dict[str, np.ndarray] = {"label": np.where(label == -1, 0, label).astype(np.float32)}
    lists: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for item in layout.schema.inputs:
        if item.kind == "dense":
            values = np.stack([_numbers(table[c], c, bad, reasons, missing_is_fault=False) for c in item.columns], 1)
            fixed[item.name] = (np.log1p(np.maximum(values, 0)) if item.name in layout.logarithmic else values).astype(
                np.float32
            )
        elif item.kind == "ids":
            fixed[item.name] = np.stack([_ids(table[c], r) for c, r in zip(item.columns, item.rows, strict=True)], 1)
        else:
            values, starts = _lists(table[item.columns[0]], item.rows[0])
            if item.kind == "bag":
                lists[item.name] = (values, starts)
            else:
                fixed[item.name], fixed[item.name + "_length"] = _padded(values, starts, item.width)
    rows = Rows(table.num_rows, fixed, lists)
    if not bad.any():
        return rows, []
    return _only(rows, ~bad), [(row, reasons[row]) for row in np.flatnonzero(bad).tolist()]


def _only(rows: Rows, keep: np.ndarray) -> Rows:
    fixed = {name: values[keep] for name, values in rows.fixed.items()}
    lists = {}
    for name, (values, starts) in rows.lists.items():
        counts = np.diff(starts)
        lists[name] = (
            values[np.repeat(keep, counts)],
            np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[keep])]),
        )
    return Rows(int(keep.sum()), fixed, lists)


def _numbers(
    column: pa.ChunkedArray, name: str, bad: np.ndarray, reasons: dict[int, str], *, missing_is_fault: bool
) -> np.ndarray:
    """float64[n]; missing is 0. Marks in `bad` the rows whose text is no number."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        empty = pc.or_kleene(pc.is_null(column), pc.equal(column, ""))
        valid = pc.fill_null(
            pc.match_substring_regex(column, r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"), False
        )
        wrong = (
            pc.and_(pc.invert(valid), pc.invert(pc.fill_null(empty, True))).to_numpy(zero_copy_only=False)
            if column.num_chunks
            else np.zeros(0, bool)
        )
        column = pc.if_else(valid, column, None).cast(pa.float64())
    else:
        wrong = np.zeros(len(column), bool)
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.num_chunks else np.zeros(0, bool)
    for row in np.flatnonzero(wrong | (missing & missing_is_fault)).tolist():
        bad[row] = True
        reasons.setdefault(row, f"column '{name}' is {'not a number' if wrong[row] else 'missing'}")
    return pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy() if column.num_chunks else np.zeros(0)


def _ids(column: pa.ChunkedArray, rows: int) -> np.ndarray:
    """int64[n] below `rows`: whole numbers modulo rows, other text by its CRC-32 modulo rows, missing 0."""
    if pa.types.is_integer(column.type):
        return np.mod(pc.fill_null(column, 0).to_numpy().astype(np.int64), rows)
    encoded = pc.fill_null(column.cast(pa.string()), "").combine_chunks().dictionary_encode()
    words = [_id_of(word, rows) for word in encoded.dictionary.to_pylist()]  # once per distinct value, not per row
    return np.asarray(words, np.int64)[encoded.indices.to_numpy()] if words else np.zeros(0, np.int64)


def _id_of(word: str, rows: int) -> int:
    if not word:
        return 0
    return int(word) % rows if word.lstrip("-").isdigit() else zlib.crc32(word.encode()) % rows


def _lists(column: pa.ChunkedArray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and the starts[n+1] of each row's part."""
    if pa.types.is_string(column.type):
        column = pc.split_pattern_regex(pc.utf8_trim(pc.fill_null(column, ""), " |"), r"[ |]+")
    array = column.combine_chunks()
    counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pa.chunked_array([pc.list_flatten(array)])
    if pa.types.is_string(flat.type):  # the text "" splits into one empty word, which is no id
        empty = pc.equal(flat, "").to_numpy(zero_copy_only=False)
        owner = np.repeat(np.arange(counts.size), counts)
        counts = counts - np.bincount(owner[empty], minlength=counts.size)
        flat = flat.filter(pa.array(~empty))
    return _ids(flat, rows), np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def _padded(values: np.ndarray, starts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """ids[n,width], 0 after each list's end (lists longer than that are cut), and their lengths[n]."""
    lengths = np.minimum(np.diff(starts), width)
    place = np.arange(width)[None, :]
    filled = place < lengths[:, None]
    padded = np.zeros(filled.shape, np.int64)
    padded[filled] = values[(starts[:-1, None] + place)[filled]]
    return padded, lengths.astype(np.int64)


@dataclass(frozen=True)
class ParquetSource:
    """A chunk is a block of rows."""

    path: Path
    layout: Layout

    @property
    def name(self) -> str:
        return str(self.path)

    def num_examples(self) -> int:
        return int(pq.ParquetFile(self.path).metadata.num_rows)

    def chunks(self, *, shard: int, num_shards: int, first: int, malformed: Malformed) -> Iterator[tuple[int, Rows]]:
        try:
            batches = pq.ParquetFile(self.path).iter_batches(
                _BLOCK_ROWS, columns=self.layout.columns, use_threads=False
            )
            for number, batch in enumerate(batches):
                if number < first or number % num_shards != shard:
                    continue
                rows, faults = table_rows(pa.Table.from_batches([batch]), self.layout)
                malformed.saw(
                    rows.count + len(faults),
                    [f"{self.path}: row {number * _BLOCK_ROWS + row + 1}: {reason}" for row, reason in faults],
                )
                yield number, rows
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: cannot be read: {' '.join(str(error).split())}") from error


def open_parquet(path: Path, schema_path: Path) -> Dataset:
    """A Parquet file. Raises DataError when it is none, or a column of the schema is not in it."""
    layout = load_layout(schema_path)
    try:
        names = pq.ParquetFile(path).schema_arrow.names
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file: {' '.join(str(error).split())}") from error
    _check_columns(path, layout, names)
    return Dataset(ParquetSource(path, layout), layout.schema)

"""libFM and libSVM: `label id:value id:value ...`."""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from htrain.data.format import Format, UriOptions, count_of
from htrain.data.prefix import TextPath
from htrain.data.reader import Dataset
from htrain.data.rows import Array, Rows
from htrain.data.schema import Input, Schema
from htrain.data.text import MAX_CHUNK_BYTES, Fault, TextSource, open_text, read_lines
from htrain.errors import DataError
from htrain.jit import njit

_REASONS = (
    "",
    "the label is not a number",
    "is not 'label id:value ...' at column {}",
    "id {} is outside the table's rows",
    "has {} fields, want {}",
)


@dataclass(frozen=True)
class Scanned:
    """What a scan of a file found: the largest id, the number of fields of every row (0 when rows differ), whether all values are 1."""

    max_id: int
    width: int
    ones: bool
    rows: int
    mean_width: int


def scan(path: TextPath) -> Scanned:
    """Read the whole file once. Raises DataError for an empty file, or one without a good row.

    A last line without an end says nothing of the width where there are others: it may be one that is being written (htrain.data.last_line).
    """
    max_id, widths, ones, count, total = 0, list[int](), True, 0, 0
    num_lines, first, last = 0, "", list[int]()
    with open_text(path, ahead_bytes=MAX_CHUNK_BYTES) as file:
        while data := read_lines(file, MAX_CHUNK_BYTES, path):
            _, ids, values, starts, lines, faults = _arrays(np.frombuffer(data, np.uint8), np.iinfo(np.int64).max)
            if faults and not first:
                first = f"{path}:{num_lines + faults[0][0] + 1}: {faults[0][1]} (no row of the file can be read)"
            ends = data.count(b"\n")
            num_lines += ends
            max_id = max(max_id, int(ids.max(initial=0)))
            widths = np.unique([*widths, *np.diff(starts)[lines < ends]]).tolist()
            last = np.diff(starts)[lines >= ends].tolist()
            ones = ones and bool((values == 1).all())
            count += starts.size - 1
            total += ids.size
    if not count:
        raise DataError(first or f"{path}: holds no rows")
    widths = widths or last
    return Scanned(max_id, widths[0] if len(widths) == 1 else 0, ones, count, max(1, round(total / count)))


def schema_of(scanned: Scanned, rows: int, *, has_values: bool) -> Schema:
    """`sparse`: ids of one shared table `ids`, as a matrix or, for rows of different lengths, a bag, which has no room for values;
    and where a matrix `has_values`, these as `values`.
    """
    if not scanned.width:
        return Schema((Input("sparse", "bag", scanned.mean_width, columns=("sparse",), rows=(rows,), tables=("ids",)),))
    names = tuple(f"F{c + 1}" for c in range(scanned.width))
    sparse = Input(
        "sparse", "ids", scanned.width, columns=names, rows=(rows,) * scanned.width, tables=("ids",) * scanned.width
    )
    return Schema((sparse,) if not has_values else (Input("values", "dense", scanned.width, names), sparse))


def parse_libsvm(data: np.ndarray, schema: Schema) -> tuple[Rows, Sequence[Fault]]:
    """Parse whole lines, uint8[n], into the schema's inputs and `label`: float32[rows]. A line that cannot be read is a
    fault.
    """
    sparse = schema.input("sparse")
    label, ids, values, starts, lines, faults = _arrays(data, sparse.rows[0])
    if sparse.kind == "bag":
        return Rows(label.size, {"label": label}, {"sparse": (ids, starts)}), faults
    right = np.diff(starts) == sparse.width
    if not right.all():
        widths = np.diff(starts)
        faults += [(int(lines[i]), _REASONS[4].format(widths[i], sparse.width)) for i in np.flatnonzero(~right)]
        keep = np.repeat(right, np.diff(starts))
        label, ids, values = label[right], ids[keep], values[keep]
    fixed = {"label": label, "sparse": ids.reshape(-1, sparse.width)}
    if "values" in schema.names:
        fixed["values"] = values.reshape(-1, sparse.width)
    return Rows(label.size, fixed, {}), sorted(faults)


def _arrays(data: np.ndarray, rows: int) -> tuple[Array, Array, Array, Array, Array, list[Fault]]:
    """Labels, ids, values, starts[n+1] of each row among them, the line of each row, and the faults."""
    num_lines, pairs = int(np.count_nonzero(data == 10)) + 1, int(np.count_nonzero(data == 58))
    label, starts = np.empty(num_lines, np.float32), np.zeros(num_lines + 1, np.int64)
    ids, values = np.empty(pairs, np.int64), np.empty(pairs, np.float32)
    lines, faults = np.empty(num_lines, np.int64), np.empty((num_lines, 3), np.int64)
    count, bad = _parse(data, rows, label=label, ids=ids, values=values, starts=starts, lines=lines, faults=faults)
    used = starts[count]
    found = [(int(line), _REASONS[code].format(what)) for line, code, what in faults[:bad]]
    return label[:count], ids[:used], values[:used], starts[: count + 1], lines[:count], found


@njit(nogil=True, cache=True)
def _number(data, i):  # type: ignore[no-untyped-def]
    """A decimal number at i: its value, where it ends (i itself when there is none)."""
    begin, sign, value, digits = i, 1.0, 0.0, 0
    if i < data.size and (data[i] == 45 or data[i] == 43):
        sign = -1.0 if data[i] == 45 else 1.0
        i += 1
    while i < data.size and data[i] >= 48 and data[i] <= 57:
        value = value * 10.0 + (data[i] - 48)
        digits += 1
        i += 1
    if i < data.size and data[i] == 46:
        i += 1
        scale = 0.1
        while i < data.size and data[i] >= 48 and data[i] <= 57:
            value += scale * (data[i] - 48)
            scale *= 0.1
            digits += 1
            i += 1
    if not digits:
        return 0.0, begin
    if i < data.size and (data[i] == 101 or data[i] == 69):
        j = i + 1
        minus = j < data.size and data[j] == 45
        if j < data.size and (data[j] == 45 or data[j] == 43):
            j += 1
        exponent, seen = 0, False
        while j < data.size and data[j] >= 48 and data[j] <= 57:
            exponent = min(exponent * 10 + (data[j] - 48), 400)
            seen = True
            j += 1
        if seen:
            value *= 10.0 ** (-exponent if minus else exponent)
            i = j
    return sign * value, i


@njit(nogil=True, cache=True)
def _at_gap(data, i):  # type: ignore[no-untyped-def]
    """Whether a word ends before i."""
    return i >= data.size or data[i] == 32 or data[i] == 9 or data[i] == 10 or data[i] == 13


@njit(nogil=True, cache=True)
def _parse(data, rows, label, ids, values, starts, lines, faults):  # type: ignore[no-untyped-def]
    """Good rows are packed at the front of the outputs. Returns good and bad rows."""
    count, bad, used, line, i = 0, 0, 0, 0, 0
    while i < data.size:
        begin, code, what, here = i, 0, 0, used
        while i < data.size and (data[i] == 32 or data[i] == 9 or data[i] == 13):
            i += 1
        blank, word = i >= data.size or data[i] == 10, i
        number, i = _number(data, i)
        if i == word or not np.isfinite(np.float32(number)) or not _at_gap(data, i):
            code = 1
        while code == 0 and i < data.size and data[i] != 10:
            if data[i] == 32 or data[i] == 9 or data[i] == 13:
                i += 1
                continue
            id_number, end = _number(data, i)
            ok = end > i and end < data.size and data[end] == 58 and id_number == np.floor(id_number)
            value, after = _number(data, end + 1) if ok else (0.0, end + 1)
            if not ok or after == end + 1 or not np.isfinite(np.float32(value)) or not _at_gap(data, after):
                code, what = 2, i - begin + 1
                break
            if id_number < 0 or id_number >= rows:
                code, what = 3, np.int64(id_number)
                break
            ids[here] = np.int64(id_number)
            values[here] = value
            here += 1
            i = after
        while i < data.size and data[i] != 10:
            i += 1
        if not blank and code:
            faults[bad, 0], faults[bad, 1], faults[bad, 2] = line, code, what
            bad += 1
        elif not blank:
            label[count] = number
            lines[count] = line
            used = here
            count += 1
            starts[count] = used
        line += 1
        i += 1
    return count, bad


def open_libsvm(path: TextPath, values: UriOptions) -> Dataset:
    """A file, `rows` of its table: as its largest id wants where nothing is said. With `values=none`, values count as 1.

    Raises DataError for values that the inputs have no room for.
    """
    scanned = scan(path)
    if values.get("values", "none") != "none":
        raise DataError(f"option values={values['values']}: want none, which leaves values out, or no such option")
    has_values = not scanned.ones and "values" not in values
    if has_values and not scanned.width:
        raise DataError(
            f"{path}: has values other than 1 in rows of different numbers of fields, which are a bag of ids without values: leave them out by "
            "?values=none, or write the data as CSV or Parquet"
        )
    schema = schema_of(scanned, count_of(values, "rows", scanned.max_id + 1), has_values=has_values)
    source = TextSource(path, partial(parse_libsvm, schema=schema))
    return Dataset(source, schema, ids_are_counted="rows" not in values)


FORMATS = (
    Format("libfm", open_libsvm, ("rows", "values"), is_text=True),
    Format("libsvm", open_libsvm, ("rows", "values"), is_text=True),
)

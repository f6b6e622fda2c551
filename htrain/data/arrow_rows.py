"""An Arrow table to rows, as a layout says: numbers, ids, lists of ids.

A missing number is 0 unless the layout says another, a missing id is row 0. An id is a whole number modulo the rows of its table; other text is hashed first.
Where the layout has a vocabulary, an id is the row that a value has there (htrain.data.vocabulary).
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from htrain.data.layout import Layout, TimeColumn
from htrain.data.rows import Rows
from htrain.data.schema import Input
from htrain.data.text import Fault
from htrain.data.times import Moments, instants_of, parts_of
from htrain.data.values import digits, lists_of, lost_digits, missing_words, plain
from htrain.data.vocabulary import Vocabulary
from htrain.jit import njit

ToRows = Callable[[pa.Table, Layout], tuple[Rows, list[Fault]]]
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def table_rows(table: pa.Table, layout: Layout) -> tuple[Rows, list[Fault]]:
    """The rows of a table; those with a value that cannot be read are left out and reported by their place in the table."""
    reasons: dict[int, str] = {}
    label = _numbers(table, layout.label, reasons)
    for row in np.flatnonzero(np.isnan(label)).tolist():
        reasons.setdefault(row, f"column '{layout.label}' is missing")
    fixed: dict[str, np.ndarray] = {"label": label.astype(np.float32)}
    lists: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for item in layout.schema.inputs:
        if item.kind == "dense":
            fixed[item.name] = _dense(table, item, layout, reasons)
        elif item.name in layout.moments:
            fixed[item.name] = _parts(table, layout.moments[item.name], reasons)
        elif item.kind == "ids":
            fixed[item.name] = _ids(table, item, layout, reasons)
        else:
            flat, counts = lists_of(column_of(table, item.columns[0]))
            _note_lost_digits(item.columns[0], flat, np.cumsum(counts), reasons)
            vocabulary = layout.vocabularies.get((item.name, item.columns[0]))
            ids = ids_of(flat, item.rows[0], vocabulary), _starts(counts)
            if item.kind == "bag":
                lists[item.name] = ids
            else:
                fixed[item.name], fixed[item.name + "_length"] = _padded(*ids, item.width)
    times = _times(table, layout.time, reasons) if layout.time else None
    rows = Rows(table.num_rows, fixed, lists, times)
    if not reasons:
        return rows, []
    keep = np.ones(table.num_rows, bool)
    keep[list(reasons)] = False
    return _only(rows, keep), sorted(reasons.items())


def _dense(table: pa.Table, item: Input, layout: Layout, reasons: dict[int, str]) -> np.ndarray:
    """float32[n,width]: the columns' numbers, and behind them, where that is wanted, 1 for each that is missing."""
    values = np.stack([_numbers(table, column, reasons) for column in layout.sources(item)], 1)
    missing = np.isnan(values)
    values = np.where(missing, np.asarray(layout.fills.get(item.name, (0.0,))), values)
    values = np.log1p(np.maximum(values, 0)) if item.name in layout.logarithmic else values
    return (np.concatenate([values, missing], 1) if item.name in layout.indicated else values).astype(np.float32)


def _ids(table: pa.Table, item: Input, layout: Layout, reasons: dict[int, str]) -> np.ndarray:
    """int64[n,columns]. Notes the rows of which an id is not known."""
    each = []
    for column, rows in zip(item.columns, item.rows, strict=True):
        array = column_of(table, column)
        _note_lost_digits(column, array, np.arange(1, len(array) + 1), reasons)
        each.append(ids_of(array, rows, layout.vocabularies.get((item.name, column))))
    return np.stack(each, 1)


def _note_lost_digits(column: str, array: pa.Array, ends: np.ndarray, reasons: dict[int, str]) -> None:
    """Note the rows of ids that are floats too large to say which id they are; row i has those before ends[i], from ends[i - 1] on."""
    for place in np.flatnonzero(lost_digits(array)).tolist():
        reasons.setdefault(
            int(np.searchsorted(ends, place, side="right")),
            f"column '{column}' has {array[place].as_py():.0f} as a float, which does not hold all digits of an id: give whole "
            "numbers, such as Int64 of pandas where some are missing, or text",
        )


def _parts(table: pa.Table, moments: Moments, reasons: dict[int, str]) -> np.ndarray:
    """int64[n,parts]. Notes the rows that hold something else than a moment."""
    values, wrong = parts_of(column_of(table, moments.column), moments)
    for row in np.flatnonzero(wrong).tolist():
        reasons.setdefault(row, f"column '{moments.column}' is not a time")
    return values


def _times(table: pa.Table, time: TimeColumn, reasons: dict[int, str]) -> np.ndarray:
    """int64[n], microseconds since the epoch. Notes the rows that have none."""
    times, missing, wrong = instants_of(column_of(table, time.column), time.unit)
    for row in np.flatnonzero(missing | wrong).tolist():
        reasons.setdefault(row, f"column '{time.column}' is {'missing' if missing[row] else 'not a time'}")
    return times


def column_of(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece, in a type that is computed with."""
    return plain(table[name].combine_chunks())


def _only(rows: Rows, keep: np.ndarray) -> Rows:
    fixed = {name: values[keep] for name, values in rows.fixed.items()}
    lists = {}
    for name, (values, starts) in rows.lists.items():
        counts = np.diff(starts)
        lists[name] = (values[np.repeat(keep, counts)], _starts(counts[keep]))
    return Rows(int(keep.sum()), fixed, lists, None if rows.times is None else rows.times[keep])


def _starts(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _numbers(table: pa.Table, name: str, reasons: dict[int, str]) -> np.ndarray:
    """float64[n], nan where missing. Notes the rows that hold something else than a finite float32."""
    array = column_of(table, name)
    wrong = np.zeros(len(array), bool)
    if pa.types.is_string(array.type):
        array = pc.utf8_trim_whitespace(array)
        valid = pc.match_substring_regex(array, _NUMBER)
        wrong = pc.fill_null(pc.invert(valid), False).to_numpy(zero_copy_only=False)
        if wrong.any():
            wrong = wrong & ~pc.is_in(array, value_set=missing_words()).to_numpy(zero_copy_only=False)
        array = pc.if_else(valid, array, None)
    # Whole numbers from 2^53 on are rounded, as those of text are.
    values = pc.fill_null(array.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # the largest float32, as text, is a little more as a float64
        wrong = wrong | np.isinf(values.astype(np.float32))
    for row in np.flatnonzero(wrong).tolist():
        reasons.setdefault(row, f"column '{name}' is not a number")
    return np.where(wrong, 0, values)


def ids_of(array: pa.Array, rows: int, vocabulary: Vocabulary | None = None) -> np.ndarray:
    """int64[n]: ids modulo `rows`, of whole numbers or text, or those of a vocabulary; 0 where one is missing."""
    if vocabulary:
        return vocabulary.ids(array)
    kind = array.type
    if pa.types.is_integer(kind):
        values = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
        return np.mod(values, np.asarray(rows, values.dtype if values.dtype == np.uint64 else np.int64)).astype(
            np.int64
        )
    if pa.types.is_floating(kind):  # whole numbers with missing ones among them come as floats
        array = pc.coalesce(digits(array), pc.if_else(pc.is_finite(array), array, None).cast(pa.string()))
    text = pc.fill_null(array.cast(pa.string()), "")
    _, offsets, data = text.buffers()
    starts = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1]
    return _text_ids(starts, np.frombuffer(data or b"", np.uint8), rows) if len(text) else np.zeros(0, np.int64)


@njit(nogil=True, cache=True)
def _text_ids(starts, data, rows):  # type: ignore[no-untyped-def]
    """Words data[starts[i]:starts[i+1]]: the digits of what an integer of 64 bits holds, signed or not, as that number, others
    by FNV-1a (64 bits); modulo rows.
    """
    ids, modulus, ten = np.zeros(starts.size - 1, np.int64), np.uint64(rows), np.uint64(10)
    for i in range(ids.size):
        begin, end = starts[i], starts[i + 1]
        first = begin + 1 if begin < end and data[begin] == 45 else begin
        most = np.uint64(0xFFFFFFFFFFFFFFFF if first == begin else 1 << 63)
        whole = 0 < end - first <= 20
        number, word = np.uint64(0), np.uint64(0xCBF29CE484222325)
        for j in range(begin, end):
            word = (word ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
            if j >= first and whole:
                digit = np.uint64(data[j]) - np.uint64(48)  # what stands before 0 becomes large
                whole = digit < ten and (j - first < 18 or number <= (most - digit) // ten)
                number = number * ten + digit
        if whole:
            rest = number % modulus
            ids[i] = np.int64(rest if first == begin or rest == 0 else modulus - rest)
        elif end > begin:
            ids[i] = np.int64(word % modulus)
    return ids


def _padded(values: np.ndarray, starts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """ids[n,width], 0 after each list's end (lists longer than that are cut), and their lengths[n]."""
    lengths = np.minimum(np.diff(starts), width)
    place = np.arange(width)[None, :]
    filled = place < lengths[:, None]
    padded = np.zeros(filled.shape, np.int64)
    padded[filled] = values[(starts[:-1, None] + place)[filled]]
    return padded, lengths.astype(np.int64)

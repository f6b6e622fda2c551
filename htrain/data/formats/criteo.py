"""Criteo TSV: a label, 13 counts, 26 categories as hexadecimal numbers; a missing value is empty.

A count x becomes log1p(max(x, 0)), missing 0. A category becomes its number modulo the rows of its table, missing 0.

Lines as they mostly are, with counts and categories of at most 8 digits, are read by words of eight bytes. What that
does not expect, it leaves to a loop over bytes, which alone says what is right and what is wrong with a line.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

from collections.abc import Sequence
from functools import cache, partial

import numpy as np

from htrain.data.format import Format, UriOptions, count_of
from htrain.data.prefix import TextPath
from htrain.data.reader import Dataset
from htrain.data.rows import Rows
from htrain.data.schema import Schema, click_schema
from htrain.data.text import Fault, TextSource
from htrain.data.words import (
    NEWLINES,
    RETURNS,
    TABS,
    Word,
    bytes_before,
    decimal_value,
    flush_right,
    hexadecimal_value,
    places,
    word_at,
)
from htrain.jit import njit

NUM_DENSE, NUM_SPARSE = 13, 26
_REASONS = (
    "",
    "the label is not a whole number",
    "column {} is not a whole number",
    "column {} is not a hexadecimal number of at most 16 digits",
    "has {} columns, want 40",
)
_TAB, _NEWLINE, _RETURN, _MINUS = 9, 10, 13, 45
_MINUS_TO_ZERO = Word(_MINUS ^ 48)
_NUM_LOGS = 4096  # most counts are smaller; the table stays in a core's nearest cache
_0, _1, _2 = Word(0), Word(1), Word(2)
_FIELD_BYTES = Word(10)  # a field that is read by a word, and the end of a line behind it


def parse_criteo(data: np.ndarray, rows_per_field: int) -> tuple[Rows, Sequence[Fault]]:
    """Parse whole lines. Rows hold `dense`: float32[n,13], `sparse`: int64[n,26], `label`: float32[n]."""
    lines = _count_newlines(data) + 1
    label = np.empty(lines, np.float32)
    dense = np.empty((lines, NUM_DENSE), np.float32)
    sparse = np.empty((lines, NUM_SPARSE), np.int64)
    faults = np.empty((lines, 3), np.int64)
    count, bad = _parse(data, rows_per_field, logs=_logs(), label=label, dense=dense, sparse=sparse, faults=faults)
    rows = Rows(count, {"dense": dense[:count], "sparse": sparse[:count], "label": label[:count]}, {})
    return rows, [(int(line), _REASONS[code].format(column)) for line, code, column in faults[:bad]]


@cache
def _logs() -> np.ndarray:
    """log1p of 0 .. _NUM_LOGS - 1, by the function that is used for larger numbers: a number has one logarithm,
    whichever way it is read.
    """
    logs = np.empty(_NUM_LOGS, np.float32)
    _fill_logs(logs)
    return logs


@njit(nogil=True, cache=True)
def _fill_logs(logs):  # type: ignore[no-untyped-def]
    for count in range(logs.size):
        logs[count] = np.log1p(np.float64(count))


@njit(nogil=True, cache=True)
def _count_newlines(data):  # type: ignore[no-untyped-def]
    count = 0
    for byte in data:
        count += byte == _NEWLINE
    return count


@njit(nogil=True, cache=True)
def _parse(data, modulus, logs, label, dense, sparse, faults):  # type: ignore[no-untyped-def]
    """Good rows are packed at the front of the outputs. Returns good and bad rows."""
    count, bad, line, i = 0, 0, 0, 0
    while i < data.size:
        end = _usual_line(
            data,
            Word(i),
            modulus=Word(modulus),
            logs=logs,
            label=label[count:],
            dense=dense[count],
            sparse=sparse[count],
        )
        if end:
            i = np.int64(end)
            count += 1
        else:
            start = i
            code, column, i = _any_line(
                data, i, modulus=Word(modulus), label=label[count:], dense=dense[count], sparse=sparse[count]
            )
            blank = i == start or (i == start + 1 and data[start] == _RETURN)
            if code and not blank:
                faults[bad, 0], faults[bad, 1], faults[bad, 2] = line, code, column
                bad += 1
            elif not blank:
                count += 1
            i += 1
        line += 1
    return count, bad


@njit(nogil=True, cache=True)
def _usual_line(data, i, modulus, logs, label, dense, sparse):  # type: ignore[no-untyped-def]
    """Where the next line starts; 0 when this one is to be read by `_any_line`."""
    if i + _2 > Word(data.size) or (data[i] | 1) != 49 or data[i + _1] != _TAB:
        return _0
    label[0] = data[i] & 1
    i = _usual_counts(data, i + _2, logs, dense)
    return _usual_categories(data, i, modulus, sparse) if i else _0


@njit(nogil=True, cache=True)
def _usual_counts(data, i, logs, dense):  # type: ignore[no-untyped-def]
    for column in range(NUM_DENSE):
        if i + _FIELD_BYTES > Word(data.size):
            return _0
        word = word_at(data, i)
        width = bytes_before(places(word, TABS))
        negative = width > _1 and word & Word(0xFF) == Word(_MINUS)
        if negative:
            word ^= _MINUS_TO_ZERO
        good, value = decimal_value(flush_right(word, width))
        i += width
        if not good or data[i] != _TAB:
            return _0
        if negative:
            dense[column] = 0.0
        elif value < Word(logs.size):
            dense[column] = logs[value]
        else:
            dense[column] = np.log1p(np.float64(value))
        i += _1
    return i


@njit(nogil=True, cache=True)
def _usual_categories(data, i, modulus, sparse):  # type: ignore[no-untyped-def]
    fits = modulus <= Word(0xFFFFFFFF)  # else a value of 8 digits is below it
    for column in range(NUM_SPARSE):
        if i + _FIELD_BYTES > Word(data.size):
            return _0
        word, last = word_at(data, i), column == NUM_SPARSE - 1
        width = bytes_before(places(word, NEWLINES) | places(word, RETURNS) if last else places(word, TABS))
        good, value = hexadecimal_value(flush_right(word, width))
        i += width
        if last and data[i] == _RETURN:
            i += _1
        if not good or data[i] != (_NEWLINE if last else _TAB):
            return _0
        # A division of 32 bits takes half as long as one of 64.
        sparse[column] = np.uint32(value) % np.uint32(modulus) if fits else value
        i += _1
    return i


@njit(nogil=True, cache=True)
def _any_line(data, i, modulus, label, dense, sparse):  # type: ignore[no-untyped-def]
    """The code of what is wrong (0: nothing), the column it is about, and where the line ends."""
    code, fault_column, column = 0, 0, 0
    while True:
        good, negative, digits, value, i = _field(data, i, 10 if column <= NUM_DENSE else 16, 0 < column <= NUM_DENSE)
        wrong = 0
        if column == 0:
            wrong = 1 if not good or not 0 < digits <= 9 else 0
            label[0] = value
        elif column <= NUM_DENSE:
            wrong = 2 if not good or (negative and digits == 0) or digits > 18 else 0
            dense[column - 1] = np.log1p(np.float64(value)) if digits and not negative else 0.0
        elif column <= NUM_DENSE + NUM_SPARSE:
            wrong = 3 if not good or digits > 16 else 0
            sparse[column - NUM_DENSE - 1] = np.int64(value % modulus)
        if wrong and not code:
            code, fault_column = wrong, column + 1
        if i >= data.size or data[i] == _NEWLINE:
            break
        column += 1
        i += 1
    if column != NUM_DENSE + NUM_SPARSE:
        code, fault_column = 4, column + 1
    return code, fault_column, i


@njit(nogil=True, cache=True)
def _field(data, i, base, signed):  # type: ignore[no-untyped-def]
    """Whether a number stands from i on, whether it is negative, its digits, its value (modulo 2^64), and where it ends."""
    good, negative, digits, value = True, False, 0, _0
    while i < data.size and data[i] != _TAB and data[i] != _NEWLINE:
        byte, digit = data[i], 99
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte <= 102:
            digit = byte - 87
        elif 65 <= byte <= 70:
            digit = byte - 55
        if digit < base:
            value = value * Word(base) + Word(digit)
            digits += 1
        elif byte == _MINUS and signed and digits == 0 and not negative:
            negative = True
        elif byte != _RETURN:
            good = False
        i += 1
    return good, negative, digits, value, i


def open_criteo(path: TextPath, values: UriOptions) -> Dataset:
    """A file, `rows` of each table: 100000 where nothing is said."""
    return Dataset(TextSource(path, partial(parse_criteo, rows_per_field=_rows(values))), _schema(values))


def _rows(values: UriOptions) -> int:
    return count_of(values, "rows", 100_000)


def _schema(values: UriOptions) -> Schema:
    return click_schema(NUM_DENSE, (_rows(values),) * NUM_SPARSE)


FORMATS = (Format("criteo", open_criteo, ("rows",), is_text=True, schema=_schema),)

"""What a column of data that nobody has described looks like: a number, an id, a list of ids, or a time."""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from htrain.data.times import Unit
from htrain.data.values import is_list, is_text, lists_of, missing_words, plain

Kind = Literal["dense", "ids", "padded", "time", ""]
_STRAY = 0.01  # of the values may be of another kind, as --malformed-share has it
_MOST_ROWS = 20_000_000  # of a table for ids as they are; beyond, they are folded
_LARGEST = 3.4028234663852886e38  # of a float32
_FEW = 50_000  # values, of which a table with rows enough is small
_WHOLE = r"^[+-]?[0-9]{1,18}$"
_DIGITS = r"^[0-9]{1,20}$"  # too many for 64 bits, with a sign
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_LISTED = r"^[0-9]+([ |]+[0-9]+)+$"
_MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}.*)?$"
_COUNTED = frozenset({"age", "amount", "average", "avg", "cnt", "count", "counts", "days", "distance", "duration", "height", "hours", "length", "mean",
                      "minutes", "num", "number", "price", "ratio", "score", "seconds", "size", "sum", "total", "weight", "width"})  # fmt: skip
_TIMED = frozenset({"at", "date", "datetime", "time", "timestamp", "ts"})
_UNITS: tuple[tuple[Unit, float], ...] = (("s", 1e9), ("ms", 1e12), ("us", 1e15), ("ns", 1e18))


@dataclass(frozen=True)
class Guess:
    """A column, Arrow's `type` of it, and what it looks like; a `kind` of "" is one that no input takes.

    Of ids `rows` is how many their table needs; of lists `length` is what holds 95 of 100, of times `unit` is that of whole numbers. `told` says what was seen.
    """

    column: str
    type: str
    kind: Kind
    told: str
    rows: int = 0
    length: int = 0
    unit: Unit = "s"
    is_binary: bool = False


def guess(column: str, chunked: pa.ChunkedArray, largest: int | None) -> Guess:
    """What the values of a column look like; `largest` is the largest whole number of all rows, where it is known."""
    array = plain(chunked.combine_chunks())
    kind = str(chunked.type)
    missing = _missing(array)
    if is_list(array.type):
        found = _list(column, kind, array)
    elif is_text(array.type):
        found = _text(column, kind, array.drop_null())
    elif pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        found = Guess(column, kind, "time", "times")
    elif pa.types.is_integer(array.type):
        found = _whole(column, kind, array.drop_null(), largest)
    elif pa.types.is_boolean(array.type):
        found = Guess(column, kind, "dense", "true and false", is_binary=True)
    elif pa.types.is_floating(array.type):
        found = _number(column, kind, array.drop_null().cast(pa.float64()))
    else:
        return Guess(column, kind, "", "of a type that no input takes")
    return replace(found, told=f"{found.told}, {missing:.1%} missing") if missing else found


def _missing(array: pa.Array) -> float:
    """The share of the values that are missing."""
    if not len(array):
        return 0.0
    empty = pc.sum(pc.equal(array, "")).as_py() or 0 if is_text(array.type) else 0
    return float((array.null_count + empty) / len(array))


def _text(column: str, kind: str, array: pa.Array) -> Guess:
    words = array.filter(pc.and_(pc.not_equal(array, ""), pc.invert(pc.is_in(array, value_set=missing_words()))))
    if not len(words):
        return Guess(column, kind, "", "nothing but missing values")
    for pattern, guessed in (
        (_WHOLE, _whole_text),
        (_DIGITS, _digits_text),
        (_NUMBER, _number_text),
        (_MOMENT, _moment_text),
    ):
        fits = pc.match_substring_regex(words, pattern)
        if pc.sum(fits).as_py() >= (1 - _STRAY) * len(words):
            return guessed(column, kind, words.filter(fits))
    listed = pc.match_substring_regex(words, _LISTED)
    alone = pc.match_substring_regex(words, _WHOLE)
    several = pc.sum(listed).as_py() or 0
    if several and several + (pc.sum(alone).as_py() or 0) >= (1 - _STRAY) * len(words):
        return _list(column, kind, words)
    distinct = pc.count_distinct(array).as_py()
    return Guess(column, kind, "ids", f"text, {distinct:,} distinct", rows=_folded(distinct))


def _whole_text(column: str, kind: str, words: pa.Array) -> Guess:
    return _whole(column, kind, words.cast(pa.int64()), None)


def _digits_text(column: str, kind: str, words: pa.Array) -> Guess:
    distinct = pc.count_distinct(words).as_py()
    return Guess(
        column, kind, "ids", f"whole numbers of up to 20 digits, {distinct:,} distinct", rows=_folded(distinct)
    )


def _number_text(column: str, kind: str, words: pa.Array) -> Guess:
    return _number(column, kind, words.cast(pa.float64()))


def _moment_text(column: str, kind: str, words: pa.Array) -> Guess:
    return Guess(column, kind, "time", "times")


def _whole(column: str, kind: str, array: pa.Array, largest: int | None) -> Guess:
    if not len(array):
        return Guess(column, kind, "", "nothing but missing values")
    ends, distinct = pc.min_max(array).as_py(), pc.count_distinct(array).as_py()
    low, high = ends["min"], max(ends["max"], ends["max"] if largest is None else largest)
    told = f"whole numbers from {low:,} to {high:,}, {distinct:,} distinct"
    words = _words(column)
    unit = next((unit for unit, scale in _UNITS if 0.3 * scale <= low and high < 3 * scale), None)
    if unit and words & _TIMED:
        return Guess(column, kind, "time", f"{told}, as {unit} since the epoch", unit=unit)
    if low < 0 or words & _COUNTED:
        return Guess(column, kind, "dense", told)
    rows = high + 1 if high < _MOST_ROWS else _folded(distinct)
    return Guess(column, kind, "ids", told, rows=rows, is_binary=low >= 0 and high <= 1)


def _number(column: str, kind: str, array: pa.Array) -> Guess:
    numbers = array.filter(pc.invert(pc.is_nan(array)))
    fits = pc.less_equal(pc.abs(numbers), _LARGEST)
    finite = numbers.filter(fits)
    if not len(numbers):
        return Guess(column, kind, "", "nothing but missing values")
    if len(finite) < (1 - _STRAY) * len(numbers):
        return Guess(column, kind, "", "numbers that no float32 holds")
    ends = pc.min_max(finite).as_py()
    is_binary = pc.all(pc.is_in(finite, value_set=pa.array([0.0, 1.0]))).as_py()
    return Guess(column, kind, "dense", f"numbers from {ends['min']:g} to {ends['max']:g}", is_binary=is_binary)


def _list(column: str, kind: str, array: pa.Array) -> Guess:
    try:
        flat, counts = lists_of(array)
    except pa.ArrowException:
        return Guess(column, kind, "", "lists of a type that no input takes")
    of_each = guess("", pa.chunked_array([flat]), None)
    if of_each.kind not in ("ids", "dense") or not (pa.types.is_integer(flat.type) or is_text(flat.type)):
        return Guess(column, kind, "", f"lists of {of_each.told or of_each.type}")
    longest = int(counts.max(initial=0))
    length = int(sorted(counts)[math.ceil(0.95 * counts.size) - 1]) if counts.size else 0
    told = f"lists of {of_each.told}; the longest has {longest:,}"
    rows = of_each.rows or _folded(pc.count_distinct(flat).as_py())  # of negative ones
    return Guess(column, kind, "padded", told, rows=rows, length=max(length, 1))


def _words(name: str) -> set[str]:
    """The words of a column's name, in small letters: of user_age and userAge, user and age."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def _folded(distinct: int) -> int:
    """Rows for values that are hashed or taken modulo: some 5 of 100 values share one with another, of very many 39. A number of two digits and zeros."""
    count = max(10, distinct * (20 if distinct <= _FEW else 2))
    scale = 10 ** (len(str(count)) - 2)
    return int(-(-count // scale) * scale)

"""The values of a column of ids, as text: what vocabularies hold, and what is hashed.

A whole number is its decimal digits in whatever type a column has it, so that the same value is the same text in CSV and in Parquet, and where Arrow or pandas
made it a float because others are missing. Anything else is the text that it is, to the byte.
"""

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_EXACT = float(2**53)  # below it, a float that is a whole number is that number
_EXACT_SINGLE = float(2**24)  # the same of 32 bits
_MISSING = ["", "NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "NULL", "null", "nan", "NaN", "-nan", "-NaN"]
_MISSING += ["1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"]


@cache
def missing_words() -> pa.Array:
    """What tools write where a number or a time is missing. Ids are as they stand: NA is a country.

    It is made when it is wanted, since Arrow's first array imports pandas, which takes a role 0.13 s.
    """
    return pa.array(_MISSING)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's for text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's for lists, be they of one length."""
    kinds = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(is_one(kind) for is_one in kinds)


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def plain(array: pa.Array) -> pa.Array:
    """The same values in a type that is computed with: categories as what they stand for, text in Arrow's usual type for it, and no floats of 16 bits."""
    if pa.types.is_dictionary(array.type):
        array = _decoded(array)
    if is_text(array.type):
        return array.cast(pa.string())
    return array.cast(pa.float32()) if pa.types.is_float16(array.type) else array


def _decoded(array: pa.Array) -> pa.Array:
    """What categories stand for. Arrow gathers no string views, which the categories of Polars are."""
    if pa.types.is_string_view(array.type.value_type):
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.string()))
    return array.dictionary_decode()


def rows_of(table: pa.Table, places: np.ndarray) -> pa.Table:
    """The rows of a table at places[n]. Arrow gathers no string views, nor lists of them; list views it does, and casts them wrongly."""
    for place, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_string_view(kind):
            table = table.set_column(place, field.name, table[place].cast(pa.string()))
        elif is_list(kind) and pa.types.is_string_view(kind.value_type) and not _is_list_view(kind):
            table = table.set_column(place, field.name, table[place].cast(pa.large_list(pa.string())))
    return table.take(pa.array(places))


def texts(array: pa.Array) -> pa.Array:
    """Values of any type that an input takes as strings, null where one is missing; the empty text is missing, too."""
    kind = array.type
    if pa.types.is_floating(kind):
        return pc.coalesce(
            digits(array), pc.if_else(pc.is_finite(array), array, None).cast(pa.float64()).cast(pa.string())
        )
    text = array if is_text(kind) else array.cast(pa.string())
    return pc.if_else(pc.equal(text, ""), None, text)


def digits(array: pa.Array) -> pa.Array:
    """Floats that are whole numbers as these are written; null for others. Arrow writes 1e+10, and of 32 bits nine digits."""
    numbers = pc.if_else(pc.is_finite(array), array, None).cast(pa.float64())
    is_whole = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), _EXACT))
    return pc.if_else(is_whole, numbers, None).cast(pa.int64()).cast(pa.string())


def lost_digits(array: pa.Array) -> np.ndarray:
    """bool[n]: which values are floats so large that other whole numbers are the same float. An id is not known by one."""
    kind = array.type
    if not pa.types.is_floating(kind):
        return np.zeros(len(array), bool)
    numbers = pc.fill_null(array.cast(pa.float64()), 0).to_numpy(zero_copy_only=False)
    return np.isfinite(numbers) & (np.abs(numbers) >= (_EXACT if pa.types.is_float64(kind) else _EXACT_SINGLE))


def lists_of(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The values of a column of lists, one list after the other, and the length of each row's, int64[n]. Text is split at spaces and |; a list that is
    missing is empty."""
    if pa.types.is_null(array.type):  # as a table has it of which no row has a list
        array = pa.nulls(len(array), pa.list_(pa.null()))
    if is_text(array.type):
        array = pc.split_pattern_regex(pc.utf8_trim(pc.fill_null(array, ""), " |"), r"[ |]+")
        array = pa.array([[]], array.type).take(pa.array([], pa.int64())) if not len(array) else array
    counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = plain(pc.list_flatten(array))
    if pa.types.is_string(flat.type):  # the text "" splits into one empty word, which is no id
        empty = pc.fill_null(pc.equal(flat, ""), False).to_numpy(zero_copy_only=False)
        owner = np.repeat(np.arange(counts.size), counts)
        counts = counts - np.bincount(owner[empty], minlength=counts.size)
        flat = flat.filter(pa.array(~empty))
    return flat, counts

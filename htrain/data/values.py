"""The values of a column of ids, as text: what vocabularies hold, and what is hashed.

A whole number is its decimal digits in whatever type a column has it, so that the same value is the same text in CSV and in Parquet, and where Arrow or pandas
made it a float because others are missing. Anything else is the text that it is, to the byte.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_EXACT = float(2**53)  # below it, a float that is a whole number is that number


def texts(array: pa.Array) -> pa.Array:
    """Values of any type that an input takes as strings, null where one is missing; the empty text is missing, too."""
    kind = array.type
    if pa.types.is_floating(kind):
        numbers = pc.if_else(pc.is_finite(array), array, None).cast(pa.float64())
        is_whole = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), _EXACT))
        whole = pc.if_else(is_whole, numbers, None).cast(pa.int64()).cast(pa.string())
        return pc.coalesce(whole, numbers.cast(pa.string()))
    text = array if _is_text(kind) else array.cast(pa.string())
    return pc.if_else(pc.equal(text, ""), None, text)


def lists_of(array: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The values of a column of lists, one list after the other, and the length of each row's, int64[n]. Text is split at spaces and |; a list that is
    missing is empty."""
    if _is_text(array.type):
        array = pc.split_pattern_regex(pc.utf8_trim(pc.fill_null(array, ""), " |"), r"[ |]+")
        array = pa.array([[]], array.type).take(pa.array([], pa.int64())) if not len(array) else array
    counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pc.list_flatten(array)
    if pa.types.is_string(flat.type):  # the text "" splits into one empty word, which is no id
        empty = pc.fill_null(pc.equal(flat, ""), False).to_numpy(zero_copy_only=False)
        owner = np.repeat(np.arange(counts.size), counts)
        counts = counts - np.bincount(owner[empty], minlength=counts.size)
        flat = flat.filter(pa.array(~empty))
    return flat, counts


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

"""Vocabularies: which row of its table a value has, by a list of values that were counted (htrain.data.counting) and not by a hash.

| row          | is that of                                          |
|--------------|-----------------------------------------------------|
| 0            | a value that is missing, and the end of a padded list |
| 1            | a value that the vocabulary does not hold           |
| 2, 3, ...    | its values, in their order                          |

A file of vocabularies is a Parquet file with the text columns `column` and `value`: a row for each value of each column, in the order of their rows of the
table. Other columns, such as `count`, are for people.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from htrain.data.address import AnyPath, no_such_file
from htrain.data.hashing import mixed
from htrain.data.values import texts
from htrain.errors import DataError
from htrain.jit import njit

MISSING, UNKNOWN, FIRST = 0, 1, 2  # rows of a table
_COLUMNS = ("column", "value")
ReadVocabulary = Callable[[AnyPath, str], "Vocabulary"]  # of a file, that of a column


@dataclass(frozen=True)
class Vocabulary:
    """Value v is the text data[starts[v] : starts[v + 1]]; `slots` is a hash table of their numbers, -1 where nothing is."""

    starts: NDArray[np.int64]
    data: NDArray[np.uint8]
    slots: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Rows of the table: one for each value, and those of what is missing and of what is unknown."""
        return FIRST + self.starts.size - 1

    @property
    def digest(self) -> str:
        """Another one for other values, or the same in another order."""
        found = hashlib.blake2b(np.ascontiguousarray(self.starts).data, digest_size=16)
        found.update(np.ascontiguousarray(self.data).data)
        return found.hexdigest()

    def ids(self, array: pa.Array) -> NDArray[np.int64]:
        """int64[n]: the rows of the values of a column."""
        starts, data = _buffers(texts(array))
        ids = np.empty(len(array), np.int64)
        _find(self.starts, self.data, self.slots, starts, data, ids=ids)
        return ids


def vocabulary_of(values: pa.Array) -> Vocabulary:
    """The vocabulary of texts. Raises ValueError for a text that is empty or missing, and for one that is there twice."""
    starts, data = _buffers(values)
    slots = np.full(1 << max(3, int(2 * len(values)).bit_length()), -1, np.int64)
    wrong = int(_insert(starts, data, slots))
    if wrong >= 0:
        text = values[wrong].as_py()
        raise ValueError(f"holds '{text}' twice" if text else "holds an empty value")
    return Vocabulary(starts, data, slots)


EMPTY = Vocabulary(np.zeros(1, np.int64), np.zeros(0, np.uint8), np.full(8, -1, np.int64))


def vocabularies() -> ReadVocabulary:
    """What reads vocabularies, each file once. It raises DataError for what is none, and for a column that a file has nothing about."""
    files: dict[AnyPath, pa.Table] = {}
    read: dict[tuple[AnyPath, str], Vocabulary] = {}

    def of(path: AnyPath, column: str) -> Vocabulary:
        if path not in files:
            files[path] = _table(path)
        if (path, column) not in read:
            read[path, column] = _of_column(files[path], path, column)
        return read[path, column]

    return of


def _of_column(table: pa.Table, path: AnyPath, column: str) -> Vocabulary:
    values = table.filter(pc.equal(table["column"], column))["value"]
    if not len(values):
        held = ", ".join(f"'{name}'" for name in table["column"].unique().to_pylist()[:40])
        raise DataError(
            f"{path}: has no values of column '{column}', but of {held or 'none'}: count them (htrain data vocabulary)"
        )
    try:
        return vocabulary_of(pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in values.chunks]))
    except ValueError as error:
        raise DataError(f"{path}: column '{column}' {error}") from error


def _table(path: AnyPath) -> pa.Table:
    try:
        if not path.is_file():
            raise DataError(
                f"{path}: {no_such_file(path)} (vocabulary): count one (htrain data vocabulary --out {path})"
            )
        with path.open("rb") as file:
            table = pq.ParquetFile(file, page_checksum_verification=True).read(list(_COLUMNS), use_threads=False)
        kinds = [table.schema.field(name).type for name in _COLUMNS]
        if not all(map(_is_text, kinds)):
            raise ValueError(f"its columns are {' and '.join(map(str, kinds))}, want text")
        return table.cast(pa.schema([(name, pa.large_string()) for name in _COLUMNS]))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        told = " ".join(str(error).split())
        raise DataError(
            f"{path}: not a vocabulary, a Parquet file with the columns {' and '.join(_COLUMNS)}: {told}"
        ) from error


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind  # as pandas writes a column of categories
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _buffers(text: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """starts[n+1] and bytes of an array of text; one that is missing is empty."""
    text = pc.fill_null(text, "").cast(pa.large_string())
    if not len(text):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, data = text.buffers()
    starts = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    return starts - starts[0], np.frombuffer(data or b"", np.uint8)[starts[0] : starts[-1]]


@njit(nogil=True, cache=True)
def _place(data, begin, end, mask):  # type: ignore[no-untyped-def]
    """Where to look for a text first: FNV-1a, of which every bit counts."""
    word = np.uint64(0xCBF29CE484222325)
    for j in range(begin, end):
        word = (word ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
    return np.int64(mixed(word) & np.uint64(mask))


@njit(nogil=True, cache=True)
def _are_alike(text, other):  # type: ignore[no-untyped-def]
    same = 0
    while same < text.size == other.size and text[same] == other[same]:
        same += 1
    return same == text.size == other.size


@njit(nogil=True, cache=True)
def _insert(starts, data, slots):  # type: ignore[no-untyped-def]
    """Fill the hash table; the number of the first text that is empty, or there for the second time, or -1."""
    mask = slots.size - 1
    for v in range(starts.size - 1):
        begin, end = starts[v], starts[v + 1]
        if begin == end:
            return v
        place = _place(data, begin, end, mask)
        while slots[place] >= 0:
            other = slots[place]
            if _are_alike(data[begin:end], data[starts[other] : starts[other + 1]]):
                return v
            place = (place + 1) & mask
        slots[place] = v
    return -1


@njit(nogil=True, cache=True)
def _find(starts, data, slots, query_starts, query, ids):  # type: ignore[no-untyped-def]
    """ids[i]: the row of the text query[query_starts[i] : query_starts[i + 1]]."""
    mask = slots.size - 1
    for i in range(ids.size):
        begin, end = query_starts[i], query_starts[i + 1]
        ids[i] = MISSING if begin == end else UNKNOWN
        place = _place(query, begin, end, mask)
        while begin < end and slots[place] >= 0:
            v = slots[place]
            if _are_alike(query[begin:end], data[starts[v] : starts[v + 1]]):
                ids[i] = FIRST + v
                break
            place = (place + 1) & mask

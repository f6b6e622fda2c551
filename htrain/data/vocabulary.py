"""Vocabularies: which row of its table a value has, by a list of values that were counted (htrain.data.counting) and not by a hash.

| row          | is that of                                          |
|--------------|-----------------------------------------------------|
| 0            | a value that is missing, and the end of a padded list |
| 1            | a value that the vocabulary does not hold           |
| 2, 3, ...    | its values, in their order                          |

A file of vocabularies is a Parquet file with the text columns `column` and `value`: a row for each value of each column, in the order of their rows of the
table. Other columns, such as `count`, are for people.

A vocabulary that extends another has the values of that first, in its order: they keep their rows, and a table that has been trained needs but more of them.
That it does so is told by digests, in the metadata of a file that `htrain data vocabulary` has written.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from htrain.data.address import AnyPath, no_such_file
from htrain.data.hashing import mixed
from htrain.data.values import texts
from htrain.decoding import from_json
from htrain.errors import DataError
from htrain.jit import njit
from htrain.printable import as_word

MISSING, UNKNOWN, FIRST = 0, 1, 2  # rows of a table
FACTS = b"htrain.vocabulary"  # in the metadata of a file
MOST_EXTENDED = 100  # of the vocabularies that one extends, the last so many are known
_COLUMNS = ("column", "value")
ReadVocabulary = Callable[[AnyPath, str], "Vocabulary"]  # of a file, that of a column


class Lineage(msgspec.Struct, frozen=True):
    """What a file says of a column: the digest of its vocabulary, and those of the ones that it extends, the last one last."""

    digest: str
    extends: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True):
    """What the metadata of a file says: the data that was counted, how, and its columns."""

    version: int = 1
    data: str = ""
    min_count: int = 1
    most: int = 0
    columns: dict[str, Lineage] = {}


@dataclass(frozen=True)
class Vocabulary:
    """Value v is the text data[starts[v] : starts[v + 1]]; `slots` is a hash table of their numbers, -1 where nothing is. `extends` are the digests of the
    vocabularies whose values are its first ones."""

    starts: NDArray[np.int64]
    data: NDArray[np.uint8]
    slots: NDArray[np.int64]
    extends: tuple[str, ...] = ()

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
    files: dict[AnyPath, VocabularyFile] = {}
    read: dict[tuple[AnyPath, str], Vocabulary] = {}

    def of(path: AnyPath, column: str) -> Vocabulary:
        if path not in files:
            files[path] = VocabularyFile(path)
        if (path, column) not in read:
            read[path, column] = files[path].of(column)
        return read[path, column]

    return of


class VocabularyFile:
    """A file of vocabularies: `table` has its columns `column` and `value`, and if they are wanted the `count`s, which are 0 where the file has none."""

    def __init__(self, path: AnyPath, *, with_counts: bool = False) -> None:
        """Raises DataError for what is none."""
        self._path = path
        self.table, self._lineages = _read(path, with_counts=with_counts)

    @property
    def columns(self) -> list[str]:
        """The columns that it has values of, in their order."""
        return [str(name) for name in self.table["column"].drop_null().unique().to_pylist()]

    def of(self, column: str) -> Vocabulary:
        """The vocabulary of a column. Raises DataError where the file has nothing about it, or a value twice."""
        values = self.rows(column)["value"]
        if not len(values):
            held = ", ".join(f"'{name}'" for name in self.columns[:40])
            raise DataError(
                f"{self._path}: has no values of column '{column}', but of {held or 'none'}: count them (htrain data vocabulary)"
            )
        try:
            found = vocabulary_of(pa.concat_arrays(values.chunks))
        except ValueError as error:
            raise DataError(f"{self._path}: column '{column}' {error}") from error
        said = self._lineages.get(column)
        # Other tools may have written the values anew, in another order, and left the metadata as it was.
        return replace(found, extends=said.extends) if said and said.extends and said.digest == found.digest else found

    def rows(self, column: str) -> pa.Table:
        """The rows of a column."""
        return self.table.filter(pc.equal(self.table["column"], column))


def _read(path: AnyPath, *, with_counts: bool) -> tuple[pa.Table, Mapping[str, Lineage]]:
    try:
        if not path.is_file():
            raise DataError(
                f"{path}: {no_such_file(path)} (vocabulary): count one (htrain data vocabulary --out {as_word(str(path))})"
            )
        with path.open("rb") as file:
            opened = pq.ParquetFile(file, page_checksum_verification=True)
            schema = opened.schema_arrow
            is_counted = with_counts and "count" in schema.names and pa.types.is_integer(schema.field("count").type)
            table = opened.read([*_COLUMNS, *(["count"] if is_counted else [])], use_threads=False)
        kinds = [table.schema.field(name).type for name in _COLUMNS]
        if not all(map(_is_text, kinds)):
            raise ValueError(f"its columns are {' and '.join(map(str, kinds))}, want text")
        read = pa.table({name: table[name].cast(pa.large_string()) for name in _COLUMNS})
        if with_counts:
            counts = pc.fill_null(table["count"], 0) if is_counted else pa.repeat(0, table.num_rows)
            read = read.append_column("count", counts.cast(pa.int64()))
        return read, _facts(schema.metadata or {}).columns
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        told = " ".join(str(error).split())
        raise DataError(
            f"{path}: not a vocabulary, a Parquet file with the columns {' and '.join(_COLUMNS)}: {told}"
        ) from error


def _facts(metadata: Mapping[bytes, bytes]) -> Facts:
    """What a file says of itself; nothing where that is not ours, or damaged."""
    try:
        return from_json(metadata[FACTS], Facts)
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Facts()


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

"""The bigraph of a data set: its examples are the samples, and the rows of all tables that they look up are the rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from htrain.data.edges import Tables, edges_of, tables_of
from htrain.data.malformed import Malformed
from htrain.data.reader import Dataset
from htrain.errors import DataError
from htrain.jit import njit
from htrain.tagging.bigraph.graph import Bigraph, Ints, Longs

Words = np.ndarray
_WORD = 64


@dataclass(frozen=True)
class Seen:
    """Which rows of all tables the data uses: one bit for each, uint64 words; `num_rows` are set. They are numbered in order in the graph."""

    tables: Tables
    words: Words
    num_rows: int

    def key_of(self, row: int) -> int:
        """The row of all tables that a row of the graph is."""
        before = np.append(0, np.cumsum(np.bitwise_count(self.words), dtype=np.int64))
        word = int(np.searchsorted(before, row, side="right")) - 1
        bits = np.flatnonzero(np.unpackbits(self.words[word : word + 1].view(np.uint8), bitorder="little"))
        return word * _WORD + int(bits[row - before[word]])


def read_bigraph(
    dataset: Dataset, malformed: Malformed, *, on_examples: Callable[[int], None] = lambda number: None
) -> tuple[Bigraph, Seen]:
    """Read all of a data set once, in its order; `on_examples` hears how many examples have been read.

    Rows are numbers of four bytes while it is read, another four when the graph is made. Raises DataError for data that cannot be read, holds no examples, or
    looks up no rows.
    """
    tables = tables_of(dataset.schema)
    if not tables.num_rows:
        raise DataError(f"{dataset.source.name}: its examples look up no rows, so that there is nothing to partition")
    words = np.zeros(-(-tables.num_rows // _WORD), np.uint64)
    key_type = np.uint32 if tables.num_rows <= 1 << 32 else np.int64
    lengths: list[Ints] = []
    parts: list[np.ndarray] = []
    num_examples = 0
    for starts, keys in _chunks(dataset, tables, malformed):
        _mark(words, keys)
        lengths.append(np.diff(starts).astype(np.int32))
        parts.append(keys.astype(key_type))
        num_examples += len(starts) - 1
        on_examples(num_examples)
    if not num_examples:
        raise DataError(f"{dataset.source.name}: holds no rows that can be read")
    ranks = np.append(0, np.cumsum(np.bitwise_count(words), dtype=np.int64))
    rows = np.empty(sum(map(len, parts)), np.int32)
    end = 0
    while parts:
        keys = parts.pop(0)
        _rank(words, ranks, keys, rows[end : end + len(keys)])
        end += len(keys)
    starts = np.append(0, np.cumsum(np.concatenate(lengths), dtype=np.int64))
    return Bigraph(starts, rows, int(ranks[-1])), Seen(tables, words, int(ranks[-1]))


def _chunks(dataset: Dataset, tables: Tables, malformed: Malformed) -> Iterator[tuple[Longs, Longs]]:
    for _, rows in dataset.source.chunks(shard=0, num_shards=1, first=0, malformed=malformed):
        if rows.count:
            starts, keys = edges_of(rows, dataset.schema, tables)
            yield (starts, keys) if tables.never_repeat else _once_each(starts, keys)


@njit(nogil=True, cache=True)
def _mark(words, keys):  # type: ignore[no-untyped-def]
    for key in keys:
        words[key >> 6] |= np.uint64(1) << np.uint64(key & 63)


@njit(nogil=True, cache=True)
def _rank(words, ranks, keys, rows):  # type: ignore[no-untyped-def]
    """How many keys below each are set."""
    for i in range(keys.size):
        word, bit = np.int64(keys[i]) >> 6, np.uint64(np.int64(keys[i]) & 63)
        below = words[word] & ((np.uint64(1) << bit) - np.uint64(1))
        rows[i] = ranks[word] + _num_bits(below)


@njit(nogil=True, cache=True, inline="always")
def _num_bits(word):  # type: ignore[no-untyped-def]
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(nogil=True, cache=True)
def _once_each(starts, keys):  # type: ignore[no-untyped-def]
    """Each key of an example once, ascending."""
    new_starts, new_keys, end = np.zeros_like(starts), np.empty_like(keys), 0
    for s in range(starts.size - 1):
        mine = np.sort(keys[starts[s] : starts[s + 1]])
        for i in range(mine.size):
            if i == 0 or mine[i] != mine[i - 1]:
                new_keys[end] = mine[i]
                end += 1
        new_starts[s + 1] = end
    return new_starts, new_keys[:end].copy()

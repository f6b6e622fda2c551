"""Loops over a map of rows (htrain.data.numbering): which rows are seen, by a bitmap with ranks; and who owns them, by bit planes with ranks of each owner.

A rank is how many come before. Both maps are made of cache lines that have a rank and the bits behind it together, so that a lookup waits for one line of
each; and lookups run in passes over a few hundred ids, each of one read that no other waits for, so that the processor waits for many lines at once.

A line of the rows that are seen is eight words: the bits of 448 rows, and a word with the rank of the first in its lower half and, above it, how many bits of
the line are set before its words 2, 4 and 6, in 9 bits each.

Owners of the seen rows 64 w to 64 w + 63 are the words `planes[w, j]`, of which bit i is bit j of the owner of row 64 w + i. A record is the planes of a few
such words, a power of two, and behind them a rank for each owner, four in a word: how many rows since the last row that is a multiple of 32768, whose
ranks `far` has in full.
"""

# mypy: disable-error-code=assignment
# Numba infers the types of its functions; their numpy scalars are not mypy's ints.

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit

Words = NDArray[np.uint64]
Longs = NDArray[np.int64]

LINE = 448  # rows of a line
FAR = 15  # 16 bits tell the ranks of owners within 2**15 rows
_PASS = 1024  # ids of a pass
_1, _2, _3, _6, _7, _8 = (np.uint64(n) for n in (1, 2, 3, 6, 7, 8))
_9, _16, _23, _63 = (np.uint64(n) for n in (9, 16, 23, 63))
_FAR, _LOW, _HALF = np.uint64(FAR), np.uint64(0xFFFF), np.uint64(0xFFFFFFFF)
_NONE, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)


class Owners(NamedTuple):
    """records[r, c]; and far[b, k], the rank of row 32768 b among those of owner k.

    Loops over `planes` and over the `words` of a record are unrolled: the lengths of tuples are known when they are compiled.
    """

    records: Words
    far: Longs
    planes: tuple[int, ...]
    words: tuple[int, ...]


class Table(NamedTuple):
    """A table of a map: its first row of all tables; the seen rows before it, by owner in `before[K]`; and what is renumbered how.

    Owner k has the new rows bounds[k] to bounds[k + 1] - 1: `owned[k]` seen ones, then those that are the unseen ones cuts[k] to cuts[k + 1] - 1.
    """

    start: int
    num_rows: int
    first_seen: int
    before: Longs
    bounds: Longs
    owned: Longs
    cuts: Longs


@njit(nogil=True, cache=True, inline="always")
def num_bits(word):  # type: ignore[no-untyped-def]
    """How many bits of a word are set. LLVM makes one instruction of it."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(nogil=True, cache=True)
def to_lines(words, first, lines, rank):  # type: ignore[no-untyped-def]
    """Spread words of a bitmap over `lines`, of which `words[0]` is word number `first`. Returns the rank behind them, where `rank` is the one before.

    Requires: words come in order, into lines that are zero.
    """
    for w in range(words.size):
        line, word = divmod(first + w, 7)
        if word == 0:
            lines[8 * line + 7] = np.uint64(rank)
        elif word & 1 == 0:
            inside = np.uint64(rank) - (lines[8 * line + 7] & _HALF)
            lines[8 * line + 7] |= inside << np.uint64(32 + 9 * (word // 2 - 1))
        lines[8 * line + word] = words[w]
        rank += num_bits(words[w])
    return rank


@njit(nogil=True, cache=True)
def owner_in(planes, row):  # type: ignore[no-untyped-def]
    """The owner of a seen row."""
    owner = 0
    for j in range(planes.shape[1]):
        owner |= np.int64((planes[row >> 6, j] >> np.uint64(row & 63)) & _1) << j
    return owner


@njit(nogil=True, cache=True)
def to_planes(owners, planes):  # type: ignore[no-untyped-def]
    """Put owners[m] into planes[ceil(m / 64), bits], which are zero."""
    for row in range(owners.size):
        for j in range(planes.shape[1]):
            planes[row >> 6, j] |= np.uint64((np.int64(owners[row]) >> j) & 1) << np.uint64(row & 63)


@njit(nogil=True, cache=True)
def from_planes(planes, owners):  # type: ignore[no-untyped-def]
    """The reverse."""
    for row in range(owners.size):
        owners[row] = owner_in(planes, row)


@njit(nogil=True, cache=True, inline="always")
def _copy(values, to):  # type: ignore[no-untyped-def]
    for k in range(values.size):
        to[k] = values[k]


@njit(nogil=True, cache=True)
def rank_owners(planes, num_seen, first_seen, records, far, before):  # type: ignore[no-untyped-def]
    """Fill `records` and `far` of `Owners`, which are zero, and before[t, k]: rows of owner k before the seen row first_seen[t].

    Returns how many rows have an owner that there is: all, unless a file was damaged.
    """
    bits, num_owners = planes.shape[1], far.shape[1]
    behind = records.shape[1] - (num_owners + 3) // 4
    rows = 64 * (behind // bits)
    ranks, table = np.zeros(num_owners, np.int64), 0
    for record in range(records.shape[0]):
        first = record * rows
        if first & ((1 << FAR) - 1) == 0:
            _copy(ranks, far[first >> FAR])
        for k in range(num_owners):
            records[record, behind + (k >> 2)] |= np.uint64(ranks[k] - far[first >> FAR, k]) << np.uint64(16 * (k & 3))
        for w in range(first >> 6, min((first + rows) >> 6, planes.shape[0])):
            for j in range(bits):
                records[record, (w - (first >> 6)) * bits + j] = planes[w, j]
        for row in range(first, min(first + rows, num_seen)):
            while table < first_seen.size and first_seen[table] == row:
                _copy(ranks, before[table])
                table += 1
            owner = owner_in(planes, row)
            if owner >= num_owners:
                return row
            ranks[owner] += 1
    for left in range(table, before.shape[0]):
        _copy(ranks, before[left])
    return num_seen


@njit(nogil=True, cache=True)
def renumber(lines, owners, table, ids, new):  # type: ignore[no-untyped-def]
    """new[i] = the new number of row ids[i] of a table."""
    held, rank, offset = np.empty(_PASS, np.uint64), np.empty(_PASS, np.int64), table.bounds[:-1] - table.before
    rows, place, owner = np.empty(_PASS, np.int64), np.empty(_PASS, np.int64), np.empty(_PASS, np.int64)
    for begin in range(0, ids.size, _PASS):
        count = min(_PASS, ids.size - begin)
        for i in range(count):
            word = np.uint64(ids[begin + i] + table.start) >> _6
            line = word // _7
            held[i] = lines[line + word]
        for i in range(count):
            key = np.uint64(ids[begin + i] + table.start)
            word = key >> _6
            line = word // _7
            inside = word - line * _7
            ranks = lines[(line << _3) + _7]
            before = lines[(line << _3) + (inside & ~_1)] & (_NONE - (inside & _1))
            pairs = ((ranks >> _23) & ~np.uint64(511)) >> (_9 * (inside >> _1)) & np.uint64(511)
            rank[i] = (
                np.int64(ranks & _HALF)
                + np.int64(pairs)
                + num_bits(before)
                + num_bits(held[i] & ((_1 << (key & _63)) - _1))
            )
        num_seen = 0
        for i in range(count):
            key = np.uint64(ids[begin + i] + table.start)
            if (held[i] >> (key & _63)) & _1:
                rows[num_seen], place[num_seen] = rank[i], begin + i
                num_seen += 1
            else:
                new[begin + i] = _of_unseen(table, ids[begin + i] - (rank[i] - table.first_seen))
        rank_in_owner(owners, rows[:num_seen], owner, rank)
        for i in range(num_seen):
            new[place[i]] = offset[owner[i]] + rank[i]


@njit(nogil=True, cache=True, inline="always")
def _of_unseen(table, unseen):  # type: ignore[no-untyped-def]
    """The new number of the unseen row number `unseen` of a table. Shares are about even: the first guess is mostly right."""
    num_owners = table.owned.size
    k = min(unseen * num_owners // table.cuts[num_owners], num_owners - 1)
    while unseen < table.cuts[k]:
        k -= 1
    while unseen >= table.cuts[k + 1]:
        k += 1
    return table.bounds[k] + table.owned[k] + unseen - table.cuts[k]


@njit(nogil=True, cache=True)
def rank_in_owner(owners, rows, owner, rank):  # type: ignore[no-untyped-def]
    """owner[i] of the seen row rows[i], and rank[i]: how many before it have that owner."""
    records, far, planes, words = owners.records, owners.far, len(owners.planes), len(owners.words)
    words_mask, behind, bits = np.uint64(words - 1), np.uint64(words * planes), np.uint64(planes)
    rows_of_record = np.uint64(64 * words)
    for i in range(rows.size):  # what is read here is only to be near below
        row = np.uint64(rows[i])
        record, first = row // rows_of_record, ((row >> _6) & words_mask) * bits
        rank[i] = np.int64(records[record, first] ^ records[record, behind])
    for i in range(rows.size):
        row, k = np.uint64(rows[i]), _NONE
        record, here = row // rows_of_record, (row >> _6) & words_mask
        for j in range(planes):
            k |= ((records[record, here * bits + np.uint64(j)] >> (row & _63)) & _1) << np.uint64(j)
        owner[i] = np.int64(k)
        near = records[record, behind + (k >> _2)] >> (_16 * (k & _3))
        count = far[row >> _FAR, k] + np.int64(near & _LOW)
        below = (_1 << (row & _63)) - _1
        for w in range(words):
            same = (_NONE - np.uint64(np.uint64(w) < here)) | (below & (_NONE - np.uint64(np.uint64(w) == here)))
            for j in range(planes):
                same &= records[record, np.uint64(w * planes + j)] ^ (((k >> np.uint64(j)) & _1) - _1)
            count += num_bits(same)
        rank[i] = count


@njit(nogil=True, cache=True)
def rank_of(lines, key):  # type: ignore[no-untyped-def]
    """How many rows before `key` are seen."""
    line, word = divmod(key >> 6, 7)
    rank = np.int64(lines[8 * line + 7] & _HALF)
    for w in range(8 * line, 8 * line + word):
        rank += num_bits(lines[w])
    return rank + num_bits(lines[8 * line + word] & ((_1 << np.uint64(key & 63)) - _1))


@njit(nogil=True, cache=True)
def owned_keys(lines, owners, k, first, keys):  # type: ignore[no-untyped-def]
    """keys[n] = the seen rows of owner k, by their numbers over all tables: the one that is number `first` among them and those behind it.

    Requires: there are so many.
    """
    records, planes, words = owners.records, len(owners.planes), len(owners.words)
    record = _last_record(owners, k, first)
    rank, found = _rank_at(owners, record, k), 0
    line, word, before = -1, 0, 0
    for w in range(record * words, records.shape[0] * words):
        same = _ALL
        for j in range(planes):
            same &= records[w // words, w % words * planes + j] ^ (np.uint64((k >> j) & 1) - _1)
        if rank + num_bits(same) <= first:
            rank += num_bits(same)
            continue
        while same and found < keys.size:
            row = 64 * w + num_bits((same & (~same + _1)) - _1)
            same &= same - _1
            rank += 1
            if rank <= first:
                continue
            if line < 0:
                line = _last_line(lines, row)
                before = np.int64(lines[8 * line + 7] & _HALF)
            while before + num_bits(lines[8 * line + word]) <= row:
                before += num_bits(lines[8 * line + word])
                line, word = (line, word + 1) if word < 6 else (line + 1, 0)
            keys[found] = LINE * line + 64 * word + _place_of_bit(lines[8 * line + word], row - before)
            found += 1
        if found == keys.size:
            return


@njit(nogil=True, cache=True)
def unseen_keys(lines, first, keys):  # type: ignore[no-untyped-def]
    """keys[n] = the unseen rows of all tables: the one that is number `first` among them and those behind it. Requires: there are so many."""
    low, high = 0, lines.size // 8
    while high - low > 1:
        middle = (low + high) // 2
        if LINE * middle - np.int64(lines[8 * middle + 7] & _HALF) <= first:
            low = middle
        else:
            high = middle
    rank, found, word = LINE * low - np.int64(lines[8 * low + 7] & _HALF), 0, 7 * low
    while found < keys.size:
        free = ~lines[word // 7 * 8 + word % 7]
        if rank + num_bits(free) <= first:
            rank += num_bits(free)
            free = _NONE
        while free and found < keys.size:
            if rank >= first:
                keys[found] = 64 * word + num_bits((free & (~free + _1)) - _1)
                found += 1
            free &= free - _1
            rank += 1
        word += 1


@njit(nogil=True, cache=True)
def by_owner(owners, first_seen, starts, values, ordered):  # type: ignore[no-untyped-def]
    """ordered[starts[t, k] + i] = the value of the row that is number i of owner k among the seen rows first_seen[t] to first_seen[t + 1] - 1."""
    records, planes, words = owners.records, len(owners.planes), len(owners.words)
    for t in range(starts.shape[0]):
        end = starts[t].copy()
        for row in range(first_seen[t], first_seen[t + 1]):
            w, k = row >> 6, 0
            for j in range(planes):
                k |= np.int64((records[w // words, w % words * planes + j] >> np.uint64(row & 63)) & _1) << j
            ordered[end[k]] = values[row]
            end[k] += 1


@njit(nogil=True, cache=True)
def _rank_at(owners, record, k):  # type: ignore[no-untyped-def]
    """How many rows before a record have owner k."""
    words, planes = len(owners.words), len(owners.planes)
    near = owners.records[record, words * planes + (k >> 2)] >> np.uint64(16 * (k & 3))
    return owners.far[(record * words * 64) >> FAR, k] + np.int64(near & _LOW)


@njit(nogil=True, cache=True)
def _last_record(owners, k, rank):  # type: ignore[no-untyped-def]
    """The last record before which at most `rank` rows have owner k."""
    low, high = 0, owners.records.shape[0]
    while high - low > 1:
        middle = (low + high) // 2
        if _rank_at(owners, middle, k) <= rank:
            low = middle
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def _last_line(lines, rank):  # type: ignore[no-untyped-def]
    """The last line before which at most `rank` rows are seen."""
    low, high = 0, lines.size // 8
    while high - low > 1:
        middle = (low + high) // 2
        if np.int64(lines[8 * middle + 7] & _HALF) <= rank:
            low = middle
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def _place_of_bit(word, number):  # type: ignore[no-untyped-def]
    """The place of the bit of a word that is number `number` of those that are set."""
    for _ in range(number):
        word &= word - _1
    return num_bits((word & (~word + _1)) - _1)

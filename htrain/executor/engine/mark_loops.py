"""The loops of `htrain.executor.engine.marks`: rows are marked by the steps that change them, and kept as they were where a checkpoint still has to write them.

A row's mark is the number of the epoch in which it was last stepped; an epoch ends with each checkpoint. Rows are looked at as words of 32 bits.
"""

import numpy as np

from htrain.jit import njit
from htrain.ops.pointers import array_at, prefetch_row
from htrain.ops.step_loops import AHEAD


@njit(nogil=True, cache=True, usual="(i8[:,::1], i8[::1], i8[::1], i8[::1], i8)")
def mark_rows(tables, ids, counts, strides, epoch):  # type: ignore[no-untyped-def]
    """Mark rows of several tables: tables[T,3] are the address of marks, how many, and the id of the first row; ids[T] the addresses of counts[T] ids that are
    strides[T] apart. An id outside its table marks nothing: the step refuses it."""
    for t in range(tables.shape[0]):
        size, first, stride = tables[t, 1], tables[t, 2], strides[t]
        marks = array_at(tables[t, 0], (size,), np.uint8(0))
        given = array_at(ids[t], (counts[t] * stride,), np.int64(0))
        for i in range(counts[t]):
            row = given[i * stride] - first
            if 0 <= row < size:
                marks[row] = epoch


@njit(nogil=True, cache=True)
def keep_rows(marks, ids, first, epoch, oldest, shift, rows, nexts, heads, used, sources, words, kept):  # type: ignore[no-untyped-def]
    """The same for ids[u] of one table, where each row whose mark is from `oldest` on is first copied to the end of the kept ones, of which there are `used`.

    Tensor k has words[k] words a row; sources[k] and kept[k] are addresses. rows[n] are the numbers of kept rows; those of one chunk, of 2^shift rows, are a
    list: it begins at heads[chunk], goes on at nexts, and ends at -1. Returns how many are kept now.
    """
    for i in range(ids.size):
        row = ids[i] - first
        if row < 0 or row >= marks.size or marks[row] == epoch:
            continue
        if marks[row] >= oldest:
            for k in range(sources.size):
                width = words[k]
                source = array_at(sources[k] + 4 * row * width, (width,), np.uint32(0))
                target = array_at(kept[k] + 4 * used * width, (width,), np.uint32(0))
                for w in range(width):
                    target[w] = source[w]
            rows[used] = row
            nexts[used] = heads[row >> shift]
            heads[row >> shift] = used
            used += 1
        marks[row] = epoch
    return used


@njit(nogil=True, cache=True, usual="(u1[::1], i8)")
def count_rows(marks, oldest):  # type: ignore[no-untyped-def]
    """How many rows have a mark from `oldest` on."""
    count = 0
    for row in range(marks.size):
        count += marks[row] >= oldest
    return count


@njit(nogil=True, cache=True, usual="(u1[::1], i8, i8, i8, i8, u4[:,::1], i4[::1], u4[:,::1])")
def gather_rows(marks, first, last, epoch, oldest, source, rows, target):  # type: ignore[no-untyped-def]
    """Copy the rows from `first` to `last` of source[R,W] that have a mark from `oldest` on, but not of this epoch, to target[n,W], their numbers to rows[n].
    Returns n.

    Others may be marked, and stepped, meanwhile: `settle_rows` takes those out.
    """
    count = 0
    for row in range(first, last):
        rows[count] = row  # kept where it counts: which rows do cannot be foretold
        count += (marks[row] >= oldest) & (marks[row] != epoch)
    width, address = source.shape[1], source.ctypes.data
    for n in range(count):
        if n + AHEAD < count:
            prefetch_row(address, rows[n + AHEAD], 4 * width)
        for w in range(width):
            target[n, w] = source[rows[n], w]
    return count


@njit(nogil=True, cache=True, usual="(u1[::1], i8, i4[::1], u4[:,::1], i8, i4[::1], u4[:,::1], i4[::1], i4)")
def settle_rows(marks, epoch, rows, target, count, kept_rows, kept, nexts, place):  # type: ignore[no-untyped-def]
    """Of `count` rows that were gathered, without those that were stepped since, and with the kept ones of the list that begins at `place`; how many."""
    if place < 0:
        return count
    n = 0
    while n < count:
        if marks[rows[n]] != epoch:
            n += 1
            continue
        count -= 1
        rows[n] = rows[count]
        for w in range(target.shape[1]):
            target[n, w] = target[count, w]
    while place >= 0:
        rows[count] = kept_rows[place]
        for w in range(target.shape[1]):
            target[count, w] = kept[place, w]
        count += 1
        place = nexts[place]
    return count


@njit(nogil=True, cache=True, usual="(u4[:,::1], i8, i4[::1], u4[:,::1], i4[::1], i4)")
def restore_rows(target, first, kept_rows, kept, nexts, place):  # type: ignore[no-untyped-def]
    """Put the kept rows of the list that begins at `place` where they were: target[n,W] are rows from number `first` on."""
    while place >= 0:
        for w in range(target.shape[1]):
            target[kept_rows[place] - first, w] = kept[place, w]
        place = nexts[place]


LOOPS = mark_rows, count_rows, gather_rows, settle_rows, restore_rows  # in the order in which a checkpoint needs them

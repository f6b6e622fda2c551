"""The hot loops of embeddings, over flat arrays: ids int64, rows float32. They hold no lock and no GIL.

A place of -1 stands for a padding id: it reads zeros, counts for nothing and gets no gradient. Loops that write a table in
place may run concurrently on the same rows: that is Hogwild, an update may be lost, none is torn within a float.
"""

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from htrain.errors import DataError

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]

_EMPTY = np.int64(-1)


def dedupe(ids: Ids, padding_idx: int) -> tuple[Ids, Ids]:
    """The distinct ids in order of first appearance, unique[u], and the place of each id among them, places[n]."""
    unique = np.empty(ids.size, np.int64)
    places = np.empty(ids.size, np.int64)
    slots = np.full(_slots_for(ids.size), _EMPTY)
    count = _dedupe(ids, padding_idx, unique, places, slots)
    return unique[:count], places


def dedupe_sharded(ids: Ids, bounds: Sequence[int], padding_idx: int) -> tuple[list[Ids], Ids]:
    """As `dedupe`, the distinct ids grouped by row range [bounds[k], bounds[k+1]).

    Raises DataError for an id outside all ranges.
    """
    unique, places = dedupe(ids, padding_idx)
    grouped, moved = np.empty(unique.size, np.int64), np.empty(unique.size, np.int64)
    starts = np.zeros(len(bounds), np.int64)
    bad = _group(unique, np.asarray(bounds, np.int64), grouped, moved, starts)
    if bad >= 0:
        raise _outside(unique[bad], ids, bounds[0], bounds[-1])
    _renumber(places, moved)
    return [grouped[starts[k] : starts[k + 1]] for k in range(len(bounds) - 1)], places


def gather_rows(table: Rows, ids: Ids, first_row: int) -> Rows:
    """rows[u,D] of a shard table[R,D] that starts at `first_row`. Raises DataError for an id outside it."""
    rows = np.empty((ids.size, table.shape[1]), np.float32)
    bad = _gather(table, ids, first_row, rows)
    if bad >= 0:
        raise _outside(ids[bad], ids, first_row, first_row + table.shape[0])
    return rows


def take_rows(rows: Rows, places: Ids) -> Rows:
    """y[n,D] = rows[places[n]]."""
    taken = np.empty((places.size, rows.shape[1]), np.float32)
    _take(rows, places, taken)
    return taken


def take_rows_gradient(dy: Rows, places: Ids, num_rows: int) -> Rows:
    """drows[num_rows,D]: dy[n,D] summed over the places that name a row."""
    drows = np.zeros((num_rows, dy.shape[1]), np.float32)
    _scatter_add(dy, places, drows)
    return drows


def pool_rows(rows: Rows, places: Ids, offsets: Ids, weights: Rows, mean: bool) -> Rows:
    """y[B,D]: each bag's rows summed or averaged, as torch.nn.EmbeddingBag does; bag b is places[offsets[b]:offsets[b+1]].

    `weights`[n] scale the rows of a sum; empty for none.
    """
    pooled = np.zeros((offsets.size, rows.shape[1]), np.float32)
    _pool(rows, places, offsets, weights, mean, pooled)
    return pooled


def pool_rows_gradient(dy: Rows, places: Ids, offsets: Ids, weights: Rows, mean: bool, num_rows: int) -> Rows:
    """drows[num_rows,D] of `pool_rows`, summed over duplicates."""
    drows = np.zeros((num_rows, dy.shape[1]), np.float32)
    _pool_gradient(dy, places, offsets, weights, mean, drows)
    return drows


def pool_weights_gradient(rows: Rows, dy: Rows, places: Ids, offsets: Ids) -> Rows:
    """dweights[n] of a weighted `pool_rows`."""
    dweights = np.zeros(places.size, np.float32)
    _weights_gradient(rows, dy, places, offsets, dweights)
    return dweights


def _slots_for(count: int) -> int:
    """A power of two with at least half of the slots free."""
    return 1 << max(4, (2 * count - 1).bit_length())


def _outside(row: int, ids: Ids, low: int, high: int) -> DataError:
    position = int(np.flatnonzero(ids == row)[0])
    return DataError(f"id {row} at position {position} is outside the table's rows [{low}, {high})")


@njit(nogil=True, cache=True)
def _dedupe(ids, padding_idx, unique, places, slots):  # type: ignore[no-untyped-def]
    mask = slots.size - 1
    count = 0
    for i in range(ids.size):
        key = ids[i]
        if key == padding_idx and padding_idx >= 0:
            places[i] = -1
            continue
        mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
        slot = np.int64(mixed >> np.uint64(20)) & mask
        while slots[slot] >= 0 and unique[slots[slot]] != key:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = count
            unique[count] = key
            count += 1
        places[i] = slots[slot]
    return count


@njit(nogil=True, cache=True)
def _group(unique, bounds, grouped, moved, starts):  # type: ignore[no-untyped-def]
    num_shards = bounds.size - 1
    shard = np.empty(unique.size, np.int64)
    for i in range(unique.size):
        if unique[i] < bounds[0] or unique[i] >= bounds[num_shards]:
            return i
        shard[i] = np.searchsorted(bounds, unique[i], side="right") - 1
        starts[shard[i] + 1] += 1
    for k in range(num_shards):
        starts[k + 1] += starts[k]
    cursor = starts[:num_shards].copy()
    for i in range(unique.size):
        moved[i] = cursor[shard[i]]
        grouped[moved[i]] = unique[i]
        cursor[shard[i]] += 1
    return -1


@njit(nogil=True, cache=True)
def _renumber(places, moved):  # type: ignore[no-untyped-def]
    for i in range(places.size):
        if places[i] >= 0:
            places[i] = moved[places[i]]


@njit(nogil=True, cache=True)
def _gather(table, ids, first_row, rows):  # type: ignore[no-untyped-def]
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return i
        for d in range(table.shape[1]):
            rows[i, d] = table[row, d]
    return -1


@njit(nogil=True, cache=True)
def _take(rows, places, taken):  # type: ignore[no-untyped-def]
    for i in range(places.size):
        place = places[i]
        if place < 0:
            for d in range(rows.shape[1]):
                taken[i, d] = 0.0
        else:
            for d in range(rows.shape[1]):
                taken[i, d] = rows[place, d]


@njit(nogil=True, cache=True)
def _scatter_add(dy, places, drows):  # type: ignore[no-untyped-def]
    for i in range(places.size):
        place = places[i]
        if place >= 0:
            for d in range(dy.shape[1]):
                drows[place, d] += dy[i, d]


@njit(nogil=True, cache=True, inline="always")
def _bag_end(offsets, bag, n):  # type: ignore[no-untyped-def]
    return offsets[bag + 1] if bag + 1 < offsets.size else n


@njit(nogil=True, cache=True, inline="always")
def _bag_scale(places, start, end, mean):  # type: ignore[no-untyped-def]
    if not mean:
        return np.float32(1.0)
    valid = 0
    for i in range(start, end):
        if places[i] >= 0:
            valid += 1
    return np.float32(1.0) / np.float32(max(valid, 1))


@njit(nogil=True, cache=True)
def _pool(rows, places, offsets, weights, mean, pooled):  # type: ignore[no-untyped-def]
    for bag in range(offsets.size):
        start, end = offsets[bag], _bag_end(offsets, bag, places.size)
        scale = _bag_scale(places, start, end, mean)
        for i in range(start, end):
            if places[i] >= 0:
                factor = weights[i] if weights.size else scale
                for d in range(rows.shape[1]):
                    pooled[bag, d] += factor * rows[places[i], d]


@njit(nogil=True, cache=True)
def _pool_gradient(dy, places, offsets, weights, mean, drows):  # type: ignore[no-untyped-def]
    for bag in range(offsets.size):
        start, end = offsets[bag], _bag_end(offsets, bag, places.size)
        scale = _bag_scale(places, start, end, mean)
        for i in range(start, end):
            if places[i] >= 0:
                factor = weights[i] if weights.size else scale
                for d in range(dy.shape[1]):
                    drows[places[i], d] += factor * dy[bag, d]


@njit(nogil=True, cache=True)
def _weights_gradient(rows, dy, places, offsets, dweights):  # type: ignore[no-untyped-def]
    for bag in range(offsets.size):
        for i in range(offsets[bag], _bag_end(offsets, bag, places.size)):
            if places[i] >= 0:
                total = np.float32(0.0)
                for d in range(rows.shape[1]):
                    total += rows[places[i], d] * dy[bag, d]
                dweights[i] = total


@njit(nogil=True, cache=True, fastmath={"contract"})  # one rounding for multiply and add, as in torch
def sgd_rows(table, ids, grads, first_row, lr):  # type: ignore[no-untyped-def]
    """table[id] -= lr * grad, in place; ids are distinct."""
    rate = np.float32(lr)
    for i in range(ids.size):
        row = ids[i] - first_row
        for d in range(table.shape[1]):
            table[row, d] -= rate * grads[i, d]


@njit(nogil=True, cache=True, fastmath={"contract"})  # one rounding for multiply and add, as in torch
def adagrad_rows(table, accumulator, ids, grads, first_row, lr, eps):  # type: ignore[no-untyped-def]
    """torch.optim.Adagrad on the rows of `ids`, in place; accumulator[R,D]."""
    rate, floor = np.float32(lr), np.float32(eps)
    for i in range(ids.size):
        row = ids[i] - first_row
        for d in range(table.shape[1]):
            grad = grads[i, d]
            accumulator[row, d] += grad * grad
            table[row, d] -= rate * grad / (np.sqrt(accumulator[row, d]) + floor)


@njit(nogil=True, cache=True)
def rowwise_adagrad_rows(table, accumulator, ids, grads, first_row, lr, eps):  # type: ignore[no-untyped-def]
    """Row-wise Adagrad, in place: one accumulator[R] per row, of the mean of the squared gradient."""
    floor = np.float32(eps)
    for i in range(ids.size):
        row = ids[i] - first_row
        total = np.float32(0.0)
        for d in range(table.shape[1]):
            total += grads[i, d] * grads[i, d]
        accumulator[row] += total / np.float32(table.shape[1])
        rate = np.float32(lr) / (np.sqrt(accumulator[row]) + floor)
        for d in range(table.shape[1]):
            table[row, d] -= rate * grads[i, d]

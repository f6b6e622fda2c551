"""The hot loops of lookups, over flat arrays: ids and inverse indices int64, rows float32. They hold no lock and no
GIL.

An inverse index of -1 stands for a padding id: it reads zeros, counts for nothing and gets no gradient.

Ids, inverse indices, offsets and rows come from data or by message. A loop gives up, and returns False, before it reads
or writes outside an array; `htrain.ops.sparse_checks` then says what did not fit.
"""

from collections.abc import Sequence

import numpy as np

from htrain.jit import njit
from htrain.ops.sparse_checks import (
    Ids,
    Rows,
    bags_out_of_range,
    fits,
    ids_out_of_range,
    inverse_out_of_range,
    is_list,
    outside,
)

_EMPTY = np.int32(-1)  # a slot without an id
_NO_WEIGHTS = np.empty(0, np.float32)


def dedupe(ids: Ids, padding_idx: int) -> tuple[Ids, Ids]:
    """The distinct ids in order of first appearance, unique[u], and inverse[n]: where among them each id is, -1 for
    `padding_idx`.
    """
    unique = np.empty(ids.size, np.int64)
    inverse = np.empty(ids.size, np.int64)
    slots = np.full(slots_for(ids.size), _EMPTY, np.int32)
    count = _dedupe(ids, padding_idx, unique, inverse, slots)
    return unique[:count], inverse


def dedupe_sharded(ids: Ids, bounds: Sequence[int], padding_idx: int) -> tuple[list[Ids], Ids]:
    """As `dedupe`, the distinct ids grouped by row range [bounds[k], bounds[k+1]): a list for each range.

    Raises DataError for an id outside all ranges.
    """
    unique, inverse = dedupe(ids, padding_idx)
    grouped, moved = np.empty(unique.size, np.int64), np.empty(unique.size, np.int64)
    starts = np.zeros(len(bounds), np.int64)
    bad = _group(unique, np.asarray(bounds, np.int64), grouped, moved, starts)
    if bad >= 0:
        raise outside(unique[bad], ids, bounds[0], bounds[-1])
    _renumber(inverse, moved)
    return [grouped[starts[k] : starts[k + 1]] for k in range(len(bounds) - 1)], inverse


def gather_rows(table: Rows, ids: Ids, first_row: int) -> Rows:
    """rows[u,D] of a shard table[R,D] that starts at `first_row`. Raises DataError for an id outside it."""
    rows = np.empty((ids.size, table.shape[1]), np.float32)
    if not fits(_gather, table, ids, first_row, rows):
        raise ids_out_of_range(ids, rows, table, first_row)
    return rows


def take_rows(rows: Rows, inverse: Ids) -> Rows:
    """y[n,D] = rows[inverse[n]]. Raises DataError for an inverse index that has no row."""
    taken = np.empty((inverse.size, rows.shape[-1]), np.float32)
    if not fits(_take, rows, inverse, taken):
        raise inverse_out_of_range(inverse, rows, taken)
    return taken


def take_rows_gradient(dy: Rows, inverse: Ids, num_rows: int) -> Rows:
    """drows[num_rows,D]: dy[n,D] summed over the inverse indices that name a row. Raises DataError as `take_rows`."""
    drows = np.zeros((num_rows, dy.shape[-1]), np.float32)
    if not fits(_scatter_add, dy, inverse, drows):
        raise inverse_out_of_range(inverse, drows, dy)
    return drows


def pool_rows(rows: Rows, inverse: Ids, offsets: Ids, weights: Rows, mean: bool) -> Rows:
    """y[B,D]: each bag's rows summed or averaged, as torch.nn.EmbeddingBag does; bag b is
    inverse[offsets[b]:offsets[b+1]].

    `weights`[n] scale the rows of a sum; empty for none. Raises DataError for an inverse index that has no row, and for
    offsets that do not ascend from 0 to at most n.
    """
    pooled = np.zeros((offsets.size, rows.shape[-1]), np.float32)
    if not is_list(offsets) or not fits(_pool, rows, inverse, offsets, weights, mean, pooled):
        raise bags_out_of_range(inverse, offsets, weights, rows, pooled)
    return pooled


def pool_rows_gradient(dy: Rows, inverse: Ids, offsets: Ids, weights: Rows, mean: bool, num_rows: int) -> Rows:
    """drows[num_rows,D] of `pool_rows`, summed over duplicates. Raises DataError as it does."""
    drows = np.zeros((num_rows, dy.shape[-1]), np.float32)
    if not is_list(offsets) or not fits(_pool_gradient, dy, inverse, offsets, weights, mean, drows):
        raise bags_out_of_range(inverse, offsets, weights, drows, dy)
    return drows


def pool_weights_gradient(rows: Rows, dy: Rows, inverse: Ids, offsets: Ids) -> Rows:
    """dweights[n] of a weighted `pool_rows`. Raises DataError as it does."""
    dweights = np.zeros(inverse.size, np.float32)
    if not is_list(offsets) or not fits(_weights_gradient, rows, dy, inverse, offsets, dweights):
        raise bags_out_of_range(inverse, offsets, _NO_WEIGHTS, rows, dy)
    return dweights


@njit(nogil=True, cache=True, inline="always")
def slots_for(count):  # type: ignore[no-untyped-def]
    """How many slots the index of `count` ids has: a power of two, at least half of them free."""
    slots = 16
    while slots < 2 * count:
        slots *= 2
    return slots


@njit(nogil=True, cache=True, inline="always")
def slot_of(key, mask):  # type: ignore[no-untyped-def]
    """The slot of an index with `mask` + 1 of them at which an id is looked for first."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(20)) & mask


@njit(nogil=True, cache=True, usual="(i8[:], i8, i8[::1], i8[::1], i4[::1])")
def _dedupe(ids, padding_idx, unique, inverse, slots):  # type: ignore[no-untyped-def]
    mask = slots.size - 1
    count = 0
    for i in range(ids.size):
        key = ids[i]
        if key == padding_idx and padding_idx >= 0:
            inverse[i] = -1
            continue
        slot = slot_of(key, mask)
        while slots[slot] >= 0 and unique[slots[slot]] != key:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = count
            unique[count] = key
            count += 1
        inverse[i] = slots[slot]
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
def _renumber(inverse, moved):  # type: ignore[no-untyped-def]
    for i in range(inverse.size):
        if inverse[i] >= 0:
            inverse[i] = moved[inverse[i]]


@njit(nogil=True, cache=True)
def _gather(table, ids, first_row, rows):  # type: ignore[no-untyped-def]
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return False
        for d in range(table.shape[1]):
            rows[i, d] = table[row, d]
    return True


@njit(nogil=True, cache=True)
def _take(rows, inverse, taken):  # type: ignore[no-untyped-def]
    for i in range(inverse.size):
        place = inverse[i]
        if place >= 0:
            if place >= rows.shape[0]:
                return False
            for d in range(rows.shape[1]):
                taken[i, d] = rows[place, d]
        elif place == -1:
            for d in range(rows.shape[1]):
                taken[i, d] = 0.0
        else:
            return False
    return True


@njit(nogil=True, cache=True)
def _scatter_add(dy, inverse, drows):  # type: ignore[no-untyped-def]
    if dy.shape[0] != inverse.size:
        return False
    for i in range(inverse.size):
        place = inverse[i]
        if place < -1 or place >= drows.shape[0]:
            return False
        if place >= 0:
            for d in range(dy.shape[1]):
                drows[place, d] += dy[i, d]
    return True


@njit(nogil=True, cache=True, inline="always")
def _bags_fit(inverse, offsets, weights, bags):  # type: ignore[no-untyped-def]
    """Whether bags[B,D] has a row per offset and `weights` one per inverse index or none, and offsets ascend from 0 to
    at most n.
    """
    if bags.shape[0] != offsets.size or (weights.size and weights.size != inverse.size):
        return False
    before = 0
    for bag in range(offsets.size):
        if offsets[bag] < before or offsets[bag] > (inverse.size if bag else 0):
            return False
        before = offsets[bag]
    return True


@njit(nogil=True, cache=True, inline="always")
def _bag_end(offsets, bag, n):  # type: ignore[no-untyped-def]
    return offsets[bag + 1] if bag + 1 < offsets.size else n


@njit(nogil=True, cache=True, inline="always")
def _bag_scale(inverse, start, end, mean):  # type: ignore[no-untyped-def]
    if not mean:
        return np.float32(1.0)
    valid = 0
    for i in range(start, end):
        if inverse[i] >= 0:
            valid += 1
    return np.float32(1.0) / np.float32(max(valid, 1))


@njit(nogil=True, cache=True)
def _pool(rows, inverse, offsets, weights, mean, pooled):  # type: ignore[no-untyped-def]
    if not _bags_fit(inverse, offsets, weights, pooled):
        return False
    for bag in range(offsets.size):
        start, end = offsets[bag], _bag_end(offsets, bag, inverse.size)
        scale = _bag_scale(inverse, start, end, mean)
        total = pooled[bag]
        for i in range(start, end):
            place = inverse[i]
            if place < -1 or place >= rows.shape[0]:
                return False
            if place >= 0:
                factor = weights[i] if weights.size else scale
                for d in range(rows.shape[1]):
                    total[d] += factor * rows[place, d]
    return True


@njit(nogil=True, cache=True)
def _pool_gradient(dy, inverse, offsets, weights, mean, drows):  # type: ignore[no-untyped-def]
    if not _bags_fit(inverse, offsets, weights, dy):
        return False
    for bag in range(offsets.size):
        start, end = offsets[bag], _bag_end(offsets, bag, inverse.size)
        scale = _bag_scale(inverse, start, end, mean)
        grad = dy[bag]
        for i in range(start, end):
            place = inverse[i]
            if place < -1 or place >= drows.shape[0]:
                return False
            if place >= 0:
                factor = weights[i] if weights.size else scale
                for d in range(dy.shape[1]):
                    drows[place, d] += factor * grad[d]
    return True


@njit(nogil=True, cache=True, fastmath={"reassoc"})  # a sum in order waits for each of its additions
def _weights_gradient(rows, dy, inverse, offsets, dweights):  # type: ignore[no-untyped-def]
    if not _bags_fit(inverse, offsets, dweights, dy) or rows.shape[1] != dy.shape[1]:
        return False
    for bag in range(offsets.size):
        for i in range(offsets[bag], _bag_end(offsets, bag, inverse.size)):
            place = inverse[i]
            if place < -1 or place >= rows.shape[0]:
                return False
            if place >= 0:
                total = np.float32(0.0)
                for d in range(rows.shape[1]):
                    total += rows[place, d] * dy[bag, d]
                dweights[i] = total
    return True


DEDUPE_LOOPS = (_dedupe,)

"""Where a key is: an open-addressed hash index key -> slot, over one flat array. Numba, nogil.

`index`[2H] holds a pair (key, slot) per place, H a power of two; a slot of -1 is a free place. A pair shares a cache line, probing is linear,
and removal moves what follows back, so that there are no tombstones and a miss ends at the first free place.
"""

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.ops.pointers import prefetch_row

Index = NDArray[np.int64]
_AT_ONCE = 32  # keys whose places are on their way to the processor at once


def new_index(num_slots: int) -> Index:
    """An empty index for `num_slots` keys, at most half full."""
    places = 1 << max(4, (2 * num_slots - 1).bit_length())
    return np.full(2 * places, -1, np.int64)


@njit(nogil=True, cache=True, inline="always")
def home_of(index, key):  # type: ignore[no-untyped-def]
    """The place at which a key would stand if nothing were in its way."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(24)) & (index.size // 2 - 1)


@njit(nogil=True, cache=True, inline="always")
def place_of(index, key):  # type: ignore[no-untyped-def]
    """The place of a key, or the free one at which it would be put."""
    mask = index.size // 2 - 1
    place = home_of(index, key)
    while index[2 * place + 1] >= 0 and index[2 * place] != key:
        place = (place + 1) & mask
    return place


@njit(nogil=True, cache=True)
def find(index, key):  # type: ignore[no-untyped-def]
    """The slot of a key, or -1."""
    mask = index.size // 2 - 1
    place = home_of(index, key)
    while index[2 * place + 1] >= 0:
        if index[2 * place] == key:
            return index[2 * place + 1]
        place = (place + 1) & mask
    return np.int64(-1)


@njit(nogil=True, cache=True)
def insert(index, key, slot):  # type: ignore[no-untyped-def]
    """Add a key that is not there. Requires: a free place."""
    mask = index.size // 2 - 1
    place = home_of(index, key)
    while index[2 * place + 1] >= 0:
        place = (place + 1) & mask
    index[2 * place] = key
    index[2 * place + 1] = slot


@njit(nogil=True, cache=True)
def remove(index, key):  # type: ignore[no-untyped-def]
    """Take out a key that is there; what stands behind it moves up where that brings it nearer to its home."""
    mask = index.size // 2 - 1
    hole = home_of(index, key)
    while index[2 * hole] != key or index[2 * hole + 1] < 0:
        hole = (hole + 1) & mask
    place = (hole + 1) & mask
    while index[2 * place + 1] >= 0:
        home = home_of(index, index[2 * place])
        if ((place - home) & mask) >= ((place - hole) & mask):
            index[2 * hole] = index[2 * place]
            index[2 * hole + 1] = index[2 * place + 1]
            hole = place
        place = (place + 1) & mask
    index[2 * hole + 1] = -1


@njit(nogil=True, cache=True)
def index_all(index, key_of):  # type: ignore[no-untyped-def]
    """Insert every key that has a slot."""
    for slot in range(key_of.size):
        if key_of[slot] >= 0:
            insert(index, key_of[slot], slot)


@njit(nogil=True, cache=True)
def add_counts(index, keys, counts):  # type: ignore[no-untyped-def]
    """Where `slot` is a count: add to that of each key, which may be new. How many were new. Requires: enough free places."""
    added = 0
    for i in range(keys.size):
        place = place_of(index, keys[i])
        if index[2 * place + 1] < 0:
            index[2 * place] = keys[i]
            index[2 * place + 1] = 0
            added += 1
        index[2 * place + 1] += counts[i]
    return added


@njit(nogil=True, cache=True)
def put_all(index, keys, first):  # type: ignore[no-untyped-def]
    """keys[n] have the slots first + n from now on, whichever they had. How many are new. Requires: enough free places."""
    added = 0
    for i in range(keys.size):
        place = place_of(index, keys[i])
        added += index[2 * place + 1] < 0
        index[2 * place] = keys[i]
        index[2 * place + 1] = first + i
    return added


@njit(nogil=True, cache=True)
def find_all(index, keys, slots):  # type: ignore[no-untyped-def]
    """slots[n] of keys[n], -1 for none. How many there are."""
    found = 0
    for start in range(0, keys.size, _AT_ONCE):
        end = min(start + _AT_ONCE, keys.size)
        for i in range(start, end):
            prefetch_row(index.ctypes.data, home_of(index, keys[i]), 16)
        for i in range(start, end):
            slots[i] = find(index, keys[i])
            found += slots[i] >= 0
    return found

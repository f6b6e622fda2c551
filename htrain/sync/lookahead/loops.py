"""The loops of the occupancy table: Numba, nogil, over flat arrays."""

import numpy as np

from htrain.jit import njit
from htrain.ops.pointers import array_at, prefetch_row
from htrain.sync.index import find_all

_AT_ONCE = 32  # keys whose sets are asked for before the first of them is read


@njit(nogil=True, cache=True)
def find_slots(keys_of, ways, sets, keys, slots):  # type: ignore[no-untyped-def]
    """slots[n] of keys[n]. Sets are far apart in memory: those of some keys are on their way to the processor at once."""
    for start in range(0, keys.size, _AT_ONCE):
        end = min(start + _AT_ONCE, keys.size)
        for i in range(start, end):
            slots[i] = (keys[i] % sets) * ways
            prefetch_row(keys_of.ctypes.data, slots[i] // ways, ways * 8)
        for i in range(start, end):
            first = slots[i]
            slots[i] = -1
            for slot in range(first, first + ways):
                if keys_of[slot] == keys[i]:
                    slots[i] = slot
                    break


@njit(nogil=True, cache=True)
def pin_hits(keys_of, pins, ways, sets, window, keys, slots):  # type: ignore[no-untyped-def]
    """slots[n] of keys[n], -1 for a miss; hits are pinned for the window."""
    find_slots(keys_of, ways, sets, keys, slots)
    for i in range(keys.size):
        if slots[i] >= 0:
            pins[slots[i]] = window


@njit(nogil=True, cache=True, inline="always")
def draw(state, below):  # type: ignore[no-untyped-def]
    """A number in [0, below) by xorshift64*; `state`[1] must not be 0."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.int64((x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(33)) % below


@njit(nogil=True, cache=True)
def place_misses(keys_of, pins, ways, sets, window, random, keys, slots, fresh, evicted_keys, evicted_slots):  # type: ignore[no-untyped-def]
    """Give every miss a way of its set: the first behind a random way that is empty, else that is unpinned. How many got one, and were
    evicted."""
    filled = evicted = 0
    for i in range(keys.size):
        if slots[i] >= 0:
            continue
        first = (keys[i] % sets) * ways
        begin = draw(random, ways) if ways > 1 else 0
        chosen = np.int64(-1)
        for k in range(ways):
            way = begin + k
            slot = first + (way - ways if way >= ways else way)
            if keys_of[slot] < 0:
                chosen = slot
                break
            if chosen < 0 and pins[slot] != window:
                chosen = slot
        if chosen < 0:
            continue
        if keys_of[chosen] >= 0:
            evicted_keys[evicted] = keys_of[chosen]
            evicted_slots[evicted] = chosen
            evicted += 1
        keys_of[chosen] = keys[i]
        pins[chosen] = window
        slots[i] = chosen
        fresh[filled] = i
        filled += 1
    return filled, evicted


@njit(nogil=True, cache=True)
def put_right(index, keys, rows, starts, addresses, stale):  # type: ignore[no-untyped-def]
    """Copy to rows[n,W] those of keys[n] that were written back: the rows from position starts[k] on are at addresses[k]. `stale` are those that differed."""
    places = np.empty(keys.size, np.int64)
    if not find_all(index, keys, places):
        return
    for i in range(keys.size):
        if places[i] < starts[0]:
            continue
        part = np.searchsorted(starts, places[i], side="right") - 1
        own = places[i] - starts[part]
        written = array_at(addresses[part], (own + 1, rows.shape[1]), np.float32(0))
        for d in range(rows.shape[1]):
            stale[i] |= rows[i, d] != written[own, d]
            rows[i, d] = written[own, d]

"""The hot loops of a HET client over flat arrays; `htrain.sync.het.client` says what they do and when. Numba, nogil.

`rows`[slots, 2D+S] holds of each row what was fetched, the gradient accumulated since, and the optimizer's state as fetched.
`meta` and `lists` are the policy's (htrain.sync.het.policy).
"""

import numpy as np

from htrain.jit import njit
from htrain.sync.het.policy import (
    AHEAD,
    CURRENT,
    LIST,
    NEWER,
    OLDER,
    PINS,
    START,
    UNLISTED,
    USES,
    forget,
    used,
)
from htrain.sync.index import find, home_of, insert, remove
from htrain.sync.row_steps import step_in_place, stepped

_CHUNK = (
    128  # rows whose memory is asked for together before it is used: a miss of the CPU's caches then costs a fraction
)


@njit(nogil=True, cache=True)
def locate(index, meta, keys, announced, staleness, slots, fetched, checked, clocks, evicted, tally):  # type: ignore[no-untyped-def]
    """Read's first half (Algorithm 2, lines 2 to 10): find and pin every key, and say what is to be asked of the servers.

    `announced` is 1 where the batch was, else 0. slots[u] are the keys' slots, -1 for a miss. fetched and checked get the positions of
    keys to fetch and to check (clocks: the clock each will have when it is read), evicted the slots of rows to evict before they are
    fetched. tally counts hits, misses, and rows that have run out. Returns how many there are of each of the three.
    """
    num_fetched = num_checked = num_evicted = 0
    for i in range(keys.size):
        if i % _CHUNK == 0:
            _touch_homes(index, keys[i : i + _CHUNK])
        slots[i] = find(index, keys[i])
    for i in range(keys.size):
        if i % _CHUNK == 0:
            _touch_lines(meta, slots[i : i + _CHUNK], 0)
        slot = slots[i]
        if slot < 0:
            fetched[num_fetched] = i
            num_fetched += 1
            tally[1] += 1
            continue
        under_way = meta[slot, PINS]
        meta[slot, PINS] += 1
        meta[slot, AHEAD] -= announced
        clock = meta[slot, CURRENT] + under_way
        tally[0] += 1
        if clock - meta[slot, START] <= staleness:
            checked[num_checked] = i
            clocks[num_checked] = clock
            num_checked += 1
            continue
        tally[2] += 1
        fetched[num_fetched] = i
        num_fetched += 1
        evicted[num_evicted] = slot
        num_evicted += 1
    return num_fetched, num_checked, num_evicted


@njit(nogil=True, cache=True)
def _touch_homes(index, keys):  # type: ignore[no-untyped-def]
    seen = np.int64(0)
    for key in keys:
        seen += index[2 * home_of(index, key)]
    return seen


@njit(nogil=True, cache=True)
def _touch_lines(array, slots, first):  # type: ignore[no-untyped-def]
    """Columns from `first` on, a line of 64 bytes at a time."""
    seen = array.dtype.type(0)
    for slot in slots:
        if slot >= 0:
            for d in range(first, array.shape[1], 16):
                seen += array[slot, d]
    return seen


@njit(nogil=True, cache=True)
def _touch_neighbours(meta, slots):  # type: ignore[no-untyped-def]
    seen = np.int64(0)
    for slot in slots:
        seen += meta[max(meta[slot, OLDER], 0), LIST] + meta[max(meta[slot, NEWER], 0), LIST]
    return seen


@njit(nogil=True, cache=True)
def take_out(index, meta, lists, key_of, rows, slots, width, free, num_free, keys, clocks, grads, missed):  # type: ignore[no-untyped-def]
    """Evict: rows leave the cache; of those with updates keys[n], clocks[n] and grads[n,D] are kept to be pushed. (pushed, free slots).

    missed[n,2] gets the key of each, and how many announced batches will miss it.
    """
    pushed = 0
    for i in range(slots.size):
        if i % _CHUNK == 0:
            part = slots[i : i + _CHUNK]
            _touch_homes(index, key_of[part])
            _touch_lines(rows, part, width)
            _touch_neighbours(meta, part)
        slot = slots[i]
        if meta[slot, CURRENT] > meta[slot, START]:
            pushed = _push(
                meta, key_of, rows=rows, slot=slot, width=width, at=pushed, keys=keys, clocks=clocks, grads=grads
            )
        missed[i, 0], missed[i, 1] = key_of[slot], meta[slot, AHEAD]
        remove(index, key_of[slot])
        key_of[slot] = -1
        forget(meta, lists, slot)
        free[num_free] = slot
        num_free += 1
    return pushed, num_free


@njit(nogil=True, cache=True)
def _push(meta, key_of, rows, slot, width, at, keys, clocks, grads):  # type: ignore[no-untyped-def]
    """Copy a row's accumulated gradient; whoever keeps the row forgets it."""
    keys[at] = key_of[slot]
    clocks[at] = meta[slot, CURRENT]
    for d in range(width):
        grads[at, d] = rows[slot, width + d]
    return at + 1


@njit(nogil=True, cache=True)
def push_out(meta, key_of, rows, slots, width, keys, clocks, grads):  # type: ignore[no-untyped-def]
    """Rows that stay, to be fetched anew: their updates are kept to be pushed, as by `take_out`. How many.

    Updates that a batch under way adds until the answer comes are told by the clocks: they were not pushed.
    """
    pushed = 0
    for slot in slots:
        pushed = _push(
            meta, key_of, rows=rows, slot=slot, width=width, at=pushed, keys=keys, clocks=clocks, grads=grads
        )
        rows[slot, width : 2 * width] = 0.0
        meta[slot, START] = meta[slot, CURRENT]
    return pushed


@njit(nogil=True, cache=True)
def push_kept(meta, key_of, rows, slots, width, rule, pinned, keys, clocks, grads):  # type: ignore[no-untyped-def]
    """Rows that stay, and are what their server makes of them: updates since the last push are kept to be pushed, and taken into the row. How many.

    Clocks stay: a row may be read as long as if nothing had been pushed. Those of steps under way are among them where `pinned` says so.
    """
    pushed = 0
    for slot in slots:
        grad = rows[slot, width : 2 * width]
        if (meta[slot, PINS] > 0 and not pinned) or not np.any(grad != 0.0):
            continue
        pushed = _push(
            meta, key_of, rows=rows, slot=slot, width=width, at=pushed, keys=keys, clocks=clocks, grads=grads
        )
        step_in_place(rows[slot, :width], grad, state=rows[slot, 2 * width :], rule=rule)
        grad[:] = 0.0
    return pushed


@njit(nogil=True, cache=True)
def unsent(meta, rows, slots, width):  # type: ignore[no-untyped-def]
    """How many rows have updates that were not pushed."""
    count = 0
    for slot in slots:
        if meta[slot, CURRENT] > meta[slot, START] and np.any(rows[slot, width : 2 * width] != 0.0):
            count += 1
    return count


@njit(nogil=True, cache=True)
def let_go(meta, lists, slots, policy, limit):  # type: ignore[no-untyped-def]
    """Rows that were read and will not be written: they have been used, so that the policy knows them."""
    for slot in slots:
        meta[slot, PINS] -= 1
        used(meta, lists, slot, policy, limit)


@njit(nogil=True, cache=True)
def settle_in(index, meta, key_of, rows, width, free, num_free, keys, ahead, announced, slots):  # type: ignore[no-untyped-def]
    """Give each miss, slots[i] < 0, a free slot, pinned and awaited. How many slots are free then. Requires: enough of them.

    `ahead` counts the announced batches for keys that are not in the cache; from here on the row does.
    """
    for i in range(keys.size):
        if slots[i] >= 0:
            continue
        num_free -= 1
        slot = np.int64(free[num_free])
        slots[i] = slot
        key_of[slot] = keys[i]
        insert(index, keys[i], slot)
        meta[slot, START] = meta[slot, CURRENT] = 0
        meta[slot, PINS] = 1
        meta[slot, USES] = 0
        meta[slot, LIST] = UNLISTED
        meta[slot, AHEAD] = max(find(ahead, keys[i]), 0) - announced
        if announced:
            remove(ahead, keys[i])
        for d in range(width):
            rows[slot, width + d] = 0.0
    return num_free


@njit(nogil=True, cache=True)
def absorb(meta, key_of, rows, width, slots, answers, answer_clocks, refused, rule, keys, clocks, grads):  # type: ignore[no-untyped-def]
    """Fetch's second half: answers[n,D+S] and answer_clocks[n] become the rows of slots[n]; those from `refused` on a server found stale.

    What a batch under way has written to a fetched row since it was asked for stays on top of the answer. A stale row is evicted: its
    updates are kept to be pushed, and taken into the answer meanwhile, which then is what a fetch behind that push would have given.
    How many rows were kept.
    """
    pushed = 0
    for i in range(slots.size):
        slot = slots[i]
        for d in range(width):
            rows[slot, d] = answers[i, d]
        for d in range(rows.shape[1] - 2 * width):
            rows[slot, 2 * width + d] = answers[i, width + d]
        updates = meta[slot, CURRENT] - meta[slot, START]
        if i >= refused and updates > 0:
            grad = rows[slot, width : 2 * width]
            step_in_place(rows[slot, :width], grad, state=rows[slot, 2 * width :], rule=rule)
            pushed = _push(
                meta, key_of, rows=rows, slot=slot, width=width, at=pushed, keys=keys, clocks=clocks, grads=grads
            )
            grad[:] = 0.0
            updates = 0
        meta[slot, START] = answer_clocks[i]
        meta[slot, CURRENT] = answer_clocks[i] + updates
    return pushed


@njit(nogil=True, cache=True)
def read(meta, rows, slots, width, rule, out, ages):  # type: ignore[no-untyped-def]
    """Get: out[u,D], each row with the updates of its own that have not been pushed. ages[a] counts rows read with about 2^a of them."""
    for i in range(slots.size):
        if i % _CHUNK == 0:
            _touch_lines(rows, slots[i : i + _CHUNK], 0)
            _touch_lines(meta, slots[i : i + _CHUNK], 0)
        slot = slots[i]
        updates = meta[slot, CURRENT] - meta[slot, START]
        if updates > 0:
            grad = rows[slot, width : 2 * width]
            stepped(out[i], rows[slot, :width], grad=grad, state=rows[slot, 2 * width :], rule=rule)
        else:
            for d in range(width):
                out[i, d] = rows[slot, d]
        bucket = 0
        while updates > 0 and bucket < ages.size - 1:
            bucket += 1
            updates >>= 1
        ages[bucket] += 1


@njit(nogil=True, cache=True)
def write(meta, lists, rows, slots, width, policy, limit, grads):  # type: ignore[no-untyped-def]
    """Update and Clock (Algorithm 3, lines 1 to 4): grads[u,D] are added to what the rows have accumulated; the rows are let go."""
    for i in range(slots.size):
        if i % _CHUNK == 0:
            _touch_lines(rows, slots[i : i + _CHUNK], width)
            _touch_neighbours(meta, slots[i : i + _CHUNK])
        slot = slots[i]
        for d in range(width):
            rows[slot, width + d] += grads[i, d]
        meta[slot, CURRENT] += 1
        meta[slot, PINS] -= 1
        used(meta, lists, slot, policy, limit)


@njit(nogil=True, cache=True)
def unpinned(meta, slots, out):  # type: ignore[no-untyped-def]
    """Those of slots[n] that nobody has pinned, in out; how many."""
    count = 0
    for slot in slots:
        if meta[slot, PINS] == 0:
            out[count] = slot
            count += 1
    return count


@njit(nogil=True, cache=True)
def announce(index, meta, keys, elsewhere):  # type: ignore[no-untyped-def]
    """A batch with distinct keys will come: rows that are here count it, the other keys go to `elsewhere`; how many those are."""
    count = 0
    for i in range(keys.size):
        slot = find(index, keys[i])
        if slot >= 0:
            meta[slot, AHEAD] += 1
        else:
            elsewhere[count] = keys[i]
            count += 1
    return count

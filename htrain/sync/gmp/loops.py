"""The hot loops of a worker over flat arrays; `htrain.sync.gmp.worker` says what they do and when. Numba, nogil.

`rows`[slots, 2D+S] holds of each row what came of its owner, the gradient of its own updates since that have not left, and the optimizer's state as it
came. `meta`[slots, 6] are the columns below. A row of the worker's own has no slot: -1 - its number stands in the place of one.
"""

import numpy as np

from htrain.jit import njit
from htrain.sync.gmp.messages import ANYHOW
from htrain.sync.index import find, insert, remove
from htrain.sync.row_steps import step_in_place, stepped

SEEN, PENDING, PINS, IS_HERE = range(
    4
)  # updates of the primary in the row, own ones that have not left, steps under way that read it, whether it has come
CAME, SINCE = 4, 5  # the step for which it came last, own updates that were not in what came
COLUMNS = 6
MISSING = np.iinfo(np.int64).min  # in the place of a slot: the row is another's, and has none


@njit(nogil=True, cache=True)
def locate(keys, bounds, servers, first_rows, own, index, slots):  # type: ignore[no-untyped-def]
    """slots[u] of each key: its slot, -1 - row where it is `own`'s, or MISSING. (How many are missing, the place of a key that nobody has or -1)."""
    missing, near = 0, 0
    for i in range(keys.size):
        key = keys[i]
        if key < bounds[0] or key >= bounds[-1]:
            return missing, i
        if not bounds[near] <= key < bounds[near + 1]:
            near = np.searchsorted(bounds, key, side="right") - 1
        if servers[near] == own:
            slots[i] = -1 - (key - bounds[near] + first_rows[near])
            continue
        slot = find(index, key)
        slots[i] = slot if slot >= 0 else MISSING
        missing += slot < 0
    return missing, -1


@njit(nogil=True, cache=True)
def settle(keys, slots, index, meta, key_of, rows, width, free, num_free):  # type: ignore[no-untyped-def]
    """A free slot for each key that has none. How many are free then. Requires: enough of them."""
    for i in range(keys.size):
        if slots[i] != MISSING:
            continue
        num_free -= 1
        slot = free[num_free]
        slots[i] = slot
        key_of[slot] = keys[i]
        insert(index, keys[i], slot)
        meta[slot] = 0
        for d in range(width):
            rows[slot, width + d] = 0.0
    return num_free


@njit(nogil=True, cache=True)
def wanted(slots, forced, meta, num_secondaries, checks, fetched, checked, clocks):  # type: ignore[no-untyped-def]
    """Which rows to ask for, by their places, and pin all; (fetched, checked, of these secondaries whose clock is checked).

    A row that is here for this step alone is fetched; one that another step is about to write, one that has not come yet, and one of `forced`, come
    whatever has been seen of them, with the optimizer's state. Of other secondaries the clock is checked, if `checks`.
    """
    num_fetched = num_checked = intra = 0
    for i in range(slots.size):
        slot = slots[i]
        if slot < 0:
            continue
        under_way = meta[slot, PINS] > 0
        meta[slot, PINS] += 1
        if slot >= num_secondaries and not under_way:
            fetched[num_fetched] = i
            num_fetched += 1
            continue
        anyhow = slot >= num_secondaries or not meta[slot, IS_HERE] or forced[i]
        if anyhow or checks:
            checked[num_checked] = i
            clocks[num_checked] = ANYHOW if anyhow else meta[slot, SEEN]
            num_checked += 1
            intra += not anyhow
    return num_fetched, num_checked, intra


@njit(nogil=True, cache=True)
def push_out(slots, least, num_secondaries, meta, key_of, rows, width, rule, keys, updates, grads):  # type: ignore[no-untyped-def]
    """Of rows[n] that were written those with `least` updates or more that have not left, and all that are no secondaries: keys[n], updates[n] and grads[n,D]
    are to be pushed; the row here takes the step that its primary will take. How many."""
    count = 0
    for slot in slots:
        pending = meta[slot, PENDING]
        if pending == 0 or (pending < least and slot < num_secondaries):
            continue
        grad = rows[slot, width : 2 * width]
        keys[count], updates[count] = key_of[slot], pending
        for d in range(width):
            grads[count, d] = grad[d]
        count += 1
        if meta[slot, IS_HERE]:
            step_in_place(rows[slot, :width], grad, state=rows[slot, 2 * width :], rule=rule)
        grad[:] = 0.0
        meta[slot, SEEN] += pending
        meta[slot, PENDING] = 0
    return count


@njit(nogil=True, cache=True)
def absorb(slots, meta, rows, width, values, states, clocks, num_fetched, now, useful):  # type: ignore[no-untyped-def]
    """Rows that have come for step `now`: values[n,D], of those from `num_fetched` on also states[.,S] and clocks[.]. Updates of its own that have not left
    stay on top.

    useful[i] is whether the i-th of those had been here with fewer updates.
    """
    for i in range(slots.size):
        slot = slots[i]
        for d in range(width):
            rows[slot, d] = values[i, d]
        at = i - num_fetched
        if at < 0:
            continue
        for d in range(states.shape[1]):
            rows[slot, 2 * width + d] = states[at, d]
        useful[at] = meta[slot, IS_HERE] and clocks[at] > meta[slot, SEEN]
        meta[slot, SEEN] = clocks[at]
        meta[slot, IS_HERE] = 1
        meta[slot, CAME], meta[slot, SINCE] = now, meta[slot, PENDING]


@njit(nogil=True, cache=True)
def read(slots, meta, rows, width, rule, out):  # type: ignore[no-untyped-def]
    """out[u,D] of rows that have a slot, each with its own updates that have not left."""
    for i in range(slots.size):
        slot = slots[i]
        if slot < 0:
            continue
        if meta[slot, PENDING] > 0:
            grad = rows[slot, width : 2 * width]
            stepped(out[i], rows[slot, :width], grad=grad, state=rows[slot, 2 * width :], rule=rule)
        else:
            for d in range(width):
                out[i, d] = rows[slot, d]


@njit(nogil=True, cache=True)
def write(slots, num_secondaries, meta, rows, width, grads, written):  # type: ignore[no-untyped-def]
    """grads[u,D] are added to what rows with a slot have; written[n] get the slots of these, and how many they are."""
    count = 0
    for i in range(slots.size):
        slot = slots[i]
        if slot < 0:
            continue
        for d in range(width):
            rows[slot, width + d] += grads[i, d]
        meta[slot, PENDING] += 1
        meta[slot, SINCE] += 1
        meta[slot, PINS] -= 1
        written[count] = slot
        count += 1
    return count


@njit(nogil=True, cache=True)
def let_go(slots, num_secondaries, index, meta, key_of, free, num_free):  # type: ignore[no-untyped-def]
    """Free the slots of rows that were here for a step, and that no other reads. Requires: their updates have left. How many slots are free then."""
    for slot in slots:
        if slot >= num_secondaries and meta[slot, PINS] == 0 and key_of[slot] >= 0:
            remove(index, key_of[slot])
            key_of[slot] = -1
            free[num_free] = slot
            num_free += 1
    return num_free


@njit(nogil=True, cache=True)
def too_far(samples, slots, num_secondaries, meta, now, own_updates, updates, staleness, forced):  # type: ignore[no-untyped-def]
    """Mark in forced[u] the secondaries that are behind another row of one of samples[b,f], places among the batch's keys or -1 (HET-GMP 5.3, inter).

    Rows i and j of a sample whose primaries are to have p_i and p_j updates a step are too far from each other where min(p_i, p_j) |t_i - t_j| > staleness,
    t = c / p the step to which a row's clock has come. Clocks run from when a row came last, so that an error of p does not add up: a secondary that came for
    step t and has had u updates here that were not in it is at step t + u / p, if not at `now`, and primaries of its own are at `now`. Only rows that are here
    have a clock: these, whose `own_updates` are expected, and secondaries that have come, with `updates`. (Pairs compared, rows marked).
    """
    pairs = marked = 0
    fields = samples.shape[1]
    steps, expected = np.empty(fields), np.empty(fields)
    for b in range(samples.shape[0]):
        replicas = 0
        for f in range(fields):
            expected[f] = 0.0
            place = samples[b, f]
            if place < 0:
                continue
            slot = slots[place]
            if slot < 0 and slot != MISSING:
                expected[f], steps[f] = own_updates[-1 - slot], now
            elif 0 <= slot < num_secondaries and meta[slot, IS_HERE]:
                expected[f] = updates[slot]
                if expected[f] > 0:
                    steps[f] = min(np.float64(now), meta[slot, CAME] + meta[slot, SINCE] / expected[f])
                replicas += not forced[place]
        if replicas == 0:
            continue
        for f in range(fields):
            place = samples[b, f]
            if place < 0 or not 0 <= slots[place] < num_secondaries or expected[f] <= 0 or forced[place]:
                continue
            for g in range(fields):
                if g == f or expected[g] <= 0:
                    continue
                pairs += 1
                if min(expected[f], expected[g]) * (steps[g] - steps[f]) > staleness:
                    forced[place] = True
                    marked += 1
                    break
    return pairs, marked

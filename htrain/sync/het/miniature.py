"""A miniature of HET's caches: which rows stay and what they exchange, for rows of no width and for many bounds of staleness at once. Numba, nogil.

Clients and servers are those of `htrain.sync.het.client` and `server`, with the same policies (`htrain.sync.het.policy`), step by step as all trainers take them in
turns. What makes it small: every row that a trainer ever asks for has a slot of its own, so that nothing is looked up by a key, and nothing is copied. A row
that has run out of staleness, or is too old for its server, is fetched where it is. Which rows stay therefore does not depend on the bound, and
one pass counts for all of them; `start`, `current` and `known` are the clocks c_s, c_c and c_g of each bound.

Without a bound of 0: such a cache holds nothing, and there is nothing to play.
"""

import numpy as np
from numba import njit

from htrain.sync.accesses import Accesses, Exchanged, Play, Size
from htrain.sync.het.policy import AHEAD, FIRST_LIMIT, LIGHT_LFU, LIST, PINS, POLICIES, UNLISTED, USES, bring_back, choose_victims, forget, new_lists, used  # fmt: skip

_SPARE_LISTS = 4  # that new_lists has beyond the rows
_HERE, _FETCHED, _NOT_STALE = np.int8(0), np.int8(1), np.int32(-1)


def exchanged(accesses: Accesses, play: Play, size: Size) -> Exchanged:
    """Play caches of a size on all trainers. Requires: one of the policies of `htrain.sync.het.policy`."""
    slots, bounds = len(accesses.rows), np.array(play.bounds, np.int32)
    meta = np.zeros((slots, 8), np.int32)
    meta[:, LIST] = UNLISTED
    lists = np.concatenate([new_lists(int(n)) for n in np.diff(accesses.first)])
    counts = [np.zeros((accesses.num_parts, width), np.int64) for width in (2, len(bounds), len(bounds))]
    clocks = [np.zeros((rows, len(bounds)), np.int32) for rows in (slots, slots, accesses.num_rows)]
    together = np.diff(accesses.starts).reshape(-1, accesses.trainers).sum(1)
    answers = np.empty((int(together.max(initial=0)), len(bounds)), np.int32)
    _play(
        accesses.slots, accesses.starts, accesses.first, accesses.rows, accesses.parts, play.epochs, play.counted,
        meta, lists, np.zeros(slots, np.bool_), *clocks, answers, np.empty(answers.shape, np.int8),
        size.capacity, POLICIES[size.policy], size.window, bounds, play.ahead, *counts,
    )  # fmt: skip
    return Exchanged(counts[0][:, 0], counts[0][:, 1], counts[1], counts[2])


@njit(nogil=True, cache=True)
def _play(slots, starts, first, rows, parts, epochs, first_counted, meta, lists, is_in, start, current, known, answers, kinds, capacity, policy, window, bounds, ahead, counts, run_out, stale):  # type: ignore[no-untyped-def]  # fmt: skip
    """All batches, from empty caches on. As in `htrain.simulation.strategies.het`, every trainer asks; servers, which have heard all of them, answer; the batch
    before is written; and then what was answered is read."""
    trainers = first.size - 1
    rounds = (starts.size - 1) // trainers
    limits = np.full(trainers, FIRST_LIMIT, np.int64)
    held = np.zeros(trainers, np.int64)
    told, open_before = 0, -1
    for number in range(epochs * rounds):
        counted = number >= first_counted
        at = (number % rounds) * trainers
        while window > 1 and told < min(epochs * rounds, number + window):
            for slot in slots[starts[told % rounds * trainers] : starts[(told % rounds + 1) * trainers]]:
                meta[slot, AHEAD] += 1
            told += 1
        begin = starts[at]
        for t in range(trainers):
            mine = slice(starts[at + t] - begin, starts[at + t + 1] - begin)
            batch = slots[starts[at + t] : starts[at + t + 1]]
            missed = _ask(batch, rows, parts, meta, is_in, start, current, known, kinds[mine], bounds, window > 1, counted, counts, run_out)
            own = lists[first[t] + _SPARE_LISTS * t : first[t + 1] + _SPARE_LISTS * (t + 1)]
            room = (first[t], first[t + 1], rows, parts, meta, own, is_in, start, current, known, policy, counted, counts)
            left, limits[t] = _make_room(held[t] + missed - capacity, limits[t], *room)
            held[t] += missed - left
            _settle_in(batch, meta, is_in, start, current)
        asked = slots[begin : starts[at + trainers]]
        _answer(asked, rows, parts, meta, current, known, answers, kinds, bounds, counted, stale)
        if not ahead:
            _take(asked, rows, start, current, known, answers, kinds)
        written = number if not ahead else open_before
        if written >= 0:
            for t in range(trainers):
                place = written % rounds * trainers + t
                own = lists[first[t] + _SPARE_LISTS * t : first[t + 1] + _SPARE_LISTS * (t + 1)]
                _write(slots[starts[place] : starts[place + 1]], meta, own, current, policy, limits[t])
                room = (first[t], first[t + 1], rows, parts, meta, own, is_in, start, current, known, policy, counted, counts)
                left, limits[t] = _make_room(held[t] - capacity, limits[t], *room)
                held[t] -= left
        if ahead:
            _take(asked, rows, start, current, known, answers, kinds)
        open_before = number


@njit(nogil=True, cache=True)
def _ask(batch, rows, parts, meta, is_in, start, current, known, kinds, bounds, announced, counted, counts, run_out):  # type: ignore[no-untyped-def]
    """Find and pin (Algorithm 2): kinds[i, b] says what is asked for under each bound. What has run out is pushed. How many are not here."""
    missed = 0
    for i in range(batch.size):
        slot = batch[i]
        meta[slot, AHEAD] -= announced
        if not is_in[slot]:
            missed += 1
            kinds[i] = _FETCHED
            continue
        under_way = meta[slot, PINS]
        meta[slot, PINS] += 1
        counts[parts[slot], 0] += counted
        for b in range(bounds.size):
            kinds[i, b] = _HERE
            if current[slot, b] + under_way - start[slot, b] > bounds[b]:
                known[rows[slot], b] = max(known[rows[slot], b], current[slot, b])
                start[slot, b] = current[slot, b]
                kinds[i, b] = _FETCHED
                run_out[parts[slot], b] += counted
    return missed


@njit(nogil=True, cache=True)
def _settle_in(batch, meta, is_in, start, current):  # type: ignore[no-untyped-def]
    for slot in batch:
        if not is_in[slot]:
            is_in[slot] = True
            start[slot] = 0
            current[slot] = 0
            meta[slot, PINS] = 1
            meta[slot, USES] = 0
            meta[slot, LIST] = UNLISTED


@njit(nogil=True, cache=True)
def _answer(asked, rows, parts, meta, current, known, answers, kinds, bounds, counted, stale):  # type: ignore[no-untyped-def]
    """The servers' clocks of what is fetched, and of what they find stale: c_g > c_c + s, c_c being that with which the row will be read."""
    for i in range(asked.size):
        slot = asked[i]
        under_way = meta[slot, PINS] - 1
        for b in range(bounds.size):
            clock = known[rows[slot], b]
            is_stale = kinds[i, b] == _HERE and clock > current[slot, b] + under_way + bounds[b]
            stale[parts[slot], b] += is_stale and counted
            answers[i, b] = clock if is_stale or kinds[i, b] == _FETCHED else _NOT_STALE


@njit(nogil=True, cache=True)
def _take(asked, rows, start, current, known, answers, kinds):  # type: ignore[no-untyped-def]
    """Answers become the rows' clocks; what a batch under way has added to a fetched row stays on top, that of a stale one is pushed."""
    for i in range(asked.size):
        slot = asked[i]
        for b in range(answers.shape[1]):
            if answers[i, b] == _NOT_STALE:
                continue
            updates = current[slot, b] - start[slot, b]
            if kinds[i, b] == _HERE and updates > 0:
                known[rows[slot], b] = max(known[rows[slot], b], current[slot, b])
                updates = 0
            start[slot, b] = answers[i, b]
            current[slot, b] = answers[i, b] + updates


@njit(nogil=True, cache=True)
def _write(batch, meta, lists, current, policy, limit):  # type: ignore[no-untyped-def]
    for slot in batch:
        for b in range(current.shape[1]):
            current[slot, b] += 1
        meta[slot, PINS] -= 1
        used(meta, lists, slot, policy, limit)


@njit(nogil=True, cache=True)
def _make_room(surplus, limit, first, end, rows, parts, meta, lists, is_in, start, current, known, policy, counted, counts):  # type: ignore[no-untyped-def]
    """Evict `surplus` rows by the policy, as far as there are any that may go; how many have gone, and light-LFU's limit."""
    gone, spare = 0, True
    while gone < surplus:
        victims = np.empty(surplus - gone, np.int64)
        chosen = choose_victims(meta, lists, policy, victims.size, spare, victims)
        for slot in victims[:chosen]:
            for b in range(current.shape[1]):
                if current[slot, b] > start[slot, b]:
                    known[rows[slot], b] = max(known[rows[slot], b], current[slot, b])
            is_in[slot] = False
            forget(meta, lists, slot)
            counts[parts[slot], 1] += counted
        gone += chosen
        if gone < surplus:
            back = np.int64(0)
            if policy == LIGHT_LFU:
                back = bring_back(meta, lists, first + np.flatnonzero(is_in[first:end]), limit)
            if back:
                limit = back
            elif spare:
                spare = False
            else:
                break
    return gone, limit

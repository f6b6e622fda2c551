"""A miniature of HET's caches: which rows stay and what they exchange, for rows of no width and for many bounds of
staleness at once. Numba, nogil.

Clients and servers are those of `htrain.sync.het.client` and `server`, with the same policies
(`htrain.sync.het.policy`), step by step as all trainers take them in turns. What makes it small: every row that a
trainer ever asks for has a slot of its own, so that nothing is looked up by a key, and nothing is copied. A row that
has run out of staleness, or is too old for its server, is fetched where it is. Which rows stay therefore does not
depend on the bound, and one pass counts for all of them. Without a bound of 0: such a cache holds nothing, and there
is nothing to play.

`meta`[slots, 16 or more] has the columns of the policy; in place of its two clocks those below, and behind them c_s
and c_c of each bound. `known`[rows, bounds] is c_g. One trainer alone never finds a row that is too old for its
server, and its servers have no say.
"""

import numpy as np

from htrain.jit import njit
from htrain.sync.accesses import Accesses, Exchanged, Play, Size
from htrain.sync.het.policy import (
    AHEAD,
    CURRENT,
    FIRST_LIMIT,
    LIGHT_LFU,
    LIST,
    PINS,
    POLICIES,
    START,
    UNLISTED,
    USES,
    Meta,
    bring_back,
    choose_victims,
    forget,
    new_lists,
    used,
)

ROW, PART = START, CURRENT  # of all rows, and of the counts
IS_IN, CLOCKS = 8, 9  # behind the policy's; c_s and c_c of bound b are columns CLOCKS + 2 b and the next
_LINE = 16  # numbers of a line of the CPU's caches
_SPARE_LISTS = 4  # that new_lists has beyond the rows
_HERE, _FETCHED, _NOT_STALE = np.int8(0), np.int8(1), np.int32(-1)


def exchanged(accesses: Accesses, play: Play, size: Size) -> Exchanged:
    """Play caches of a size on all trainers. Requires: one of the policies of `htrain.sync.het.policy`."""
    bounds = np.array(play.bounds, np.int32)
    lists = np.concatenate([new_lists(int(n)) for n in np.diff(accesses.first)])
    counts = [np.zeros((accesses.num_parts, width), np.int64) for width in (2, len(bounds), len(bounds))]
    together = np.diff(accesses.starts).reshape(-1, accesses.trainers).sum(1)
    answers = np.empty((int(together.max(initial=0)), len(bounds)), np.int32)
    _play(
        accesses.slots, accesses.starts, accesses.first, epochs=play.epochs, first_counted=play.counted,
        meta=_new_meta(accesses, len(bounds)), lists=lists, known=np.zeros((accesses.num_rows, len(bounds)), np.int32),
        answers=answers, kinds=np.empty(answers.shape, np.int8), capacity=size.capacity, policy=POLICIES[size.policy],
        window=size.window, bounds=bounds, ahead=play.ahead, counts=counts[0], run_out=counts[1], stale=counts[2],
    )  # fmt: skip
    return Exchanged(counts[0][:, 0], counts[0][:, 1], counts[1], counts[2])


def _new_meta(accesses: Accesses, num_bounds: int) -> Meta:
    columns = -(-(CLOCKS + 2 * num_bounds) // _LINE) * _LINE
    meta = np.zeros((len(accesses.rows), columns), np.int32)
    meta[:, ROW], meta[:, PART], meta[:, LIST] = accesses.rows, accesses.parts, UNLISTED
    return meta


@njit(nogil=True, cache=True)
def _play(  # type: ignore[no-untyped-def]
    slots, starts, first, epochs, first_counted, meta, lists, known, answers, kinds, capacity, policy, window, bounds, ahead, counts, run_out, stale
):  # fmt: skip
    """All batches, from empty caches on. As in `htrain.simulation.strategies.het`, every trainer asks; servers, which
    have heard all of them, answer; the batch before is written; and then what was answered is read."""
    trainers = first.size - 1
    rounds = (starts.size - 1) // trainers
    limits, held = np.full(trainers, FIRST_LIMIT, np.int64), np.zeros(trainers, np.int64)
    told, unwritten = 0, -1
    for number in range(epochs * rounds):
        counted = np.int64(number >= first_counted)
        at = number % rounds * trainers
        until = min(epochs * rounds, number + window) if window > 1 else 0
        _announce(slots, starts, trainers=trainers, told=told, until=until, meta=meta)
        told = max(told, until)
        asked, of_round = slots[starts[at] : starts[at + trainers]], starts[at : at + trainers + 1]
        _ask_all(
            slots, of_round, first, limits=limits, held=held, meta=meta, lists=lists, known=known, kinds=kinds, capacity=capacity,
            policy=policy, announced=window > 1, bounds=bounds, counted=counted, counts=counts, run_out=run_out,
        )  # fmt: skip
        if trainers > 1:
            _answer(asked, meta, known, answers=answers, kinds=kinds, bounds=bounds, counted=counted, stale=stale)
        if trainers > 1 and not ahead:
            _take(asked, meta, known, answers, kinds)
        written = (unwritten if ahead else number) % rounds * trainers
        if not ahead or unwritten >= 0:
            _write_all(
                slots, starts[written : written + trainers + 1], first, limits=limits, held=held, meta=meta, lists=lists, known=known,
                capacity=capacity, policy=policy, counted=counted, counts=counts,
            )  # fmt: skip
        if trainers > 1 and ahead:
            _take(asked, meta, known, answers, kinds)
        unwritten = number


@njit(nogil=True, cache=True)
def _ask_all(  # type: ignore[no-untyped-def]
    slots, starts, first, limits, held, meta, lists, known, kinds, capacity, policy, announced, bounds, counted, counts, run_out
):  # fmt: skip
    """Every trainer t asks for slots[starts[t]:starts[t+1]], and makes room for what is not here."""
    for t in range(limits.size):
        batch, of_batch = slots[starts[t] : starts[t + 1]], kinds[starts[t] - starts[0] : starts[t + 1] - starts[0]]
        missed = _ask(
            batch, meta, known, kinds=of_batch, bounds=bounds, announced=announced, counted=counted, counts=counts, run_out=run_out
        )  # fmt: skip
        gone, limits[t] = _make_room(
            held[t] + missed - capacity, limits[t], span=(first[t], first[t + 1]), meta=meta, lists=_lists_of(lists, first, t),
            known=known, policy=policy, counted=counted, counts=counts,
        )  # fmt: skip
        held[t] += missed - gone
        _settle_in(batch, meta)


@njit(nogil=True, cache=True)
def _write_all(slots, starts, first, limits, held, meta, lists, known, capacity, policy, counted, counts):  # type: ignore[no-untyped-def]
    """Every trainer t writes slots[starts[t]:starts[t+1]], and gives up what is over its capacity."""
    for t in range(limits.size):
        own = _lists_of(lists, first, t)
        batch = slots[starts[t] : starts[t + 1]]
        _write(batch, meta, own, num_bounds=known.shape[1], policy=policy, limit=limits[t])
        gone, limits[t] = _make_room(
            held[t] - capacity, limits[t], span=(first[t], first[t + 1]), meta=meta, lists=own, known=known, policy=policy,
            counted=counted, counts=counts,
        )  # fmt: skip
        held[t] -= gone


@njit(nogil=True, cache=True)
def _announce(slots, starts, trainers, told, until, meta):  # type: ignore[no-untyped-def]
    """Batches from number `told` to `until` will come: their rows are to be spared."""
    rounds = (starts.size - 1) // trainers
    for number in range(told, until):
        place = number % rounds * trainers
        for slot in slots[starts[place] : starts[place + trainers]]:
            meta[slot, AHEAD] += 1


@njit(nogil=True, cache=True)
def _lists_of(lists, first, t):  # type: ignore[no-untyped-def]
    return lists[first[t] + _SPARE_LISTS * t : first[t + 1] + _SPARE_LISTS * (t + 1)]


@njit(nogil=True, cache=True)
def _ask(batch, meta, known, kinds, bounds, announced, counted, counts, run_out):  # type: ignore[no-untyped-def]
    """Find and pin (Algorithm 2): kinds[i, b] says what is asked for under each bound. What has run out is pushed.
    How many are not here."""
    missed = 0
    for i in range(batch.size):
        slot = batch[i]
        meta[slot, AHEAD] -= announced
        if not meta[slot, IS_IN]:
            missed += 1
            kinds[i] = _FETCHED
            continue
        under_way = meta[slot, PINS]
        meta[slot, PINS] += 1
        counts[meta[slot, PART], 0] += counted
        for b in range(bounds.size):
            kinds[i, b] = _HERE
            start, current = meta[slot, CLOCKS + 2 * b], meta[slot, CLOCKS + 2 * b + 1]
            if current + under_way - start > bounds[b]:
                known[meta[slot, ROW], b] = max(known[meta[slot, ROW], b], current)
                meta[slot, CLOCKS + 2 * b] = current
                kinds[i, b] = _FETCHED
                run_out[meta[slot, PART], b] += counted
    return missed


@njit(nogil=True, cache=True)
def _settle_in(batch, meta):  # type: ignore[no-untyped-def]
    for slot in batch:
        if not meta[slot, IS_IN]:
            meta[slot, IS_IN] = 1
            meta[slot, CLOCKS:] = 0
            meta[slot, PINS] = 1
            meta[slot, USES] = 0
            meta[slot, LIST] = UNLISTED


@njit(nogil=True, cache=True)
def _answer(asked, meta, known, answers, kinds, bounds, counted, stale):  # type: ignore[no-untyped-def]
    """The servers' clocks of what is fetched, and of what they find stale: c_g > c_c + s, c_c being that with which
    the row will be read."""
    for i in range(asked.size):
        slot = asked[i]
        under_way = meta[slot, PINS] - 1
        for b in range(bounds.size):
            clock = known[meta[slot, ROW], b]
            is_stale = kinds[i, b] == _HERE and clock > meta[slot, CLOCKS + 2 * b + 1] + under_way + bounds[b]
            stale[meta[slot, PART], b] += is_stale and counted
            answers[i, b] = clock if is_stale or kinds[i, b] == _FETCHED else _NOT_STALE


@njit(nogil=True, cache=True)
def _take(asked, meta, known, answers, kinds):  # type: ignore[no-untyped-def]
    """Answers become the rows' clocks; what a batch under way has added to a fetched row stays on top, that of a
    stale one is pushed."""
    for i in range(asked.size):
        slot = asked[i]
        for b in range(answers.shape[1]):
            if answers[i, b] == _NOT_STALE:
                continue
            current = meta[slot, CLOCKS + 2 * b + 1]
            updates = current - meta[slot, CLOCKS + 2 * b]
            if kinds[i, b] == _HERE and updates > 0:
                known[meta[slot, ROW], b] = max(known[meta[slot, ROW], b], current)
                updates = 0
            meta[slot, CLOCKS + 2 * b] = answers[i, b]
            meta[slot, CLOCKS + 2 * b + 1] = answers[i, b] + updates


@njit(nogil=True, cache=True)
def _write(batch, meta, lists, num_bounds, policy, limit):  # type: ignore[no-untyped-def]
    for slot in batch:
        for b in range(num_bounds):
            meta[slot, CLOCKS + 2 * b + 1] += 1
        meta[slot, PINS] -= 1
        used(meta, lists, slot, policy, limit)


@njit(nogil=True, cache=True)
def _make_room(surplus, limit, span, meta, lists, known, policy, counted, counts):  # type: ignore[no-untyped-def]
    """Evict `surplus` rows by the policy, as far as there are any that may go; how many have gone, and light-LFU's
    limit."""
    gone, spare = 0, True
    while gone < surplus:
        victims = np.empty(surplus - gone, np.int64)
        chosen = choose_victims(meta, lists, policy=policy, wanted=victims.size, spare=spare, victims=victims)
        for slot in victims[:chosen]:
            _evict(slot, meta, lists, known)
            counts[meta[slot, PART], 1] += counted
        gone += chosen
        if gone < surplus:
            back = np.int64(0)
            if policy == LIGHT_LFU:
                back = bring_back(meta, lists, span[0] + np.flatnonzero(meta[span[0] : span[1], IS_IN]), limit)
            if back:
                limit = back
            elif spare:
                spare = False
            else:
                break
    return gone, limit


@njit(nogil=True, cache=True)
def _evict(slot, meta, lists, known):  # type: ignore[no-untyped-def]
    for b in range(known.shape[1]):
        start, current = meta[slot, CLOCKS + 2 * b], meta[slot, CLOCKS + 2 * b + 1]
        if current > start:
            known[meta[slot, ROW], b] = max(known[meta[slot, ROW], b], current)
    meta[slot, IS_IN] = 0
    forget(meta, lists, slot)

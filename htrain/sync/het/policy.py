"""Which row leaves next: LRU, LFU and light-LFU (HET 4.3), in O(1) amortised per access, over flat arrays. Numba, nogil.

Rows are linked in lists, oldest first. LRU has one list. LFU has a list per frequency, the lists linked in order of frequency, so that
an access moves a row to the next list. light-LFU takes a row out of the lists for good once it has been used `limit` times: from then on
an access only counts. The lists then hold every row that was used less often, and the next to leave is LFU's. Should they run dry, the
limit doubles and the rows below it come back. A policy of a user's own has no lists (htrain.sync.het.scored).

`meta`[slots, 8] has a line of 32 bytes per row, see the columns below; `lists`[n, 5] a line per list. List 0 is LRU's, and the
anchor of LFU's; a free list is linked by ABOVE behind list 1.
"""

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit

START, CURRENT, PINS, USES, OLDER, NEWER, LIST, AHEAD = range(
    8
)  # columns of meta; AHEAD: announced batches that will use the row
OLDEST, NEWEST, COUNT, BELOW, ABOVE = range(5)  # columns of lists; COUNT: the uses of its rows
LRU, LFU, LIGHT_LFU, SCORED = range(4)
POLICIES = {"lru": LRU, "lfu": LFU, "light-lfu": LIGHT_LFU}
FIRST_LIMIT = 16
UNLISTED = -1

Meta = NDArray[np.int32]
Lists = NDArray[np.int32]


def new_lists(num_slots: int) -> Lists:
    """Empty lists for `num_slots` rows."""
    lists = np.full((num_slots + 4, 5), -1, np.int32)
    lists[0, COUNT] = 0
    lists[1:-1, ABOVE] = np.arange(2, len(lists))
    return lists


@njit(nogil=True, cache=True)
def _append(meta, lists, at, slot):  # type: ignore[no-untyped-def]
    last = lists[at, NEWEST]
    meta[slot, OLDER] = last
    meta[slot, NEWER] = -1
    meta[slot, LIST] = at
    if last >= 0:
        meta[last, NEWER] = slot
    else:
        lists[at, OLDEST] = slot
    lists[at, NEWEST] = slot


@njit(nogil=True, cache=True)
def _unlink(meta, lists, slot):  # type: ignore[no-untyped-def]
    at, older, newer = meta[slot, LIST], meta[slot, OLDER], meta[slot, NEWER]
    if older >= 0:
        meta[older, NEWER] = newer
    else:
        lists[at, OLDEST] = newer
    if newer >= 0:
        meta[newer, OLDER] = older
    else:
        lists[at, NEWEST] = older
    meta[slot, LIST] = UNLISTED
    if at > 0 and lists[at, OLDEST] < 0:
        _free_list(lists, at)


@njit(nogil=True, cache=True)
def _free_list(lists, at):  # type: ignore[no-untyped-def]
    below, above = lists[at, BELOW], lists[at, ABOVE]
    lists[below, ABOVE] = above
    if above >= 0:
        lists[above, BELOW] = below
    lists[at, ABOVE] = lists[1, ABOVE]
    lists[1, ABOVE] = at


@njit(nogil=True, cache=True)
def _list_above(lists, below, count):  # type: ignore[no-untyped-def]
    """The list of rows used `count` times: the one above list `below`, or a new one there."""
    above = lists[below, ABOVE]
    if above >= 0 and lists[above, COUNT] == count:
        return above
    new = lists[1, ABOVE]
    lists[1, ABOVE] = lists[new, ABOVE]
    lists[new, OLDEST] = lists[new, NEWEST] = -1
    lists[new, COUNT] = count
    lists[new, BELOW] = below
    lists[new, ABOVE] = above
    lists[below, ABOVE] = new
    if above >= 0:
        lists[above, BELOW] = new
    return new


@njit(nogil=True, cache=True)
def used(meta, lists, slot, policy, limit):  # type: ignore[no-untyped-def]
    """A row has been used once more; or for the first time, and then it enters the lists. Of a SCORED one `limit` is the present step, which is noted."""
    meta[slot, USES] += 1
    at = meta[slot, LIST]
    count = meta[slot, USES]
    if policy == SCORED:
        lists[slot, NEWEST] = limit
        if count == 1:
            lists[slot, OLDEST] = limit
        return
    if policy == LRU:
        if at != UNLISTED:
            _unlink(meta, lists, slot)
        _append(meta, lists, 0, slot)
        return
    if at == UNLISTED:
        if count == 1:
            _append(meta, lists, _list_above(lists, 0, 1), slot)
        return
    if policy == LIGHT_LFU and count >= limit:
        _unlink(meta, lists, slot)
        return
    if (
        lists[at, OLDEST] == slot and lists[at, NEWEST] == slot
    ):  # alone: its list moves on with it, or it joins the next
        above = lists[at, ABOVE]
        if above < 0 or lists[above, COUNT] != count:
            lists[at, COUNT] = count
            return
    above = _list_above(lists, at, count)
    _unlink(meta, lists, slot)
    _append(meta, lists, above, slot)


@njit(nogil=True, cache=True)
def forget(meta, lists, slot):  # type: ignore[no-untyped-def]
    """A row leaves the cache."""
    if meta[slot, LIST] != UNLISTED:
        _unlink(meta, lists, slot)
    meta[slot, USES] = 0


@njit(nogil=True, cache=True)
def choose_victims(meta, lists, policy, wanted, spare, victims):  # type: ignore[no-untyped-def]
    """Up to `wanted` rows in the order in which the policy gives them up; how many there are.

    Rows that are pinned are passed over, and with `spare` those that announced batches will use, too. What is passed over goes to the new
    end of its list, so that it is not met again soon.
    """
    count = 0
    at = np.int64(0) if policy == LRU else np.int64(lists[0, ABOVE])
    while at >= 0 and count < wanted:
        last = np.int64(lists[at, NEWEST])
        slot = np.int64(lists[at, OLDEST])
        while slot >= 0 and count < wanted:
            newer = np.int64(meta[slot, NEWER])
            is_last = slot == last
            if meta[slot, PINS] == 0 and not (spare and meta[slot, AHEAD] > 0):
                victims[count] = slot
                count += 1
            elif newer >= 0:
                _move_to_new_end(meta, lists, at, slot)
            slot = np.int64(-1) if is_last else newer
        at = np.int64(-1) if policy == LRU else np.int64(lists[at, ABOVE])
    return count


@njit(nogil=True, cache=True)
def _move_to_new_end(meta, lists, at, slot):  # type: ignore[no-untyped-def]
    """Requires: a row behind it."""
    older, newer = meta[slot, OLDER], meta[slot, NEWER]
    if older >= 0:
        meta[older, NEWER] = newer
    else:
        lists[at, OLDEST] = newer
    meta[newer, OLDER] = older
    _append(meta, lists, at, slot)


@njit(nogil=True, cache=True)
def bring_back(meta, lists, resident, limit):  # type: ignore[no-untyped-def]
    """light-LFU, its lists dry: raise the limit until some of the rows that are `resident` and not pinned are below it, and put those
    back into the lists, least used first. The new limit; 0 when every row is pinned."""
    least = np.int64(np.iinfo(np.int32).max)
    for slot in resident:
        if meta[slot, LIST] == UNLISTED and meta[slot, PINS] == 0:
            least = min(least, np.int64(meta[slot, USES]))
    if least == np.iinfo(np.int32).max:
        return np.int64(0)
    while limit <= least:
        limit *= 2
    slots = np.array([s for s in resident if meta[s, LIST] == UNLISTED and 0 < meta[s, USES] < limit])
    counts = np.array([meta[s, USES] for s in slots])
    if slots.size == 0:
        return np.int64(0)
    at = np.int64(0)
    while lists[at, ABOVE] >= 0:
        at = np.int64(lists[at, ABOVE])
    for place in np.argsort(counts, kind="mergesort"):
        at = np.int64(_list_above(lists, at, counts[place])) if lists[at, COUNT] != counts[place] else at
        _append(meta, lists, at, slots[place])
    return limit

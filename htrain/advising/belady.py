"""Belady's bound (1966): the most uses that any cache of a size can hit, which knows what comes.

A row stays from one use to the next, or it leaves in between and is missed. Going through the batches, whenever more
rows stay than there is room for, those leave whose next use is furthest: no other choice hits more often, also where
the room changes from batch to batch. While a batch is asked for ahead, the rows of the one before it are pinned: they
are hit for certain, and what they take of the cache is not there for others.
"""

import numpy as np

from htrain.advising.sequence import Sequence
from htrain.jit import njit
from htrain.sync.accesses import Ints, Longs

_NEVER = -1


def next_uses(sequence: Sequence) -> Ints:
    """For each access, the batch that uses its row next, or -1."""
    following = np.empty(len(sequence.slots), np.int32)
    _find_next(sequence.slots, sequence.starts, np.full(sequence.num_slots, _NEVER, np.int32), following)
    return following


def best_hits(sequence: Sequence, following: Ints, capacity: int, *, num_parts: int, counted: int, ahead: bool) -> Longs:  # fmt: skip
    """hits[p]: uses of rows of part p, from batch `counted` on, that the best cache of `capacity` rows has;
    `following` are the next uses."""
    hits = np.zeros(num_parts, np.int64)
    rounds = len(sequence.starts) - 1
    heads, links = np.full(rounds, _NEVER, np.int32), np.empty(len(sequence.slots), np.int32)
    _best(
        sequence.slots, sequence.starts, sequence.parts, following=following, capacity=capacity, counted=counted, ahead=ahead,
        heads=heads, links=links, queued=np.zeros(rounds, np.bool_), queue=np.empty(rounds + 1, np.int64), hits=hits,
    )  # fmt: skip
    return hits


@njit(nogil=True, cache=True)
def _find_next(slots, starts, upcoming, following):  # type: ignore[no-untyped-def]
    for b in range(starts.size - 2, -1, -1):
        for i in range(starts[b], starts[b + 1]):
            following[i] = upcoming[slots[i]]
            upcoming[slots[i]] = b


@njit(nogil=True, cache=True)
def _best(slots, starts, parts, following, capacity, counted, ahead, heads, links, queued, queue, hits):  # type: ignore[no-untyped-def]
    """heads[b] and links are lists of the rows that stay until batch b; `queue` is a heap of the batches with such
    lists, the last first."""
    num_queued = staying = 0
    delay = 2 if ahead else 1
    for b in range(starts.size - 1):
        if b >= delay:
            for i in range(starts[b - delay], starts[b - delay + 1]):
                until = following[i]
                if until >= b:
                    links[i] = heads[until]
                    heads[until] = i
                    staying += 1
                    if not queued[until]:
                        queued[until] = True
                        num_queued = _push(queue, num_queued, until)
        room = max(0, capacity - (starts[b] - starts[b - 1])) if ahead and b else capacity
        while staying > room:
            last = queue[0]
            if heads[last] < 0:
                queued[last] = False
                num_queued = _pop(queue, num_queued)
                continue
            heads[last] = links[heads[last]]
            staying -= 1
        if ahead and b and b >= counted:
            for i in range(starts[b - 1], starts[b]):
                hits[parts[slots[i]]] += following[i] == b
        i = heads[b]
        while i >= 0:
            hits[parts[slots[i]]] += b >= counted
            staying -= 1
            i = links[i]
        heads[b] = -1


@njit(nogil=True, cache=True)
def _push(queue, size, value):  # type: ignore[no-untyped-def]
    at = size
    while at > 0 and queue[(at - 1) // 2] < value:
        queue[at] = queue[(at - 1) // 2]
        at = (at - 1) // 2
    queue[at] = value
    return size + 1


@njit(nogil=True, cache=True)
def _pop(queue, size):  # type: ignore[no-untyped-def]
    size -= 1
    value, at = queue[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and queue[child + 1] > queue[child]:
            child += 1
        if queue[child] <= value:
            break
        queue[at] = queue[child]
        at = child
    queue[at] = value
    return size

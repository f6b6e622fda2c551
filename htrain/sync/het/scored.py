"""Which rows leave next by a score of a user's own: of every row that may leave, computed when some have to.

A row's first and last use, in steps of its trainer, stand where other policies have their lists: columns OLDEST and NEWEST of `lists`[slot].
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from htrain.jit import njit
from htrain.spec.policies import Score
from htrain.sync.het.policy import AHEAD, NEWEST, OLDEST, PINS, USES
from htrain.sync.scores import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@cache
def victims_by(score: Score) -> Callable[..., int]:
    """The loop that chooses victims by a score: as `choose_victims`, over key_of[slots], at step `now`. Raises Numba's errors for what it cannot compile."""
    score_of: Any = compiled(score)

    @njit(nogil=True)
    def leaving(meta, lists, key_of, now, spare, slots, scores):  # type: ignore[no-untyped-def]
        count = 0
        for slot in range(key_of.size):
            if key_of[slot] < 0 or meta[slot, PINS] > 0 or (spare and meta[slot, AHEAD] > 0):
                continue
            found = score_of(
                np.int64(meta[slot, USES]), np.int64(now - lists[slot, NEWEST]), np.int64(now - lists[slot, OLDEST])
            )
            slots[count], scores[count] = slot, -np.inf if np.isnan(found) else found
            count += 1
        return count

    def choose(meta: Ints, lists: Ints, key_of: Ints, now: int, wanted: int, spare: bool, victims: Ints) -> int:
        slots, scores = np.empty(key_of.size, np.int64), np.empty(key_of.size, np.float64)
        count = leaving(meta, lists, key_of, now, spare, slots, scores)
        return _lowest(slots[:count], scores[:count], wanted, victims)

    return choose


def _lowest(slots: Ints, scores: Floats, wanted: int, victims: Ints) -> int:
    """Fill victims[wanted] with the slots of the lowest scores, or with all slots where there are no more. Returns how many.

    By NumPy: Numba takes 6 s to compile a partition, in every process, since what calls a function of the user's cannot be kept in its cache.
    """
    if slots.size <= wanted:
        victims[: slots.size] = slots
        return slots.size
    most = np.partition(scores, wanted - 1)[wanted - 1]
    below = slots[scores < most]  # all of them, then as many with the highest score that leaves as are still wanted
    victims[: below.size] = below
    victims[below.size : wanted] = slots[scores == most][: wanted - below.size]
    return wanted

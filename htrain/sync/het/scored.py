"""Which rows leave next by a score of a user's own: of every row that may leave, computed when some have to. Numba, nogil.

A row's first and last use, in steps of its trainer, stand where other policies have their lists: columns OLDEST and NEWEST of `lists`[slot].
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from htrain.spec.policies import Score
from htrain.sync.het.policy import AHEAD, NEWEST, OLDEST, PINS, USES
from htrain.sync.scores import compiled


@cache
def victims_by(score: Score) -> Callable[..., int]:
    """The loop that chooses victims by a score: as `choose_victims`, over key_of[slots], at step `now`. Raises Numba's errors for what it cannot compile."""
    score_of: Any = compiled(score)

    @njit(nogil=True)
    def choose(meta, lists, key_of, now, wanted, spare, victims):  # type: ignore[no-untyped-def]
        slots, scores = np.empty(key_of.size, np.int64), np.empty(key_of.size, np.float64)
        count = 0
        for slot in range(key_of.size):
            if key_of[slot] < 0 or meta[slot, PINS] > 0 or (spare and meta[slot, AHEAD] > 0):
                continue
            found = score_of(
                np.int64(meta[slot, USES]), np.int64(now - lists[slot, NEWEST]), np.int64(now - lists[slot, OLDEST])
            )
            slots[count], scores[count] = slot, -np.inf if np.isnan(found) else found
            count += 1
        if count <= wanted:
            victims[:count] = slots[:count]
            return count
        most = np.partition(scores[:count], wanted - 1)[wanted - 1]
        taken = 0
        for i in range(count):  # those below the highest score that leaves, then as many with it as are still wanted
            if scores[i] < most:
                victims[taken] = slots[i]
                taken += 1
        for i in range(count):
            if scores[i] == most and taken < wanted:
                victims[taken] = slots[i]
                taken += 1
        return taken

    return choose

"""What caches are asked for, as flat arrays: the rows of a trace's batches, each row with the slots that it has in
the trainers' caches."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@dataclass(frozen=True)
class Accesses:
    """Batch b of trainer t asks for slots[starts[b T + t]:starts[b T + t + 1]], distinct ones, where a slot is a row
    of one trainer: first[t] to first[t+1] are those of trainer t. rows[slot] is the row, and parts[slot] the part of
    all keys that it is in, such as its table.

    Of all rows, the share `rate` is here: a row with all of its accesses, or with none.
    """

    slots: Ints
    starts: Longs
    first: Longs
    rows: Ints
    parts: Ints
    num_rows: int
    num_parts: int
    rate: float = 1.0

    @property
    def trainers(self) -> int:
        """T."""
        return len(self.first) - 1

    @property
    def num_batches(self) -> int:
        """Batches of each trainer."""
        return (len(self.starts) - 1) // self.trainers


def accesses_of(keys: Longs, starts: Longs, trainers: int, bounds: Longs, rate: float = 1.0) -> Accesses:
    """The accesses of keys[starts[b T + t]:starts[b T + t + 1]], the distinct keys of batch b of trainer t. Part p
    has the keys from bounds[p] to bounds[p+1].

    Requires: every key is in a part.
    """
    found, row_of = np.unique(keys, return_inverse=True)
    trainer_of = np.repeat(np.arange(len(starts) - 1, dtype=np.int64) % trainers, np.diff(starts))
    held, slots = np.unique(trainer_of * len(found) + row_of, return_inverse=True)
    rows = held % max(1, len(found))
    return Accesses(
        slots=slots.astype(np.int32),
        starts=starts,
        first=np.searchsorted(held, np.arange(trainers + 1) * len(found)).astype(np.int64),
        rows=rows.astype(np.int32),
        parts=(np.searchsorted(bounds, found[rows], side="right") - 1).astype(np.int32),
        num_rows=len(found),
        num_parts=len(bounds) - 1,
        rate=rate,
    )


@dataclass(frozen=True)
class Exchanged:
    """Rows by part: `hits[p]` were in the caches and `evicted[p]` made room; `run_out[p,i]` of the hits were written
    more often than bound i allows, and `stale[p,i]` were too old for their server."""

    hits: Longs
    evicted: Longs
    run_out: Longs
    stale: Longs


@dataclass(frozen=True)
class Size:
    """A cache of `capacity` rows that reads `window` batches ahead, and by which policy rows leave it."""

    capacity: int
    policy: str
    window: int


@dataclass(frozen=True)
class Play:
    """How accesses are played: `epochs` times one after another, and batches from number `counted` on, of all, count.
    With `ahead`, a batch is asked for before the one before it is written. `bounds` are the staleness bounds, from 1
    on."""

    epochs: int
    counted: int
    bounds: tuple[int, ...]
    ahead: bool

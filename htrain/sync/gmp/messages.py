"""What a worker and the owner of rows say to each other: one request and one answer per owner and step (HET-GMP 6)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htrain.sync.territory import Ids

Clocks = NDArray[np.int32]
Rows = NDArray[np.float32]
ANYHOW = -1  # a clock that every primary is ahead of


@dataclass(frozen=True)
class Request:
    """`counts`[3]: rows pushed, fetched, checked; `keys`[sum of these], in that order, are rows of the owner.

    `clocks`[pushed + checked]: of how many updates each gradient is the sum, then how many updates of the primary a secondary has seen, or ANYHOW where
    it is to come whatever that is. `gradients`[pushed,D]. Pushes come first: a row may be pushed and asked for at once.
    """

    counts: Ids
    keys: NDArray[np.int32] | Ids
    clocks: Clocks
    gradients: Rows


@dataclass(frozen=True)
class Answer:
    """`rows`[n,D] of those fetched, then of the checked ones that are too old, whose places among the checked are `stale`[m]; of these also the
    optimizer's `states`[m,S] and the primaries' `clocks`[m]."""

    rows: Rows
    states: Rows
    clocks: Clocks
    stale: NDArray[np.int32]

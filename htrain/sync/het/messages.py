"""What a HET client and a sparse PS say to each other: one request and one answer per server and step (HET 4.2)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htrain.sync.territory import Ids

Clocks = NDArray[np.int32]
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Request:
    """`counts`[3]: rows evicted, fetched, checked; `keys`[sum of these], in that order, are rows of the server; `clocks`[evicted + checked];
    `gradients`[evicted,D], what each evicted row has accumulated. Evictions come first: a row may be evicted and fetched at once."""

    counts: Ids
    keys: NDArray[np.int32] | Ids
    clocks: Clocks
    gradients: Rows


@dataclass(frozen=True)
class Answer:
    """`rows`[n,D+S] with their optimizer's state and global `clocks`[n]: of the rows fetched, then of the checked ones that are stale,
    whose places among the checked are `stale`[m]."""

    rows: Rows
    clocks: Clocks
    stale: NDArray[np.int32]

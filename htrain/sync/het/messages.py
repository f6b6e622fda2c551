"""What a sparse PS answers a HET client to one request of a step (HET 4.2). Rows that are evicted are those that the request pushes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htrain.sync.request import Clocks, Rows


@dataclass(frozen=True)
class Answer:
    """`rows`[n,D+S] with their optimizer's state and global `clocks`[n]: of the rows fetched, then of the checked ones that are stale,
    whose places among the checked are `stale`[m]."""

    rows: Rows
    clocks: Clocks
    stale: NDArray[np.int32]

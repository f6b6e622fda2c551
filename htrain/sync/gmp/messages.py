"""What the owner of rows answers a worker to one request of a step (HET-GMP 6).

Of a request, the clock of a row that is pushed says of how many updates its gradient is the sum, and that of a row that is checked how many updates of the
primary a secondary has seen, or ANYHOW where it is to come whatever that is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htrain.sync.request import Clocks, Rows

ANYHOW = -1  # a clock that every primary is ahead of


@dataclass(frozen=True)
class Answer:
    """`rows`[n,D] of those fetched, then of the checked ones that are too old, whose places among the checked are `stale`[m]; of these also the
    optimizer's `states`[m,S] and the primaries' `clocks`[m]."""

    rows: Rows
    states: Rows
    clocks: Clocks
    stale: NDArray[np.int32]

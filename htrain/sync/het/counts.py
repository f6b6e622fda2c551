"""What a HET client has done, for the metrics (HET 5.1, 5.2)."""

from dataclasses import dataclass, field

import numpy as np

from htrain.sync.territory import Ids

_AGES = 20


@dataclass
class CacheCounts:
    """What a cache has done: rows asked for that were there or not, that had run out of staleness here or were found stale by their
    server; rows evicted; bytes by kind; and rows read by the number of their own updates that were not pushed yet, 2^(a-1) to 2^a - 1."""

    hits: int = 0
    misses: int = 0
    run_out: int = 0
    stale: int = 0
    evicted: int = 0
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("rows", "gradients", "clocks", "keys"), 0))
    ages: Ids = field(default_factory=lambda: np.zeros(_AGES, np.int64))

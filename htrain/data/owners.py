"""Which shard reads a piece of data alone, where some of a piece costs each reader as much as all: a compressed file of text is read from its start, a row
group of Parquet from its first row. Shared out by chunks, data is decoded as often as there are trainers (tools/bench/reader_shards.py)."""

import heapq
from functools import lru_cache

_UNEVEN = 0.1  # of a fair share, that one shard may read more than the mean


@lru_cache(maxsize=64)
def owners(sizes: tuple[int, ...], num_shards: int) -> tuple[int | None, ...]:
    """The shard that reads each of these pieces, in their order; None for one that is shared out by chunks, as all from some piece on are.

    Pieces go to whoever has the fewest bytes so far, as long as all have about as many; what is behind, too little for all, is shared out.
    """
    fair = sum(sizes) / num_shards
    loads = [(0, shard) for shard in range(num_shards)]
    found: list[int] = []
    even = 0  # pieces, behind which all have about as many
    most = total = 0
    for size in sizes:
        load, shard = heapq.heappop(loads)
        heapq.heappush(loads, (load + size, shard))
        found.append(shard)
        most, total = max(most, load + size), total + size
        if most - total / num_shards <= _UNEVEN * fair:
            even = len(found)
    return (*found[:even], *[None] * (len(sizes) - even))

"""The accesses of one trainer over all epochs, as the loops over stack distances and next uses take them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from htrain.sync.accesses import Accesses, Ints, Longs


@dataclass(frozen=True)
class Sequence:
    """Batch b asks for slots[starts[b]:starts[b+1]]; there are `num_slots`, and parts[slot] is the part of a slot."""

    slots: Ints
    starts: Longs
    parts: Ints

    @property
    def num_slots(self) -> int:
        """Rows that are asked for at least once."""
        return len(self.parts)


def sequences_of(accesses: Accesses, epochs: int) -> Iterator[Sequence]:
    """Of each trainer in turn, its batches again and again, `epochs` times."""
    trainers, starts = accesses.trainers, accesses.starts
    for t in range(trainers):
        begins, ends = starts[t:-1:trainers], starts[t + 1 :: trainers]
        lengths = ends - begins
        places = np.repeat(begins - np.append(0, lengths.cumsum()[:-1]), lengths) + np.arange(lengths.sum())
        first, end = accesses.first[t], accesses.first[t + 1]
        yield Sequence(
            np.tile(accesses.slots[places] - np.int32(first), epochs),
            np.append(0, np.tile(lengths, epochs).cumsum()).astype(np.int64),
            accesses.parts[first:end],
        )

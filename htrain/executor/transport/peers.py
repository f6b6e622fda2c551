"""What trainers with replicas of the same look-ahead caches do together; the first alone reads and writes the store (cDLRM 6.1, Algorithm 3)."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.executor.transport.collective import Collective

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


class Peers:
    """All trainers; one alone, without a collective, is all of them. Every call is made by all, in one order. For one thread.

    `bytes` counts what this trainer has brought in, by kind: keys, rows, averages. Calls raise PeerLost.
    """

    def __init__(self, collective: Collective | None) -> None:
        self._collective = collective
        self.size = collective.size if collective else 1
        self.rank = collective.rank if collective else 0
        self.is_first = self.rank == 0
        self.bytes: Counter[str] = Counter()

    def gather(self, parts: Sequence[Ids]) -> list[list[Ids]]:
        """Of each of parts[k][n_k], n_k different on each, those of all trainers, the first one's first.

        One exchange says how many there are, another brings them; none does where there are none.
        """
        if self._collective is None or not parts:
            return [[part] for part in parts]
        counts = torch.stack(
            self._collective.all_gather(torch.tensor([part.size for part in parts], dtype=torch.int64))
        ).numpy()
        own = np.concatenate([np.empty(0, np.int64), *parts])
        self.bytes["keys"] += own.nbytes
        everybody = self._collective.all_gather(torch.from_numpy(own), counts.sum(1).tolist())
        split = [np.split(whole.numpy(), mine.cumsum()[:-1]) for whole, mine in zip(everybody, counts, strict=True)]
        return [list(of_part) for of_part in zip(*split, strict=True)]

    def share(self, arrays: Sequence[Rows]) -> Sequence[Rows]:
        """The first trainer's arrays, whose shapes are those of the caller's own."""
        if self._collective is None or not any(array.size for array in arrays):
            return arrays
        flat = _flat(arrays) if self.is_first else torch.empty(sum(array.size for array in arrays))
        self._collective.broadcast(flat)
        self.bytes["rows"] += flat.nbytes if self.is_first else 0
        return _like(arrays, flat)

    def average(self, arrays: Sequence[Rows]) -> Sequence[Rows]:
        """The mean of everybody's arrays, which have the same shapes."""
        if self._collective is None or not any(array.size for array in arrays):
            return arrays
        flat = _flat(arrays)
        self._collective.all_reduce(flat)
        self.bytes["averages"] += flat.nbytes
        flat /= self.size
        return _like(arrays, flat)


def _flat(arrays: Sequence[Rows]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))


def _like(arrays: Sequence[Rows], flat: torch.Tensor) -> list[Rows]:
    parts = np.split(flat.numpy(), np.cumsum([array.size for array in arrays])[:-1])
    return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]

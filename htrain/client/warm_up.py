"""Compiling the loops of caches beside a loop that already trains: the first time on a machine they take seconds, afterwards they are loaded."""

import threading
from collections.abc import Sequence
from importlib import import_module

import numpy as np
import torch

from htrain.membership.served import ServedCache, ServedTable
from htrain.sync.het.client import UNBOUNDED, HetCache
from htrain.sync.territory import Ids, Territory

_CAPACITY = 4


class WarmUp:
    """A thread that plays a small cache of each kind. `is_done` once real ones may be made; `error` where that failed."""

    def __init__(self, caches: Sequence[ServedCache]) -> None:
        self.is_done = False
        self.error: Exception | None = None
        self._caches = caches
        self._thread = threading.Thread(target=self._run, name="warm up", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Until it is done, or so many seconds have passed."""
        self._thread.join(seconds)
        return self.is_done

    def _run(self) -> None:
        try:
            kinds = {(cache.optimizer, cache.policy, cache.staleness == 0): cache for cache in self._caches}
            for cache in kinds.values():
                _play(cache)
            self.is_done = True
        except Exception as error:
            self.error = error


def new_cache(served: ServedCache, capacity: int) -> HetCache:
    """The cache of a worker."""
    where = Territory(served.bounds[:-1], served.servers, served.first_rows, served.bounds[-1])
    staleness = UNBOUNDED if served.staleness < 0 else served.staleness
    return HetCache(where, served.width, capacity=capacity, staleness=staleness, policy=served.policy, step=served.step)


def _play(like: ServedCache) -> None:
    """Every loop once: rows are fetched, found, evicted, announced, flushed."""
    rows = 4 * _CAPACITY
    table = ServedTable("rows", 0, rows)
    small = ServedCache(
        "small", (table,), width=like.width, devices=(0, 1), slots=("", ""), bounds=(0, _CAPACITY, rows), servers=(0, 1), first_rows=(0, 0),
        capacity=_CAPACITY, staleness=like.staleness, policy=like.policy, optimizer=like.optimizer, lr=like.lr, eps=like.eps,
        beta=like.beta, l1=like.l1, l2=like.l2,
    )  # fmt: skip
    cache = new_cache(small, _CAPACITY)
    for batch in range(8):
        ids = np.arange(batch, batch + 2 * _CAPACITY) % rows
        keys, inverse = dedupe(ids)
        cache.announce(keys)
        slots, requests = cache.ask(keys)
        cache.read_arrays(slots, [_answer(small, request.counts) for request in requests])
        gradients = summed(torch.ones(ids.size, like.width), torch.from_numpy(inverse), keys.size)
        cache.write(slots, gradients.numpy())
        cache.trim()
        _ = cache.unsent
    slots, requests = cache.ask(keys)
    cache.read_arrays(slots, [_answer(small, request.counts) for request in requests])
    cache.let_go(slots)
    cache.read_arrays(slots[:0], [_answer(small, request.counts) for request in cache.flush()])


def _answer(served: ServedCache, counts: Ids) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a server says to a request: its rows, and that a checked one is stale."""
    stale = np.arange(min(1, int(counts[2])), dtype=np.int32)
    count = int(counts[1]) + stale.size
    return np.zeros((count, served.width + served.state_width), np.float32), np.ones(count, np.int32), stale


def dedupe(ids: Ids) -> tuple[Ids, Ids]:
    """The distinct ids of ids[n], and inverse[n], where among them each is. Compiled."""
    found: tuple[Ids, Ids] = import_module("htrain.ops.sparse_loops").dedupe(ids, -1)
    return found


def summed(gradients: torch.Tensor, inverse: torch.Tensor, num_rows: int) -> torch.Tensor:
    """sums[num_rows,D] of gradients[n,D] by inverse[n], without what they were computed from. Compiled."""
    loops = import_module("htrain.ops.sparse_loops")
    each = gradients.detach().contiguous().numpy()
    return torch.from_numpy(loops.take_rows_gradient(each, inverse.numpy(), num_rows))


def dedupe_at_once(ids: Ids) -> tuple[Ids, Ids]:
    """As `dedupe`, by NumPy."""
    distinct, inverse = np.unique(ids, return_inverse=True)
    return distinct, inverse.reshape(-1)

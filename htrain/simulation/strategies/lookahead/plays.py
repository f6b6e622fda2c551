"""What look-ahead caches ask for: the occupancy table's own placement of one window after the other (cDLRM 5.2; htrain.sync.lookahead).

Trainers have replicas of the same caches, so that one occupancy table stands for all. A window has as many batches as the first of a run, whose
windows grow only where caching takes long. What is written back stays in memory until no read can have missed it, so that rows that are put right
cost no further read.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from htrain.executor.strategies.lookahead.table_cache import distinct
from htrain.net.net import Op, numel
from htrain.net.placement import CacheGeometry
from htrain.ops.cache_rates import CacheRates, ShardRates
from htrain.ops.lookahead import window_of
from htrain.plan.plan import Plan
from htrain.simulation.id_sources import Ids
from htrain.simulation.numbering import Numbering
from htrain.simulation.strategies.strategy import PlaysCache, Round
from htrain.sync.lookahead.occupancy import Occupancy
from htrain.sync.lookahead.window import WindowChoice


class PlaysLookAhead(PlaysCache):
    """A round is a window. What is left of the data behind the last whole window is left out."""

    def rounds(self) -> Iterator[Round]:
        plan = self.plan
        train = plan.train
        window = min(WindowChoice(window_of(train)).batches, self.most_batches)
        rows = self.trainers * self.most_batches
        caches = [_Cache(op, plan, rows) for op in train.ops if op.type == "LookaheadSlots"]
        tables = {cache.ids: cache.num_rows for cache in caches}
        feeds = [self.source.batches(plan, tables, trainer) for trainer in range(self.trainers)]
        while True:
            batches = [list(islice(feed, window)) for feed in feeds]
            if any(len(own) < window for own in batches):
                return
            yield Round(window, {c.name: c.place([[ids[c.ids] for ids in own] for own in batches]) for c in caches})


class _Cache:
    """The cache of one table: `ids` is the blob of its ids, `num_rows` the rows of the table."""

    def __init__(self, slots: Op, plan: Plan, batches: int) -> None:
        attrs: Mapping[str, Any] = slots.attrs
        self.name, self.ids, self.num_rows = slots.inputs[0], slots.inputs[-1], int(attrs["num_rows"])
        self._bounds = np.array(attrs["bounds"], np.int64)
        self._occupancy = Occupancy(CacheGeometry(attrs["sets"], attrs["ways"]), seed=0)
        per_batch = numel(plan.train.blobs[self.ids].shape[:1], plan.options.batch_size)
        self._numbering = Numbering((0, self.num_rows), batches * per_batch)
        self._seen = np.zeros(self._numbering.size, np.bool_)

    def place(self, batches: Sequence[Sequence[Ids]]) -> CacheRates:
        """The next window: the distinct ids of each batch of each trainer."""
        trainers, window = len(batches), len(batches[0])
        keys = distinct([distinct(own) for own in batches])
        cold = self._cold(keys)
        placement = self._occupancy.place(keys)
        missed = [[ids[self._occupancy.find(ids) < 0] for ids in own] for own in batches]
        victims = np.concatenate([np.unique(np.concatenate(step)) for step in zip(*missed, strict=True)])
        fetched = np.concatenate([keys[placement.fresh], victims])
        pushed = np.concatenate([placement.evicted_keys, victims])
        asked = sum(ids.size for own in batches for ids in own) / trainers
        misses = sum(ids.size for own in missed for ids in own) / trainers
        return CacheRates(
            ids={self.ids: asked / window}, hits=(asked - misses) / window, cold=cold / window,
            loaded=placement.fresh.size / window, evicted=placement.evicted_keys.size / window,
            shards=self._shards(fetched, pushed, window),
            window=float(window), window_rows=float(keys.size), victims=victims.size / window,
        )  # fmt: skip

    def _cold(self, keys: Ids) -> int:
        numbers = self._numbering.numbers(keys)
        cold = keys.size - int(self._seen[numbers].sum())
        self._seen[numbers] = True
        return cold

    def _shards(self, fetched: Ids, pushed: Ids, window: int) -> tuple[ShardRates, ...]:
        each = [np.histogram(rows, self._bounds)[0] / window for rows in (fetched, pushed)]
        return tuple(ShardRates(float(get), float(put)) for get, put in zip(*each, strict=True))

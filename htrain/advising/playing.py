"""What was recorded of one group of caches, played at every setting; equal plays once."""

from functools import cached_property

import numpy as np

from htrain.advising.advice import Curve, Grid, Setting, Share
from htrain.advising.belady import best_hits, next_uses
from htrain.advising.estimates import Estimate, Floats, counted_of, estimate, without_staleness
from htrain.advising.recording import Recorded
from htrain.advising.sequence import sequences_of
from htrain.advising.stack import bin_edges, stack_hits
from htrain.plan.plan import Plan
from htrain.simulation.strategies.strategy import Keyed, Sizes
from htrain.spec.cache import capacity_rows
from htrain.sync.accesses import Exchanged, Play, Size

_NO_BOUND = 2**30  # a staleness that no clock reaches


class Played:
    """A record and what is found by playing it. The later half of all batches counts; in the first, caches fill."""

    def __init__(self, record: Recorded, sizes: Sizes, plan: Plan, grid: Grid, epochs: int) -> None:
        accesses = record.accesses
        self.group, self._accesses, self._sizes, self._grid = record.group, accesses, sizes, grid
        self._bounds = [bound for bound in grid.staleness if bound != 0]
        numbers = tuple(_NO_BOUND if bound == "unbounded" else bound for bound in self._bounds)
        epochs = epochs if not record.primed else 1  # caches that begin with what was left are as in a later pass
        self.num_batches = epochs * accesses.num_batches - record.primed
        begin = record.primed + self.num_batches // 2
        self.play = Play(epochs, begin, numbers or (_NO_BOUND,), ahead=plan.options.prefetch)
        self.counted = counted_of(record, self.play)
        self._most = int(np.diff(accesses.first).max(initial=1))
        self.num_accesses = record.total
        self._known: dict[Size, Exchanged] = {}

    def rows_of(self, capacity: str) -> int:
        """The rows that a cache of a capacity holds."""
        return capacity_rows(capacity, self.group.num_keys, where="--capacities")

    def exchanged(self, capacity: str, policy: str, window: int) -> Exchanged:
        """What caches of that size exchange. Where all rows fit, nothing is evicted, and neither policy nor window
        matters."""
        rows = max(1, round(self.rows_of(capacity) * self.counted.rate))
        size = Size(rows, policy, window) if rows < self._most else Size(self._most, self._grid.policies[0], 1)
        if size not in self._known:
            self._known[size] = self._sizes.exchanged(self._accesses, self.play, size)
        return self._known[size]

    def estimate(self, setting: Setting) -> Estimate:
        """What all rows exchange at a setting."""
        if setting.staleness == 0:
            return without_staleness(self.counted)
        found = self.exchanged(setting.capacity, setting.policy, setting.window)
        return estimate(self.counted, found, self.play, self._bounds.index(setting.staleness))

    @cached_property
    def best(self) -> dict[str, Floats]:
        """Belady's bounds by capacity: hits by part, of all rows."""
        total = {capacity: np.zeros(self.group.num_parts, np.int64) for capacity in self._grid.capacities}
        for sequence in sequences_of(self._accesses, self.play.epochs):
            following = next_uses(sequence)
            for capacity, hits in total.items():
                rows = max(1, round(self.rows_of(capacity) * self.counted.rate))
                hits += best_hits(
                    sequence, following, rows, num_parts=self.group.num_parts, counted=self.play.counted, ahead=self.play.ahead
                )  # fmt: skip
        return {capacity: self.counted.hits(hits) for capacity, hits in total.items()}

    def curve(self, cache: Keyed) -> Curve:
        """The miss ratio curve of LRU."""
        uses = max(1.0, float(self.counted.uses.sum()))
        hits = self._stack.sum(0) / uses
        sizes = np.rint(self._edges / self.counted.rate).astype(np.int64)
        best = {capacity: float(found.sum()) / uses for capacity, found in self.best.items()}
        return Curve(cache.cache, self.group.num_keys, tuple(sizes.tolist()), tuple(hits.tolist()), best)

    @cached_property
    def _edges(self) -> np.ndarray:
        return bin_edges(self._most)

    @cached_property
    def _stack(self) -> Floats:
        """Hits of LRU by part and size."""
        total = np.zeros((self.group.num_parts, len(self._edges)), np.int64)
        for sequence in sequences_of(self._accesses, self.play.epochs):
            total += stack_hits(
                sequence, self._edges, num_parts=self.group.num_parts, counted=self.play.counted, ahead=self.play.ahead
            )
        return np.stack([self.counted.hits(hits) for hits in total.T], axis=1)

    def used_rows(self) -> Floats:
        """Rows of each table that the data uses, about."""
        accesses = self._accesses
        parts = np.zeros(accesses.num_rows, np.int64)
        parts[accesses.rows] = accesses.parts
        return self.counted.by_table(np.bincount(parts, minlength=self.group.num_parts) / self.counted.rate)


def share_of(estimates: list[Estimate]) -> Share:
    """The share of what several groups of caches, each cache as often, are asked for that they have."""
    uses, hits, invalid = (
        sum(len(one.counted.group.caches) * float(counts.sum()) for one, counts in zip(estimates, each, strict=True))
        for each in (
            [one.counted.uses for one in estimates],
            [one.hits for one in estimates],
            [one.invalid for one in estimates],
        )
    )
    return Share(hits / uses, invalid / uses) if uses else Share(0.0, 0.0)


def shares_by_table(found: Estimate) -> list[Share]:
    """The share of each table of a group's caches, table by table, for each of the caches."""
    counted = found.counted
    each = zip(*(counted.by_table(counts) for counts in (counted.uses, found.hits, found.invalid)), strict=True)
    shares = [Share(hits / uses, invalid / uses) if uses else Share(0.0, 0.0) for uses, hits, invalid in each]
    return shares * len(counted.group.caches)

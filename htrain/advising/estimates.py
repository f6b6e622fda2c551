"""From what was counted for a sample of rows to what all rows exchange, per batch of a trainer.

How often each table is asked for is known for all rows. Where the sample has been asked for less than its share, it
lacks rows that are used often, which caches have: the difference counts as hits, as in SHARDS-adj (Waldspurger et al.
2015), and runs out of staleness as a row does that every batch uses. With all rows in the sample, nothing is
estimated.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from htrain.advising.groups import Group
from htrain.advising.recording import Recorded
from htrain.ops.cache_rates import CacheRates, ShardRates
from htrain.simulation.strategies.strategy import Keyed
from htrain.sync.accesses import Accesses, Exchanged, Longs, Play

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Counted:
    """The counted uses by part, of all rows and of rows not used before; `lacking` are those that the sample has less
    than its share, times one over the rate. The means are over `batches`."""

    group: Group
    uses: Floats
    cold: Floats
    lacking: Floats
    batches: int
    rate: float

    def hits(self, hits: Longs) -> Floats:
        """hits[p] of the sample's uses as those of all."""
        return np.clip(hits / self.rate + self.lacking, 0.0, self.uses)

    def by_table(self, counts: Floats) -> Floats:
        """Counts by part in sum over each table."""
        return np.bincount(self.group.tables, counts, minlength=len(self.group.first_keys)).astype(np.float64)


def counted_of(recorded: Recorded, play: Play) -> Counted:
    """What is counted of a record that is played."""
    group, accesses, rate = recorded.group, recorded.accesses, recorded.accesses.rate
    weights = np.bincount(
        np.arange(play.counted, play.epochs * accesses.num_batches) % accesses.num_batches,
        minlength=accesses.num_batches,
    )
    each = np.diff(accesses.starts)
    of_access = np.repeat(weights, np.add.reduceat(each, np.arange(0, len(each), accesses.trainers)))
    kept = np.bincount(accesses.parts[accesses.slots], of_access, minlength=group.num_parts)
    asked = np.einsum("b,btc->c", weights, recorded.asked)
    batches = int((weights[:, None] * (recorded.asked.sum(2) > 0)).sum())
    of_table = np.bincount(group.tables, kept, minlength=len(asked))
    share = np.divide(kept, of_table[group.tables], out=_first_parts(group), where=of_table[group.tables] > 0)
    uses = share * asked[group.tables]
    return Counted(group, uses, _cold(accesses, play, group) / rate, uses - kept / rate, batches, rate)


def _first_parts(group: Group) -> Floats:
    """1 for the first part of each table: of a table without a row in the sample, it stands for all."""
    return np.concatenate([[1.0], np.sign(np.diff(group.tables)).astype(np.float64)])


def _cold(accesses: Accesses, play: Play, group: Group) -> Floats:
    """Counted uses of rows that their trainer has not used before."""
    first = np.full(len(accesses.rows), len(accesses.slots), np.int64)
    first[accesses.slots[::-1]] = np.arange(len(accesses.slots) - 1, -1, -1)
    begin = accesses.starts[min(play.counted, accesses.num_batches) * accesses.trainers]
    return np.bincount(accesses.parts[first >= begin], minlength=group.num_parts).astype(np.float64)


@dataclass(frozen=True)
class Estimate:
    """Rows of all by part, in the sum over all counted batches, as `Exchanged` has them, under one bound."""

    counted: Counted
    hits: Floats
    evicted: Floats
    run_out: Floats
    stale: Floats

    @property
    def invalid(self) -> Floats:
        """Hits that are fetched again."""
        return np.minimum(self.run_out + self.stale, self.hits)

    def rates(self, cache: Keyed) -> CacheRates:
        """What one of the group's caches asks for, per batch of a trainer."""
        counted, group = self.counted, self.counted.group
        batches = max(1, counted.batches)
        misses = counted.uses - self.hits
        servers = group.servers(cache)

        def of_servers(counts: Floats) -> list[float]:
            return (np.bincount(servers, counts, minlength=max(cache.servers) + 1) / batches).tolist()

        each = zip(
            of_servers(misses + self.run_out), of_servers(self.evicted + self.run_out + self.stale),
            of_servers(self.hits - self.run_out), of_servers(self.stale), strict=True,
        )  # fmt: skip
        ids = counted.by_table(counted.uses) / batches
        return CacheRates(
            ids=dict(zip(cache.first_keys, ids.tolist(), strict=True)),
            hits=float(self.hits.sum()) / batches,
            cold=float(counted.cold.sum()) / batches,
            loaded=float(misses.sum()) / batches,
            evicted=float(self.evicted.sum()) / batches,
            shards=tuple(ShardRates(*of_server) for of_server in each),
            run_out=float(self.run_out.sum()) / batches,
        )


def estimate(counted: Counted, found: Exchanged, play: Play, bound: int) -> Estimate:
    """Under the bound at place `bound` of the play's."""
    often = 1 / play.bounds[bound] if play.ahead else 1 / (1 + play.bounds[bound])
    hits = counted.hits(found.hits)
    run_out = np.clip(found.run_out[:, bound] / counted.rate + often * counted.lacking, 0.0, hits)
    stale = np.minimum(found.stale[:, bound] / counted.rate, hits - run_out)
    return Estimate(counted, hits, found.evicted / counted.rate, run_out, stale)


def without_staleness(counted: Counted) -> Estimate:
    """A bound of 0: nothing that was written may be read again, so that all is fetched and pushed."""
    nothing = np.zeros_like(counted.uses)
    return Estimate(counted, nothing, counted.uses, nothing, nothing)

"""What caches ask for in the steady state: rows per batch, counted by playing a cache's own decisions (htrain.simulation.cache_rates).

Costs take these in place of a cluster's `distinct_percent` and `cache_hit_percent`, which are one number for all tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class ShardRates:
    """Rows per batch between a cache and one server, or one shard, of its tables: `fetched` ones are asked for, `checked` ones are asked
    about by their clock, `stale` ones of these come back, too; `pushed` ones carry their updates."""

    fetched: float
    pushed: float
    checked: float = 0.0
    stale: float = 0.0


@dataclass(frozen=True)
class CacheRates:
    """Rows per batch of one trainer, in the mean over trainers and batches.

    A batch asks for the distinct rows `ids`, by the blob that holds them. `hits` of them are in the cache; of the others, `cold` ones have never
    been there. `loaded` rows are put into the cache and `evicted` ones make room. `run_out` hits had been written more often than their staleness
    allows, and are fetched again. Of a cache that looks ahead, a window of `window` batches has `window_rows` distinct rows, of all trainers;
    `victims` are rows that find their set pinned, which every step fetches and writes back. Of several trainers with replicas of one cache
    the first fetches and pushes for all.
    """

    ids: Mapping[str, float]
    hits: float
    cold: float
    loaded: float
    evicted: float
    shards: tuple[ShardRates, ...]
    run_out: float = 0.0
    window: float = 1.0
    window_rows: float = 0.0
    victims: float = 0.0

    @property
    def asked(self) -> float:
        """Distinct rows that a batch asks for."""
        return sum(self.ids.values())

    @property
    def hit_rate(self) -> float:
        """The share of these that is in the cache; nan where a batch asks for none."""
        return self.hits / self.asked if self.asked else float("nan")

    @property
    def stale(self) -> float:
        """Rows that were in the cache, and too old for their server."""
        return sum(shard.stale for shard in self.shards)

    @property
    def fetched(self) -> float:
        """Rows that come from all servers, stale ones included."""
        return sum(shard.fetched + shard.stale for shard in self.shards)

    @property
    def pushed(self) -> float:
        """Rows whose updates go to all servers."""
        return sum(shard.pushed for shard in self.shards)

    @property
    def checked(self) -> float:
        """Rows whose clocks go to all servers."""
        return sum(shard.checked for shard in self.shards)


@dataclass(frozen=True)
class Rates:
    """The rates of each cache of a plan, by the name of its parameter. They were counted over `counted` batches of each trainer, the last of
    `batches`; without `warm`, what caches fetch was still changing then. No caches: nothing is known of any."""

    caches: Mapping[str, CacheRates] = field(default_factory=dict)
    source: str = ""
    batches: int = 0
    counted: int = 0
    warm: bool = True

    def ids(self, blob: str, otherwise: float) -> float:
        """The distinct rows to expect in a blob of ids."""
        return next((cache.ids[blob] for cache in self.caches.values() if blob in cache.ids), otherwise)

    def shards(self, cache: str, otherwise: Sequence[ShardRates]) -> Sequence[ShardRates]:
        """What a cache and each of its servers exchange."""
        return self.caches[cache].shards if cache in self.caches else otherwise


NO_RATES = Rates()


def mean_of(rates: Sequence[CacheRates]) -> CacheRates:
    """The mean of the rates of one cache, found at several times. Requires: at least one."""
    count = len(rates)
    plain = [f.name for f in fields(CacheRates) if f.name not in ("ids", "shards")]
    shards = [
        ShardRates(*(sum(getattr(shard, f.name) for shard in at) / count for f in fields(ShardRates)))
        for at in zip(*(r.shards for r in rates), strict=True)
    ]
    return CacheRates(
        ids={blob: sum(r.ids[blob] for r in rates) / count for blob in rates[0].ids},
        shards=tuple(shards),
        **{name: sum(getattr(r, name) for r in rates) / count for name in plain},
    )

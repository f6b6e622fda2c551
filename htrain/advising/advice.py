"""What is found out about caches of a model on some data, as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from htrain.ops.cache_rates import Rates
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options

LINKS = (1, 10, 25)  # Gbit/s
Staleness = int | Literal["unbounded"]


@dataclass(frozen=True)
class Grid:
    """The settings that are tried: capacities as a user says them, such as 10%, policies, windows, and bounds of
    staleness."""

    capacities: tuple[str, ...] = ("0.5%", "1%", "2%", "5%", "10%", "20%", "50%")
    policies: tuple[str, ...] = ("light-lfu", "lru", "lfu")
    windows: tuple[int, ...] = (1, 8, 64)
    staleness: tuple[Staleness, ...] = (0, 10, 100, "unbounded")


@dataclass(frozen=True)
class Setting:
    """A cache as the section of the options says it."""

    capacity: str
    policy: str
    window: int
    staleness: Staleness


@dataclass(frozen=True)
class Share:
    """Of the distinct rows that batches ask for, those that the cache has, and those of them that are fetched again
    since they are too old (invalid)."""

    hit_rate: float
    invalid: float

    @property
    def valid(self) -> float:
        """Rows that are read without a fetch."""
        return self.hit_rate - self.invalid


@dataclass(frozen=True)
class Traffic:
    """Bytes of an example between its trainer and sparse PSs, both ways; and the EPS of the whole cluster that links
    of 1, 10 and 25 Gbit/s allow, whatever takes them."""

    bytes_per_example: float
    eps: tuple[float, ...]


@dataclass(frozen=True)
class Candidate:
    """A setting and what comes of it: of all tables together, and of each."""

    setting: Setting
    share: Share
    tables: tuple[Share, ...]
    traffic: Traffic
    rates: Rates


@dataclass(frozen=True)
class Table:
    """A table behind a cache: its rows, those that the data uses, and the distinct rows that a batch asks for.
    `cache` is the name of the cache."""

    name: str
    cache: str
    rows: int
    used: float
    asked: float


@dataclass(frozen=True)
class Curve:
    """LRU's miss ratio curve of a cache, as hit rates: a cache of sizes[i] rows has hits[i] of what it is asked for.
    `best` are Belady's bounds by capacity."""

    cache: str
    rows: int
    sizes: tuple[int, ...]
    hits: tuple[float, ...]
    best: Mapping[str, float]


@dataclass(frozen=True)
class Basis:
    """What figures are counted of: `accesses` are the distinct rows of all batches, of which the share `rate` of all
    rows was kept; `counted` batches of each trainer, the last of `batches` over all epochs."""

    data: str
    model: str
    trainers: int
    batch_size: int
    epochs: int
    accesses: int
    rate: float
    batches: int
    counted: int


@dataclass(frozen=True)
class Advice:
    """What a cluster's caches are advised to be, and what that is chosen from. `options` have none where none `saves`.
    `uncached` is the traffic without a cache; `best` are Belady's bounds by capacity: hit rates of all caches together.
    """

    basis: Basis
    tables: tuple[Table, ...]
    curves: tuple[Curve, ...]
    candidates: tuple[Candidate, ...]
    uncached: Traffic
    best: Mapping[str, float]
    recommended: Candidate
    cluster: Cluster
    options: Options

    @property
    def saves(self) -> bool:
        """Whether what is recommended has fewer bytes of rows than no cache at all."""
        return self.recommended.traffic.bytes_per_example < self.uncached.bytes_per_example

    def at(self, setting: Setting) -> Candidate:
        """The candidate of a setting. Requires: it was tried."""
        return next(candidate for candidate in self.candidates if candidate.setting == setting)

"""What a strategy that holds rows asks of its tables, its own decisions played without a network or dense math; and what it does beside steps in a
simulation, where trainers of it have threads of their own."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from htrain.errors import PlanError, UsageError
from htrain.executor.engine.context import Context
from htrain.executor.roles.replica import Source
from htrain.executor.strategies.strategy import RunsCache, cache_of
from htrain.net.names import TRAINER, role_of
from htrain.ops.cache_rates import CacheRates, Rates
from htrain.plan.plan import Plan
from htrain.simulation import collective, processes
from htrain.simulation.costs import DeviceModel
from htrain.simulation.id_sources import IdSource
from htrain.simulation.machine import Host
from htrain.simulation.processes import Training
from htrain.simulation.result import WindowUse
from htrain.spec.halves import HALVES
from htrain.sync.accesses import Accesses, Exchanged, Play, Size


@dataclass(frozen=True)
class Round:
    """Some `batches` of each trainer, and what the caches asked for in their course, per batch of one trainer, by the name of the cache."""

    batches: int
    rates: Mapping[str, CacheRates]


class PlaysCache:
    """The caches of a plan, on all of its trainers; `most_batches` of each will be played at most."""

    def __init__(self, plan: Plan, source: IdSource, most_batches: int) -> None:
        self.plan, self.source, self.most_batches = plan, source, most_batches
        self.trainers = plan.cluster.groups * plan.cluster.trainers

    @property
    def least_rounds(self) -> int:
        """Rounds of which it cannot be told whether what comes behind them is like them."""
        return 0

    def rounds(self) -> Iterator[Round]:
        """From empty caches on, as long as all trainers have batches."""
        yield from ()


def plays_of(plan: Plan) -> type[PlaysCache]:
    """How the caches of a plan are played. Raises PlanError for a cache of a user's own, whose decisions are elsewhere."""
    section = plan.options.holder
    if type(section) in HALVES or not section.runs:
        raise PlanError(
            f"what a cache of the kind {section.kind} asks for is not known here: say --cache-hit-percent instead"
        )
    plays: type[PlaysCache] = import_module(f"htrain.simulation.strategies.{section.home}").PLAYS
    return plays


@dataclass(frozen=True)
class Keyed:
    """A cache of a plan and the keys that it is asked for: by the blob of a table's ids, the first key of the table; shard i has the keys from bounds[i] to
    bounds[i+1], and is on server servers[i] of the cache's."""

    cache: str
    first_keys: Mapping[str, int]
    bounds: tuple[int, ...]
    servers: tuple[int, ...]

    @property
    def num_keys(self) -> int:
        """Rows of all tables behind the cache."""
        return self.bounds[-1]


@dataclass(frozen=True)
class Sizes:
    """How a cache of a kind is played at any size: the caches of a plan, and what caches of one of them would exchange."""

    caches: Callable[[Plan], tuple[Keyed, ...]]
    exchanged: Callable[[Accesses, Play, Size], Exchanged]


def sizes_of(plan: Plan) -> Sizes:
    """How the caches of a plan are played at other sizes. Raises UsageError for a kind that is not."""
    section = plan.options.holder
    home = "" if type(section) in HALVES or not section.runs else section.home
    sizes: Sizes | None = (
        getattr(import_module(f"htrain.simulation.strategies.{home}"), "SIZES", None) if home else None
    )
    if sizes is None:
        raise UsageError(f"{section.words} cannot be played at other sizes than its own")
    return sizes


class World(processes.World, collective.World, Protocol):
    """What a cache sees of its simulation."""


@dataclass(frozen=True)
class BesideParts:
    """A trainer with a cache that has threads of its own: its host, and that of the next trainer; which of how many it is that have the same cache."""

    world: World
    training: Training
    host: Host
    following: Host
    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        """Whether it is the one that reads and writes the tables for all trainers that have the same cache."""
        return self.rank == 0


class RunsBeside:
    """What the caches of a plan do beside steps, on all trainers: passes of their own to the tables. They ask for rows at `rates`.

    Training goes in windows, whose ends are the times between which figures count.
    """

    def __init__(self, plan: Plan, rates: Rates) -> None:
        self.plan, self.rates = plan, rates

    @abstractmethod
    def model(self, device: str) -> DeviceModel:
        """The model of a device's part in some pass: of its program, at no size in particular."""

    @abstractmethod
    def model_at(self, device: str, context: Context) -> DeviceModel:
        """The model of a device's part in the pass of a context, which is under way."""

    @abstractmethod
    def begin(self, parts: BesideParts) -> Source:
        """Begin what a trainer's cache does; where its steps come from."""

    @property
    @abstractmethod
    def is_between(self) -> bool:
        """Whether the first trainer has run the last step of a window."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether windows are as large as they will be."""

    @abstractmethod
    def count(self) -> None:
        """Count from now on."""

    @abstractmethod
    def use(self, seconds: float) -> WindowUse:
        """What was counted, in so many seconds."""


def has_threads(plan: Plan) -> bool:
    """Whether the caches of a plan do something beside steps."""
    halves = [type(cache_of(plan, role)) for role in plan.cluster.roles if role_of(role) == TRAINER]
    return any(half.upcoming is not RunsCache.upcoming for half in halves)


def beside_of(plan: Plan) -> type[RunsBeside] | None:
    """What the caches of a plan do beside steps in a simulation; None where they do nothing. Raises PlanError for a cache of a user's own that does
    something: nobody knows what."""
    if not has_threads(plan):
        return None
    section = plan.options.holder
    if type(section) in HALVES:
        raise PlanError(
            f"the plan has a cache of kind {section.kind}, which has threads of its own that the simulation does not know: run it, in tools/netlab.py "
            "for a network of a given rate"
        )
    beside: type[RunsBeside] = import_module(f"htrain.simulation.strategies.{section.home}").BESIDE
    return beside

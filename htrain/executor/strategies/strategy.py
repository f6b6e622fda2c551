"""What a strategy may run on a role. The role asks all that its plan chooses, and knows none by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.data import Dataset
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.store import Store
from htrain.executor.host.patience import Patience
from htrain.executor.host.watch import Activity
from htrain.executor.loops.replica import Replica
from htrain.executor.loops.upcoming import Upcoming
from htrain.executor.transport.peers import Peers
from htrain.membership.served import ServedCache
from htrain.net.net import Net, Parameter
from htrain.plan.plan import Plan
from htrain.spec.dense_sync import DenseSync
from htrain.spec.fields import Section
from htrain.spec.halves import HALVES
from htrain.spec.row_holder import RowHolder
from htrain.sync.rounds import SyncRounds

S = TypeVar("S", bound=Section)
C = TypeVar("C", bound=RowHolder)
D = TypeVar("D", bound=DenseSync)


class RunHalf(Generic[S]):
    """The run half of one section of a plan's options, for one role."""

    def __init__(self, section: S, plan: Plan, role: str) -> None:
        self.section, self.plan, self.role = section, plan, role


class RunsSync(RunHalf[D]):
    """What a role does to keep dense replicas alike."""

    def rounds(self) -> SyncRounds:
        """When a holder of weights exchanges them with their centres: when so many steps have passed, at most one round at a time."""
        return SyncRounds(self.section.round_steps)

    @property
    def holds_writes(self) -> bool:
        """Whether no step writes weights while a round is under way."""
        return self.section.holds_writes


@dataclass(frozen=True)
class TrainerParts:
    """What a cache may use of its trainer. `replica_of` makes a replica that runs passes of `engine` by itself, with an endpoint of that number;
    `connect` the trainers with the same caches, for one purpose; `activity` what a thread of that name is busy with."""

    net: Net
    engine: Engine
    caches: dict[str, Any]
    replica_of: Callable[[int], Replica]
    connect: Callable[[str], Peers]
    patience: Patience
    activity: Callable[[str], Activity]


class RunsCache(RunHalf[C]):
    """What stands between a trainer and the tables, on both sides: by itself nothing."""

    endpoints: tuple[int, ...] = ()  # of replicas that a trainer's cache runs by itself

    @property
    def announced(self) -> int:
        """Batches that a trainer has open, so that its cache has heard of them."""
        return 1

    @property
    def partition(self) -> str:
        """The digest of the partition by which rows are numbered, and data is to be packed; "" where rows are numbered as in the model."""
        return ""

    def require_partition(self) -> None:
        """Raises DataError where the plan's partition cannot be read, PlanError where it is another than that of the plan. Quick: no rows are read."""

    def numbered(self, dataset: Dataset) -> Dataset:
        """Data with the rows that this plan's tables have. Raises DataError for data that is numbered by another partition."""
        return dataset

    @property
    def device(self) -> str:
        """Where a trainer computes."""
        return "cpu"

    def split(self, net: Net) -> tuple[Net, Net]:
        """The part of a device's net that belongs to steps, and what the cache runs by itself beside them."""
        return net, Net(f"apart_{net.name}", (), (), outputs=(), blobs={}, parameters={})

    def joined(self, net: Net) -> Iterator[Sequence[str]]:
        """Parameters of a net that lie in one piece of memory, one behind the other."""
        yield from ()

    def caches(self, net: Net, store: Store, places: Mapping[str, torch.device]) -> dict[str, Any]:
        """The caches of a net by the name of their parameter, and slots that they hold, on an accelerator where `places` say so."""
        return {}

    def stepped(self, net: Net) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
        """What steps rows of a net by itself, by the name of its parameter: of these tables, which lie one behind the other, and their states. It tells its
        `before_step` of them, by their places in all."""
        yield from ()

    def originals(self, parameter: Parameter) -> NDArray[np.int64] | None:
        """The rows of a parameter as they are numbered in the model, and in checkpoints; None where they are as they stand."""
        return None

    def stand_beside(self, own: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> None:
        """The caches of the role, by the names of their parameters, stand in one process with those of `others`, by role. Requires: no step has begun."""

    def upcoming(self, parts: TrainerParts) -> Upcoming | None:
        """Where a trainer's steps come from, if not straight from its data."""
        return None

    def served(self) -> tuple[ServedCache, ...]:
        """What the plan's servers can offer to workers from outside: nothing where these could not hold rows of their own."""
        return ()

    def report(self, caches: Iterable[Any]) -> dict[str, Any]:
        """What a role says of its caches; empty where it has none."""
        return {}


def sync_of(plan: Plan, role: str) -> RunsSync[Any]:
    """The run half of a plan's dense sync."""
    half = _half(plan.options.dense_sync, RunsSync)
    return half(plan.options.dense_sync, plan, role)


def cache_of(plan: Plan, role: str) -> RunsCache[Any]:
    """The run half of what a plan has between trainers and tables."""
    half = _half(plan.options.holder, RunsCache)
    return half(plan.options.holder, plan, role)


R = TypeVar("R")


def _half(section: Section, usual: type[R]) -> type[R]:
    own = HALVES.get(type(section))
    found: type[R] | None = (
        own.run if own else import_module(f"htrain.executor.strategies.{section.home}").RUN if section.runs else None
    )
    return found or usual

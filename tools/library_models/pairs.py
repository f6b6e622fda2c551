"""The pairs of optimizers that models are trained by, and the placements; which pairs a model takes its turn with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

BATCH = 16  # of each worker
DENSE: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"dense_lr": 0.05},
    "momentum": {"dense_optimizer": "sgd", "dense_lr": 0.01, "dense_momentum": 0.9},
    "adagrad": {"dense_lr": 0.01},
    "adam": {"dense_lr": 0.001},
    "adamw": {"dense_lr": 0.001},
    "ftrl": {"dense_lr": 0.05},
}
TABLES: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"sparse_lr": 0.05},
    "adagrad": {"sparse_lr": 0.05},
    "rowwise_adagrad": {"sparse_lr": 0.05},
    "sparse_adam": {"sparse_lr": 0.001},
    "ftrl": {"sparse_lr": 0.05},
}
_ALL = len(DENSE) * len(TABLES)


@dataclass(frozen=True)
class Pair:
    """An optimizer of dense weights and one of tables, by their names above; `share` is that of their rates that a training has."""

    dense: str
    tables: str
    share: float = 1.0

    def __str__(self) -> str:
        return f"{self.dense}+{self.tables}" + (f" at {self.share:g} of the rates" if self.share != 1 else "")

    @property
    def options(self) -> Options:
        """What a model is trained with in one placement or another."""
        flags = (
            {"dense_optimizer": self.dense, "sparse_optimizer": self.tables} | DENSE[self.dense] | TABLES[self.tables]
        )
        flags |= {rate: flags[rate] * self.share for rate in ("dense_lr", "sparse_lr")}
        return with_flags(batch_size=BATCH, net_replicas=1, **flags)


@dataclass(frozen=True)
class Placement:
    """The roles of a cluster of one machine, and the flags that it wants."""

    roles: Mapping[str, int]
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cluster(self) -> Cluster:
        """All roles on this machine."""
        return this_machine(**self.roles)

    @property
    def workers(self) -> int:
        """Trainers, each with batches of its own."""
        return self.roles.get("groups", 1)


_TWO = {"groups": 2, "trainers": 1, "group_ps": 0}
_LOCKSTEP = {"dense_sync": "allreduce"}
PLACEMENTS: Mapping[str, Placement] = {
    "alone": Placement({"group_ps": 0, "sparse_ps": 0}),
    "roles": Placement({"group_ps": 1, "sparse_ps": 1}),
    "het": Placement({**_TWO, "sparse_ps": 1}, {**_LOCKSTEP, "cache": "het", "cache_staleness": 0}),
    "allgather": Placement({**_TWO, "sparse_ps": 0}, {**_LOCKSTEP, "sparse_sync": "allgather"}),
}


def pairs_of(number: int, count: int) -> Sequence[Pair]:
    """The `count` pairs of model `number` of its library. Neighbours share neither optimizer, and 30 in a row are all pairs: 5 and 6 have no divisor."""
    dense, tables = tuple(DENSE), tuple(TABLES)
    turns = range(number * count, number * count + min(count, _ALL))
    return [Pair(dense[turn % len(dense)], tables[turn % len(tables)]) for turn in turns]


def placements_of(number: int, pair: Pair, *, has_tables: bool) -> Sequence[str]:
    """The placements for pair `number` of a model: the two of two groups take turns, but a het cache does not count the updates of SparseAdam, and has no
    effect where no table is trained."""
    without = number % 2 or pair.tables == "sparse_adam" or not has_tables
    return ("alone", "roles", "allgather" if without else "het")

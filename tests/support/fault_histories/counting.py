"""What is trained: a table of one column whose rows count how often they were trained, and a bias that counts examples, by SGD at rate 1 with gradients of 1.

The idea is that of tests/support/ledger.py, made small: a step is a millisecond, and what is to be counted is known beforehand.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from htrain.compiler.pipeline import compile_net
from htrain.data import Batch, Position
from htrain.data.identity import DataIdentity
from htrain.executor.assembly import NOTHING, Assembly
from htrain.executor.engine.engine import Engine
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.roles.server import ServerMachine
from htrain.executor.roles.sync import SyncMachine
from htrain.frontend.captured import Captured
from htrain.net.names import TRAINER, role_of
from htrain.net.net import B, Blob, Init, Net, Parameter
from htrain.ops.builder import NetBuilder
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags

ROWS, IDS, BATCH, MOST_BATCHES, MANY_BATCHES = 6, 2, 2, 8, 20
_NOWHERE = Path("nowhere")


def _net() -> Net:
    """one[B,1], ids[B,2] -> loss, the sum of the rows of `ids` and of B outputs of an FC: every gradient is 1."""
    builder, zero = NetBuilder("counting"), Init("constant", (0.0,))
    for blob in (Blob("one", (B, 1), "float32"), Blob("ids", (B, IDS), "int64"), Blob("label", (B,), "float32")):
        builder.input(blob)
    builder.parameter(Parameter("rows", (ROWS, 1), "float32", "table", zero))
    builder.parameter(Parameter("count.weight", (1, 1), "float32", "weight", zero))
    builder.parameter(Parameter("count.bias", (1,), "float32", "weight", zero))
    builder.add("FC", ("one", "count.weight", "count.bias"), module="count", outputs=("y",))
    builder.add("Embedding", ("rows", "ids"), attrs={"padding_idx": -1}, module="rows", outputs=("r",))
    builder.add("ReduceSum", ("r",), attrs={"axes": (0, 1, 2), "keepdims": False}, outputs=("of_rows",))
    builder.add("ReduceSum", ("y",), attrs={"axes": (0, 1), "keepdims": False}, outputs=("of_bias",))
    builder.add("Add", ("of_rows", "of_bias"), outputs=("loss",))
    return builder.build(("loss", "label"))


def _plan(flags: Mapping[str, object], **counts: int) -> Plan:
    cluster = Cluster(**{"groups": 1, "trainers": 2, "group_ps": 1, "sparse_ps": 1, "dense_ps": 0, **counts})
    said = {
        "batch_size": BATCH, "net_replicas": 1, "loss": "own", "fc_dtype": "float32", "sparse_optimizer": "sgd", "dense_optimizer": "sgd",
        "sparse_lr": 1.0, "dense_lr": 1.0, **flags,
    }  # fmt: skip
    splits = {"rows": cluster.sparse_ps}
    return compile_net(
        Captured(_net(), {}), cluster, with_flags(**said), name="counting", solver="rules", table_splits=splits
    )


@dataclass
class Parts:
    """A role put together, for one process at a time: engines are dear to make, and keep nothing of a run but parameters and caches."""

    assembly: Assembly
    flush: Engine
    _caches: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._server = None if self.assembly.role.kind == TRAINER else self.assembly.server()
        self._sync = self.assembly.sync()
        self._caches = {name: self._copied(cache.__dict__, cache) for name, cache in self.assembly.caches.items()}

    def server(self, kind: type[ServerMachine]) -> ServerMachine:
        """The machine of a PS, of this kind."""
        made = self._server
        assert made
        cluster, bound = self.assembly.plan.cluster, self.assembly.bound if self.assembly.has_steps else 0
        trainers = cluster.groups * cluster.trainers
        return kind(made.engine, centers=made.centers, apart=made.apart, bound=bound, trainers=trainers)

    def sync(self, kept: Any) -> SyncMachine | None:
        """The machine of its rounds, which goes on where `kept` says."""
        half = self.assembly.sync_half
        if self._sync is None:
            return None
        rounds = half.rounds()
        if kept:
            rounds.go_on_from(kept.next_round)
        return SyncMachine(self.assembly.name, self._sync.engine, rounds, holds_writes=half.holds_writes, kept=kept)

    def make_new(self) -> None:
        """First values, and empty caches."""
        for tensor in self.assembly.store.values():
            tensor.zero_()
        for name, cache in self.assembly.caches.items():
            cache.__dict__.update(self._copied(self._caches[name], cache))

    @staticmethod
    def _copied(state: dict[str, Any], cache: Any) -> dict[str, Any]:
        """All of a cache but the rows that it works on, which lie in the role's parameters."""
        own = [cache.__dict__[name] for name in ("_table", "_state", "_step", "_territory") if name in cache.__dict__]
        return copy.deepcopy(state, {id(each): each for each in own})


class Case:
    """A plan, its data, and what checkpoints of it have to hold. Batch k of a trainer ends at row BATCH * (k + 1) of the trainer's data."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan, self.name = plan, name
        self.trainers = [role for role in plan.cluster.roles if role_of(role) == TRAINER]
        self.identity = Identity(plan=PlanIdentity.of(plan), data=DataIdentity(1, "drawn", {}, ()))
        draws = np.random.default_rng(7)
        self._ids = {
            trainer: draws.integers(0, ROWS, size=(MANY_BATCHES, BATCH, IDS), dtype=np.int64)
            for trainer in self.trainers
        }
        self._batches = {trainer: [_batch(ids, k) for k, ids in enumerate(each)] for trainer, each in self._ids.items()}
        self._spare: dict[str, list[Parts]] = {role: [] for role in plan.cluster.roles}

    @property
    def counts_weights(self) -> bool:
        """Whether what groups and centres have learnt adds up to what was trained: rounds in which groups take the place of a centre keep no sum."""
        return self.plan.options.dense_sync.kind != "model_averaging"

    def batch(self, trainer: str, number: int) -> Batch:
        """The batch of this number of a trainer."""
        return self._batches[trainer][number]

    def rows_after(self, positions: Mapping[str, Mapping[str, int]]) -> np.ndarray:
        """How often each row has been trained once trainers stand there, [ROWS]."""
        total = np.zeros(ROWS, np.int64)
        for trainer, at in positions.items():
            assert at["row"] % BATCH == at["epoch"] == at["chunk"] == 0
            total += np.bincount(self._ids[trainer][: at["row"] // BATCH].reshape(-1), minlength=ROWS)
        return total

    def rows_of(self, batches: Sequence[tuple[str, int]]) -> np.ndarray:
        """How often these batches, by trainer and number, train each row, [ROWS]."""
        each = [np.bincount(self._ids[trainer][number].reshape(-1), minlength=ROWS) for trainer, number in batches]
        return np.sum([np.zeros(ROWS, np.int64), *each], axis=0)

    def first_row(self, role: str) -> int:
        """Of the rows that a sparse PS holds."""
        parameters = self.plan.net_of(role).parameters
        return next(p.first_row for p in parameters.values() if p.kind == "table")

    def take(self, role: str) -> Parts:
        """A role, as it is before its first step."""
        spare = self._spare[role]
        if not spare:
            assembly = Assembly(self.plan, role, replicas=self.plan.options.net_replicas)
            net = self.plan.flush_net() if role_of(role) == TRAINER else None
            spare.append(Parts(assembly, assembly.engine_of(net or NOTHING)))
        parts = spare.pop()
        parts.make_new()
        return parts

    def give_back(self, role: str, parts: Parts) -> None:
        """Nobody uses it any more."""
        self._spare[role].append(parts)


def counts_of(values: np.ndarray) -> np.ndarray:
    """How often rows with these values have been trained, [rows]."""
    return np.rint(-values.reshape(-1)).astype(np.int64)


def _batch(ids: np.ndarray, number: int) -> Batch:
    columns = {"one": np.ones((BATCH, 1), np.float32), "ids": ids, "label": np.zeros(BATCH, np.float32)}
    return Batch(columns, BATCH, Position(0, 0, BATCH * (number + 1)))


def cases() -> Sequence[Case]:
    """The plans that histories are of: two trainers, replicas that share one, caches that send what they have gathered, and groups with a centre."""
    return [
        Case(_plan({}), "two trainers"),
        Case(_plan({"net_replicas": 2}, trainers=1, sparse_ps=2), "two replicas, two sparse PSs"),
        Case(_plan({"cache": "het", "cache_capacity": "50%", "cache_staleness": 2}), "caches"),
        Case(_plan({"dense_sync": "easgd", "sync_period": 2, "sync_alpha": 0.5}, groups=2, trainers=1, dense_ps=1), "two groups and a centre"),
        Case(_plan({"dense_sync": "model_averaging", "sync_period": 2}, groups=2, trainers=1, dense_ps=1), "two groups that average"),
    ]  # fmt: skip


torch.set_num_threads(1)

"""A plan of one cached table, and ids that a test gives."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

import htrain
from htrain.net.net import Attr
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

ROWS = 24


class OneTable(nn.Module):
    """A table of ROWS rows, of two ids an example, and an FC."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 4)
        self.top = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.table(ids).sum(1))


@cache
def cached_plan(kind: str, trainers: int = 1, shards: int = 1, **flags: Any) -> Plan:
    """The plan with a cache of that kind, `shards` of its table each on a sparse PS."""
    cluster = this_machine(groups=trainers, trainers=1, group_ps=0, sparse_ps=shards)
    return htrain.compile(
        OneTable(), example_inputs={"ids": torch.zeros(4, 2, dtype=torch.int64)}, cluster=cluster, fc_splits={}, self_check=False,
        options=with_flags(dense_sync="allreduce", batch_size=8, cache=kind, **flags),
        table_splits={"table.weight": shards} if shards > 1 else {},
    )  # fmt: skip


def changed(plan: Plan, ops: str, **attrs: Attr) -> Plan:
    """The plan whose train net has other attributes at the ops of a type."""
    train = plan.nets["train"]
    moved = [replace(op, attrs={**op.attrs, **attrs}) if op.type == ops else op for op in train.ops]
    return replace(plan, nets={**plan.nets, "train": train.with_ops(moved)})


@dataclass(frozen=True)
class Given:
    """The distinct ids of each batch, by trainer."""

    ids: Sequence[Sequence[Sequence[int]]]

    def __str__(self) -> str:
        return "the test"

    def batches(self, plan: Plan, tables: Mapping[str, int], trainer: int) -> Iterator[Mapping[str, np.ndarray]]:
        for batch in self.ids[trainer]:
            yield dict.fromkeys(tables, np.array(batch, np.int64))

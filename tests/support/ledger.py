"""A model that counts: a row of its table is less by 1 for each time that a step has trained it, and what checkpoints say of that."""

from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import htrain
from htrain.data import START, Batch, Malformed, Position, open_data
from htrain.executor.record.kept import find_checkpoints
from htrain.plan.plan import Plan
from htrain.spec.cluster import Cluster
from htrain.spec.tree import with_flags

ROWS = 100
DATA = f"synthetic:?rows=3000&table_rows={ROWS}"


class Ledger(nn.Module):
    """By SGD at rate 1: the gradient of a row is 1 for each id of a batch that names it, whatever the values are."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.fc = nn.Embedding(ROWS, 1), nn.Linear(13, 1)
        nn.init.zeros_(self.rows.weight)

    def forward(
        self, dense: torch.Tensor, sparse: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logit = self.fc(dense).squeeze(1)
        return logit, self.rows(sparse).sum() + F.binary_cross_entropy_with_logits(logit, label)


def ledger_plan(cluster: Cluster, **flags: object) -> Plan:
    """A plan that trains it. Where steps can be counted they are, and run one after another: Hogwild's may lose what another writes to the same row in the same
    moment.
    """
    cannot = "cache" in flags or cluster.sparse_ps_processes > 1
    counted = {} if cannot else {"sparse_schedule": "steps", "sparse_schedule_gamma": 1.0}
    said = {
        "batch_size": 32,
        "sparse_optimizer": "sgd",
        "sparse_lr": 1.0,
        "dense_lr": 0.001,
        "loss": "own",
        **counted,
        **flags,
    }
    example = {"dense": torch.zeros(4, 13), "sparse": torch.zeros(4, 26, dtype=torch.long), "label": torch.zeros(4)}
    return htrain.compile(Ledger(), data=DATA, cluster=cluster, options=with_flags(**said), example_inputs=example)


def counted(plan: Path, run: Path) -> np.ndarray:
    """How often each row was trained, [ROWS] int64, by the table of the last checkpoint."""
    out = run.with_name(f"{run.name}.safetensors")
    htrain.export(run, to="torch", out=out, plan=plan)
    return -load_file(out)["rows.weight"].squeeze(1).double().round().long().numpy()


def last_begun(run: Path) -> int:
    """The last epoch, from 0 on, of which the last checkpoint of a run has something; -1 where it has nothing."""
    manifest = find_checkpoints(run).complete[0][1]
    positions = [state.position for state in manifest.trainers.values()]
    return max(at.epoch if at.chunk or at.row else at.epoch - 1 for at in positions)


def owed(run: Path) -> np.ndarray:
    """How often it was to be, [ROWS] int64, by where that checkpoint says that the trainers' readers stand: every row before, once."""
    (_, manifest), *_ = find_checkpoints(run).complete
    total = np.zeros(ROWS, np.int64)
    trainers = sorted(manifest.trainers)
    for shard, trainer in enumerate(trainers):
        end = manifest.trainers[trainer].position
        total += _read(shard, len(trainers), Position(end.epoch, end.chunk, end.row))
    return total


def _read(shard: int, num_shards: int, end: Position) -> np.ndarray:
    """The rows of whole epochs, which are alike, and of the last one to its place."""
    whole = _counted(_batches(shard, num_shards, START, epochs=1)) if end.epoch else 0
    last = _batches(shard, num_shards, Position(end.epoch, 0, 0), epochs=end.epoch + 1)
    return end.epoch * whole + _counted(takewhile(lambda batch: _place(batch.position) <= _place(end), last))


def _batches(shard: int, num_shards: int, start: Position, *, epochs: int) -> Iterator[Batch]:
    return open_data(DATA).batches(
        batch_size=32, shard=shard, num_shards=num_shards, epochs=epochs, start=start, malformed=Malformed()
    )


def _counted(batches: Iterable[Batch]) -> np.ndarray:
    total = np.zeros(ROWS, np.int64)
    for batch in batches:
        total += np.bincount(batch.columns["sparse"].reshape(-1), minlength=ROWS)
    return total


def _place(position: Position) -> tuple[int, int, int]:
    return position.epoch, position.chunk, position.row

"""Trainers in lockstep, and PyTorch on their joint batches."""

import copy
import inspect

import torch
from harness import RowsAskedFor, clip_gradients, sparse_and_dense_steps
from small_wide_deep import BATCH
from torch import nn

from htrain.data import START, Malformed, open_data
from htrain.executor.launch.role import RunningRole
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

# replicas of look-ahead caches, trained by SGD
JOINT = with_flags(
    batch_size=BATCH,
    cache="lookahead",
    dense_sync="allreduce",
    dense_optimizer="sgd",
    sparse_optimizer="sgd",
    dense_lr=0.05,
    sparse_lr=0.5,
)


def joint_losses(model: nn.Module, data: str, options: Options, workers: int) -> tuple[list[float], nn.Module]:
    """PyTorch on the joint batches of all workers: the mean of their losses, those without data counting zero."""
    return losses_on(model, [shard_of(data, options.batch_size, w, workers) for w in range(workers)], options)


def losses_on(
    model: nn.Module, shards: list[list[dict[str, torch.Tensor]]], options: Options
) -> tuple[list[float], nn.Module]:
    """The same on batches that are there, by worker; a model takes of them what it has arguments for."""
    model = copy.deepcopy(model)
    steps = sparse_and_dense_steps(model, options)
    criterion, asked = nn.BCEWithLogitsLoss(), RowsAskedFor(model)
    arguments = inspect.signature(model.forward).parameters
    losses = []
    for step in range(max(map(len, shards))):
        model.zero_grad()
        total, decay = torch.zeros(()), torch.zeros(())
        for shard in shards:
            if step < len(shard):
                batch = {name: value for name, value in shard[step].items() if name in arguments}
                total = total + criterion(model(**batch).reshape(-1), shard[step]["label"]) / len(shards)
                decay = decay + asked.decay(options) / len(shards)
        (total + decay).backward()  # type: ignore[no-untyped-call]
        clip_gradients(steps[0], options.dense_clip)
        for optimizer in steps:
            optimizer.step()
        losses.append(total.item())
    return losses, model


def shard_of(data: str, batch_size: int, shard: int, num_shards: int) -> list[dict[str, torch.Tensor]]:
    batches = open_data(data).batches(
        batch_size=batch_size, shard=shard, num_shards=num_shards, epochs=1, start=START, malformed=Malformed()
    )
    return [{name: torch.from_numpy(column) for name, column in batch.columns.items()} for batch in batches]


def joint_losses_of(roles: dict[str, RunningRole], workers: int) -> list[float]:
    lists = [roles[f"trainer:{w}:0"].trainer.losses for w in range(workers)]  # type: ignore[union-attr]
    return [sum(x[step] for x in lists if step < len(x)) / workers for step in range(max(map(len, lists)))]

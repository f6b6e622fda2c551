"""Collectives among all trainers. In a plan they stand on a device of their own, `all_reduce`, which every trainer has beside it.

The kernels are those of one trainer alone, for which there is nobody to reduce with; the executor's collectives do it among several.
"""

from collections.abc import Sequence

import torch

from htrain.net.net import Blob, Op
from htrain.ops.base import OpDef, Signature


def _all_reduce(*tensors: torch.Tensor, mean: bool = False) -> tuple[torch.Tensor, ...]:
    """The sum over all trainers, or the mean, of each tensor; of one trainer the tensor itself."""
    return tuple(tensor.clone() for tensor in tensors)


def _all_gather(*ids_and_rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """ids[u] and a gradient row for each, of several tables: those of all trainers, one trainer after another. Sparse gradients are of
    other rows on every trainer, and cannot be summed on the way."""
    return tuple(tensor.clone() for tensor in ids_and_rows)


def _same(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(blob.shape, blob.dtype) for blob in inputs]


def ring_bytes(op: Op, num_bytes: float, workers: int) -> float:
    """Bytes that each of `workers` sends, and receives, for a collective over `num_bytes` of each of them: around a ring, AllReduce passes
    every part on twice, AllGather everybody's whole once."""
    others = max(0, workers - 1)
    return others * num_bytes if op.type == "AllGather" else 2 * others / max(1, workers) * num_bytes


def gathered_bytes(op: Op, num_bytes: int, workers: int) -> int:
    """Bytes that a collective over `num_bytes` of each of `workers` leaves on each of them."""
    return workers * num_bytes if op.type == "AllGather" else num_bytes


DEFINITIONS = (
    OpDef("AllReduce", _all_reduce, _same, gradient=None, many=True, effects=True, place="workers", work="message"),
    OpDef("AllGather", _all_gather, _same, gradient=None, many=True, effects=True, place="workers", work="message"),
)

"""Dot products of chosen pairs of an example's features: the interaction layer of DLRM, without the products that nobody reads."""

from collections.abc import Sequence

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.net import BatchDim, Blob, Op
from htrain.ops.base import Builder, Cost, OpDef, Signature


def _pairwise_dots(features: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """y[B,P] of features[B,n,D]: for a position i * n + j, the product of features i and j."""
    dots = np.empty((features.shape[0], positions.numel()), np.float32)
    _dots(features.contiguous().numpy(), *_pairs(features, positions), dots)
    return torch.from_numpy(dots)


def _pairwise_dots_gradient(features: torch.Tensor, positions: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    gradient = np.empty(features.shape, np.float32)
    left, right = _pairs(features, positions)
    if dy.shape != (features.shape[0], positions.numel()):
        raise DataError(f"gradients of pairs are {list(dy.shape)}, want [{features.shape[0]},{positions.numel()}]")
    padded = (features.shape[1] + 3) // 4 * 4
    _gradient(features.contiguous().numpy(), left * padded + right, right * padded + left, dy.contiguous().numpy(), gradient)
    return torch.from_numpy(gradient)


def _pairs(features: torch.Tensor, positions: torch.Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The features of each pair. Raises DataError for a position that is none's: the loops do not look."""
    at, count = positions.numpy(), features.shape[1]
    if at.size and not 0 <= at.min() <= at.max() < count * count:
        raise DataError(f"positions of pairs of {count} features are {at.min()} to {at.max()}, want 0 to {count * count - 1}")
    left, right = np.divmod(at, count)
    return left, right


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _dots(features, left, right, dots):  # type: ignore[no-untyped-def]
    width = features.shape[2]
    for b in range(features.shape[0]):
        own = features[b]
        for k in range(left.size):
            i, j = left[k], right[k]
            total = np.float32(0.0)
            for d in range(width):
                total += own[i, d] * own[j, d]
            dots[b, k] = total


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _gradient(features, above, below, dy, gradient):  # type: ignore[no-untyped-def]
    """Features times the symmetric matrix of dy, in blocks of 2 x 4: a number that is loaded serves twice, one that is stored four times.

    `above` and `below` are the places of each pair in that matrix, whose rows are padded to a multiple of 4.
    """
    count, width = features.shape[1], features.shape[2]
    rows, columns = (count + 1) // 2 * 2, (count + 3) // 4 * 4
    weights = np.zeros((rows, columns), np.float32)
    flat = weights.reshape(-1)
    own = np.zeros((columns, width), np.float32)
    total = np.zeros((rows, width), np.float32)
    for b in range(features.shape[0]):
        weights[:] = 0.0
        for k in range(above.size):
            flat[above[k]] += dy[b, k]
            flat[below[k]] += dy[b, k]
        for i in range(count):
            for d in range(width):
                own[i, d] = features[b, i, d]
        total[:] = 0.0
        for i in range(0, rows, 2):
            for j in range(0, columns, 4):
                a0, a1, a2, a3 = weights[i, j], weights[i, j + 1], weights[i, j + 2], weights[i, j + 3]
                b0, b1, b2, b3 = weights[i + 1, j], weights[i + 1, j + 1], weights[i + 1, j + 2], weights[i + 1, j + 3]
                for d in range(width):
                    x0, x1, x2, x3 = own[j, d], own[j + 1, d], own[j + 2, d], own[j + 3, d]
                    total[i, d] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                    total[i + 1, d] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
        for i in range(count):
            for d in range(width):
                gradient[b, i, d] = total[i, d]


def _infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    features, positions = inputs
    return [((features.shape[0], positions.shape[0]), features.dtype)]


def _infer_gradient(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[0].shape, inputs[0].dtype)]


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A multiply-add per pair and number of a feature; of a gradient two."""
    features, positions = inputs[:2]
    rows, width = features.shape[0], features.shape[2]
    assert isinstance(rows, BatchDim)
    assert isinstance(width, int)
    assert isinstance(positions.shape[0], int)
    flops = 2.0 * rows.at(batch_size) * positions.shape[0] * width * (len(inputs) - 1)
    return Cost(flops, float(sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))))


def _rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    names = (builder.gradient_name(op.inputs[0]),)
    return [builder.add("PairwiseDotsGradient", (*op.inputs, dys[0]), module=op.module, outputs=names)[0], ""]


DEFINITIONS = (
    OpDef("PairwiseDots", _pairwise_dots, _infer, _cost, gradient=_rule, work="batched", on_host=True),
    OpDef("PairwiseDotsGradient", _pairwise_dots_gradient, _infer_gradient, _cost, gradient=None, work="batched", on_host=True),
)

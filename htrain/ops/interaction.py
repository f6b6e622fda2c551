"""Dot products of chosen pairs of an example's features: the interaction layer of DLRM, without the products that nobody reads."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.net import BatchDim, Blob, Op
from htrain.ops.base import Builder, Cost, OpDef, Signature
from htrain.ops.fields import Tables, find_misfit, step_rows


class Pairs:
    """Pairs of `count` features: of a position i * count + j features i and j."""

    def __init__(self, positions: torch.Tensor, count: int) -> None:
        """Raises DataError for a position that is none's: the loops do not look."""
        at = positions.numpy()
        if at.size and not 0 <= at.min() <= at.max() < count * count:
            raise DataError(f"positions of pairs of {count} features are {at.min()} to {at.max()}, want 0 to {count * count - 1}")
        self.count = count
        self.left, self.right = np.divmod(at, count)
        padded = (count + 3) // 4 * 4
        self.above, self.below = self.left * padded + self.right, self.right * padded + self.left  # in the symmetric matrix of weights

    def gradients(self, dy: torch.Tensor, batch: int) -> NDArray[np.float32]:
        """dy[B,P] as loops want it. Raises DataError for another shape."""
        if dy.shape != (batch, self.left.size):
            raise DataError(f"gradients of pairs are {list(dy.shape)}, want [{batch},{self.left.size}]")
        return dy.contiguous().numpy()


def _pairwise_dots(features: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """y[B,P] of features[B,n,D]: for a position i * n + j, the product of features i and j."""
    pairs = Pairs(positions, features.shape[1])
    dots = np.empty((features.shape[0], pairs.left.size), np.float32)
    _dots(features.contiguous().numpy(), pairs.left, pairs.right, dots)
    return torch.from_numpy(dots)


def _pairwise_dots_gradient(features: torch.Tensor, positions: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    pairs = Pairs(positions, features.shape[1])
    gradient = np.empty(features.shape, np.float32)
    _gradient(features.contiguous().numpy(), pairs.above, pairs.below, pairs.gradients(dy, len(features)), gradient)
    return torch.from_numpy(gradient)


def _bind_sgd(*known: torch.Tensor | None, dense: int, columns: tuple[int, ...], lr: float) -> Callable[..., tuple[torch.Tensor, ...]]:
    tables, positions = [table for table in known[:-4] if table is not None], known[-2]
    if positions is None:
        return lambda ids, features, positions, dy: _pairwise_dots_sgd(*tables, ids, features, positions, dy, dense=dense, columns=columns, lr=lr)
    return partial(_step_by_pairs, Tables(tables, columns), Pairs(positions, dense + len(tables)), lr=lr)


def _pairwise_dots_sgd(*values: torch.Tensor, dense: int, columns: tuple[int, ...], lr: float) -> tuple[torch.Tensor, ...]:
    """The gradient of features[B,n,D] that StackTables has stacked: that of the `dense` first is returned, the rows of the others take a step of SGD."""
    *tables, ids, features, positions, dy = values
    return _step_by_pairs(Tables(tables, columns), Pairs(positions, dense + len(tables)), ids, features, dy, lr=lr)


def _step_by_pairs(
    tables: Tables, pairs: Pairs, ids: torch.Tensor, features: torch.Tensor, dy: torch.Tensor, *, lr: float
) -> tuple[torch.Tensor, ...]:
    batch, rows = len(ids), tables.ids(ids)
    if features.shape != (batch, pairs.count, tables.width):
        raise DataError(f"features are {list(features.shape)}, want [{batch},{pairs.count},{tables.width}]")
    dx = np.empty((pairs.count - len(tables.tensors), batch, tables.width), np.float32)
    bad = _gradient_and_step(
        features.contiguous().numpy(), pairs.above, pairs.below, pairs.gradients(dy, batch), dx, tables.pointers, tables.sizes, rows, tables.columns, lr
    )
    if bad >= 0:
        raise tables.misfit(bad, rows)
    return tuple(torch.from_numpy(dx))


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


@njit(nogil=True, cache=True)
def _are_distinct(above, below, size):  # type: ignore[no-untyped-def]
    """Whether no place in the matrix is of two pairs, nor of one twice: then numbers are put there, not added."""
    seen = np.zeros(size, np.bool_)
    for k in range(above.size):
        if seen[above[k]] or seen[below[k]] or above[k] == below[k]:
            return False
        seen[above[k]] = seen[below[k]] = True
    return True


@njit(nogil=True, cache=True)
def _set_weights(weights, above, below, dy, distinct):  # type: ignore[no-untyped-def]
    """The symmetric matrix of an example's dy. `above` and `below` are the places of each pair in it."""
    if distinct:
        for k in range(above.size):
            weights[above[k]] = dy[k]
            weights[below[k]] = dy[k]
    else:
        weights[:] = 0.0
        for k in range(above.size):
            weights[above[k]] += dy[k]
            weights[below[k]] += dy[k]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"}, inline="always")
def _blocks(weights, own, total, width):  # type: ignore[no-untyped-def]
    for i in range(0, own.shape[0], 4):
        for d in range(width):
            total[i, d] = total[i + 1, d] = total[i + 2, d] = total[i + 3, d] = 0.0
        for j in range(0, own.shape[0], 4):
            a0, a1, a2, a3 = weights[i, j], weights[i, j + 1], weights[i, j + 2], weights[i, j + 3]
            b0, b1, b2, b3 = weights[i + 1, j], weights[i + 1, j + 1], weights[i + 1, j + 2], weights[i + 1, j + 3]
            c0, c1, c2, c3 = weights[i + 2, j], weights[i + 2, j + 1], weights[i + 2, j + 2], weights[i + 2, j + 3]
            e0, e1, e2, e3 = weights[i + 3, j], weights[i + 3, j + 1], weights[i + 3, j + 2], weights[i + 3, j + 3]
            for d in range(width):
                x0, x1, x2, x3 = own[j, d], own[j + 1, d], own[j + 2, d], own[j + 3, d]
                total[i, d] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
                total[i + 1, d] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
                total[i + 2, d] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
                total[i + 3, d] += e0 * x0 + e1 * x1 + e2 * x2 + e3 * x3


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _mix(weights, own, total):  # type: ignore[no-untyped-def]
    """total[n,D] = weights[n,n] @ own[n,D], in blocks of 4 x 4: a number that is loaded serves four times, and so does one that is stored.

    The usual widths are compiled as such: their loops have no ends to see to. Requires: n a multiple of 4.
    """
    width = own.shape[1]
    if width == 16:
        _blocks(weights, own, total, 16)
    elif width == 64:
        _blocks(weights, own, total, 64)
    elif width == 128:
        _blocks(weights, own, total, 128)
    else:
        _blocks(weights, own, total, width)


@njit(nogil=True, cache=True)
def _room(count, width):  # type: ignore[no-untyped-def]
    """A matrix of weights, and features before and after it: `count` of them, padded to a multiple of 4."""
    padded = (count + 3) // 4 * 4
    return np.zeros((padded, padded), np.float32), np.zeros((padded, width), np.float32), np.zeros((padded, width), np.float32)


@njit(nogil=True, cache=True)
def _copy(rows, to, count):  # type: ignore[no-untyped-def]
    """Element by element: Numba's assignment of slices looks for overlaps each time."""
    for i in range(count):
        for d in range(rows.shape[1]):
            to[i, d] = rows[i, d]


@njit(nogil=True, cache=True)
def _gradient(features, above, below, dy, gradient):  # type: ignore[no-untyped-def]
    """Features times the symmetric matrix of dy, example by example."""
    batch, count, width = features.shape
    weights, own, total = _room(count, width)
    distinct = _are_distinct(above, below, weights.size)
    for b in range(batch):
        _set_weights(weights.reshape(-1), above, below, dy[b], distinct)
        _copy(features[b], own, count)
        _mix(weights, own, total)
        _copy(total, gradient[b], count)


@njit(nogil=True, cache=True)
def _gradient_and_step(features, above, below, dy, dx, tables, sizes, ids, columns, lr):  # type: ignore[no-untyped-def]
    """The same, of which the first features' goes to dx, and the others' into the rows that they were. An unfit table, or -1."""
    batch, count, width = features.shape
    bad = find_misfit(sizes, ids, columns)
    if bad >= 0:
        return bad
    weights, own, total = _room(count, width)
    distinct = _are_distinct(above, below, weights.size)
    for b in range(batch):
        _set_weights(weights.reshape(-1), above, below, dy[b], distinct)
        _copy(features[b], own, count)
        _mix(weights, own, total)
        for k in range(dx.shape[0]):
            for d in range(width):
                dx[k, b, d] = total[k, d]
        step_rows(tables, sizes, ids, columns, b, np.float32(lr), total, dx.shape[0])
    return -1


def _infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    features, positions = inputs
    return [((features.shape[0], positions.shape[0]), features.dtype)]


def _infer_gradient(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[0].shape, inputs[0].dtype)]


def _infer_sgd(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    dense = op.attrs["dense"]
    assert isinstance(dense, int)
    batch, _, width = inputs[-3].shape
    return [((batch, width), "float32")] * dense


def _stepped(op: Op) -> tuple[int, ...]:
    """The tables."""
    return tuple(range(len(op.inputs) - 4))


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A multiply-add per pair and number of a feature; of a gradient two. Rows that take a step are read and written besides."""
    dots = op.type == "PairwiseDots"
    features, positions = inputs[:2] if dots else inputs[-3:-1]
    rows, _, width = features.shape
    assert isinstance(rows, BatchDim)
    assert isinstance(width, int)
    assert isinstance(positions.shape[0], int)
    flops = 2.0 * rows.at(batch_size) * positions.shape[0] * width * (1 if dots else 2)
    stepped = 2 * features.num_bytes(batch_size) if op.type == "PairwiseDotsSgd" else 0
    values = inputs if op.type != "PairwiseDotsSgd" else inputs[-4:]
    return Cost(flops, float(stepped + sum(b.num_bytes(batch_size) for b in (*values, *outputs))))


def _rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    names = (builder.gradient_name(op.inputs[0]),)
    return [builder.add("PairwiseDotsGradient", (*op.inputs, dys[0]), module=op.module, outputs=names)[0], ""]


DEFINITIONS = (
    OpDef("PairwiseDots", _pairwise_dots, _infer, _cost, gradient=_rule, work="batched", on_host=True),
    OpDef("PairwiseDotsGradient", _pairwise_dots_gradient, _infer_gradient, _cost, gradient=None, work="batched", on_host=True),
    OpDef("PairwiseDotsSgd", _pairwise_dots_sgd, _infer_sgd, _cost, None, effects=True, writes=_stepped, bind=_bind_sgd, work="batched", on_host=True),
)

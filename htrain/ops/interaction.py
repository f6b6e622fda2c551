"""Dot products of chosen pairs of an example's features: the interaction layer of DLRM, without the products that nobody reads, behind the features that
are read besides."""

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import torch

from htrain.errors import DataError
from htrain.net.net import BatchDim, Blob, Op
from htrain.ops import accelerated
from htrain.ops.base import Builder, Cost, OpDef, RowChange, Signature, changes_by_columns, runs
from htrain.ops.interaction_loops import dots_loop, gradient_and_step_loop, gradient_loop
from htrain.ops.sparse_checks import Rows
from htrain.ops.tables import Tables


class Pairs:
    """Pairs of `count` features: of a position i * count + j features i and j.

    `above` and `below` the diagonal are their places in the symmetric matrix of all products, whose sides are padded to a multiple of 4. Neighbours that
    are neighbours below it, too, are copied in one go: `runs` has a row (place, first pair, length) for each. `tiles` are the corners of those blocks of
    4 x 4 of the matrix that have a pair below the diagonal, or on it.
    """

    def __init__(self, positions: torch.Tensor, count: int) -> None:
        """Raises DataError for a position that is none's: the loops do not look."""
        at = positions.numpy()
        if at.size and not 0 <= at.min() <= at.max() < count * count:
            raise DataError(
                f"positions of pairs of {count} features are {at.min()} to {at.max()}, want 0 to {count * count - 1}"
            )
        self.count, self.size = count, at.size
        left, right = np.divmod(at, count)
        high, low = np.maximum(left, right), np.minimum(left, right)
        padded = (count + 3) // 4 * 4
        self.above, self.below = low * padded + high, high * padded + low
        begins = np.flatnonzero(np.diff(self.below, prepend=-2) != 1)
        self.runs = np.stack([self.below[begins], begins, np.diff(begins, append=at.size)], axis=1)
        self.tiles = np.unique(np.stack([high // 4 * 4, low // 4 * 4], axis=1), axis=0)

    def gradients(self, dy: torch.Tensor, batch: int, numbers: int) -> Rows:
        """dy[B,numbers+P] as loops want it: an array whose rows begin with those of dy. Raises DataError for another shape."""
        wanted = numbers + self.size
        if dy.shape != (batch, wanted) or dy.dtype != torch.float32:
            raise DataError(f"gradients of pairs are {dy.dtype}{list(dy.shape)}, want torch.float32[{batch},{wanted}]")
        dy = (
            dy if dy.stride(1) == 1 and dy.stride(0) >= wanted else dy.contiguous()
        )  # part of a wider value stays where it is
        return np.lib.stride_tricks.as_strided(dy.numpy(), (batch, dy.stride(0)), (4 * dy.stride(0), 4))


def _bind_dots(*known: torch.Tensor | None, kept: int = 0) -> Callable[..., torch.Tensor]:
    positions = known[1]
    if positions is None:
        return partial(_pairwise_dots, kept=kept)
    pairs_of = cache(partial(Pairs, positions))  # the first features say how many they are
    return lambda features: _dots_of(features, pairs_of(features.shape[1]), kept)


def _pairwise_dots(features: torch.Tensor, positions: torch.Tensor, *, kept: int = 0) -> torch.Tensor:
    """y[B,kept*D+P] of features[B,n,D]: the first `kept` as they are, then for a position i * n + j the product of features i and j."""
    return _dots_of(features, Pairs(positions, features.shape[1]), kept)


def _dots_of(features: torch.Tensor, pairs: Pairs, kept: int) -> torch.Tensor:
    batch, count, width = features.shape
    if not 0 <= kept <= count:
        raise DataError(f"{kept} features are to be given out, of {count}")
    dots = np.empty((batch, kept * width + pairs.size), np.float32)
    dots_loop(features.contiguous().numpy(), pairs.tiles, pairs.runs, kept, dots)
    return torch.from_numpy(dots)


def _pairwise_dots_gradient(
    features: torch.Tensor, positions: torch.Tensor, dy: torch.Tensor, *, kept: int = 0
) -> torch.Tensor:
    pairs = Pairs(positions, features.shape[1])
    gradient, given = np.empty(features.shape, np.float32), pairs.gradients(dy, len(features), kept * features.shape[2])
    gradient_loop(
        features.contiguous().numpy(),
        pairs.above,
        below=pairs.below,
        runs=pairs.runs,
        kept=kept,
        dy=given,
        gradient=gradient,
    )
    return torch.from_numpy(gradient)


def _bind_sgd(
    *known: torch.Tensor | None, dense: int, columns: tuple[int, ...], lr: float, kept: int = 0
) -> Callable[..., tuple[torch.Tensor, ...]]:
    tables, positions = [table for table in known[:-4] if table is not None], known[-2]
    if positions is None:
        return lambda *rest: _pairwise_dots_sgd(*tables, *rest, dense=dense, columns=columns, lr=lr, kept=kept)
    return partial(_step_by_pairs, Tables(tables, columns), Pairs(positions, dense + len(tables)), lr=lr, kept=kept)


def _pairwise_dots_sgd(
    *values: torch.Tensor, dense: int, columns: tuple[int, ...], lr: float, kept: int = 0
) -> tuple[torch.Tensor, ...]:
    """The gradient of features[B,n,D] that StackTables has stacked: that of the `dense` first is returned, the rows of the others take a step of SGD."""
    *tables, ids, features, positions, dy = values
    return _step_by_pairs(
        Tables(tables, columns), Pairs(positions, dense + len(tables)), ids, features, dy, lr=lr, kept=kept
    )


def _step_by_pairs(
    tables: Tables, pairs: Pairs, ids: torch.Tensor, features: torch.Tensor, dy: torch.Tensor, *, lr: float, kept: int
) -> tuple[torch.Tensor, ...]:
    batch, rows = len(ids), tables.ids(ids)
    if features.shape != (batch, pairs.count, tables.width):
        raise DataError(f"features are {list(features.shape)}, want [{batch},{pairs.count},{tables.width}]")
    dx = np.empty((pairs.count - len(tables.tensors), batch, tables.width), np.float32)
    bad = gradient_and_step_loop(
        features.contiguous().numpy(), pairs.above, below=pairs.below, runs=pairs.runs, kept=kept, dy=pairs.gradients(dy, batch, kept * tables.width),
        dx=dx, tables=tables.pointers, sizes=tables.sizes, ids=rows, columns=tables.columns, lr=lr,
    )  # fmt: skip
    if bad >= 0:
        raise tables.out_of_range(bad, rows)
    return tuple(torch.from_numpy(dx))


def _infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    features, positions = inputs
    batch, _, width = features.shape
    assert isinstance(width, int)
    assert isinstance(positions.shape[0], int)
    return [((batch, _kept(op) * width + positions.shape[0]), features.dtype)]


def _kept(op: Op) -> int:
    kept = op.attrs.get("kept", 0)
    assert isinstance(kept, int)
    return kept


def _infer_gradient(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[0].shape, inputs[0].dtype)]


def _infer_sgd(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    dense = op.attrs["dense"]
    assert isinstance(dense, int)
    batch, _, width = inputs[-3].shape
    return [((batch, width), "float32")] * dense


def _stepped(op: Op) -> tuple[int, ...]:
    """The positions of the tables."""
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
    return [
        builder.add("PairwiseDotsGradient", (*op.inputs, dys[0]), attrs=op.attrs, module=op.module, outputs=names)[0],
        "",
    ]


def _changes(op: Op) -> Sequence[RowChange]:
    return changes_by_columns(op, op.inputs[:-4], op.inputs[-4])


DEFINITIONS = (
    OpDef(
        "PairwiseDots",
        _pairwise_dots,
        _infer,
        _cost,
        gradient=_rule,
        bind=_bind_dots,
        work="batched",
        on_host=True,
        accelerated=accelerated.pairwise_dots,
        loops=runs(dots_loop),
    ),
    OpDef(
        "PairwiseDotsGradient",
        _pairwise_dots_gradient,
        _infer_gradient,
        _cost,
        gradient=None,
        work="batched",
        on_host=True,
        accelerated=accelerated.pairwise_dots_gradient,
        loops=runs(gradient_loop),
    ),
    OpDef(
        "PairwiseDotsSgd",
        _pairwise_dots_sgd,
        _infer_sgd,
        _cost,
        None,
        many=True,
        effects=True,
        writes=_stepped,
        changes=_changes,
        bind=_bind_sgd,
        work="batched",
        on_host=True,
    ),
)

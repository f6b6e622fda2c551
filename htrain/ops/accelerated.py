"""Lookups and sparse optimizer steps on an accelerator (cDLRM 5.2.2, 5.2.3).

The kernels here are those of ops whose own are loops over host memory (`OpDef.accelerated`). Each does what the op of its name does, with the same
attributes. Places and slots are not checked against their tables: the host has made them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.nn import functional as F

from htrain.ops.base import OpDef
from htrain.ops.ftrl import ftrl_step


def lookup(table: torch.Tensor, ids: torch.Tensor, *, first_row: int) -> torch.Tensor:
    """rows[u,D] of `ids`: int64[u], out of a shard table[R,D] that starts at `first_row`."""
    return table.index_select(0, ids - first_row if first_row else ids)


def take_rows(rows: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """y[..,D] = rows[inverse], where `rows` is [u,D] and `inverse` int64[..]; a place of -1 gives zeros."""
    return F.embedding(_behind(inverse, rows.shape[0]), _with_padding(rows))


def take_rows_gradient(rows: torch.Tensor, inverse: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """drows[u,D] of `take_rows`: dy[..,D] summed over the places that name a row."""
    return _summed(dy.reshape(-1, rows.shape[1]), inverse.reshape(-1), rows.shape[0])


def pool_rows(
    rows: torch.Tensor, inverse: torch.Tensor, *rest: torch.Tensor, mode: str, weighted: bool
) -> torch.Tensor:
    """y[B,D]: the sum, or with `mode` mean the mean, of the rows[u,D] of each bag; a place of -1 counts for nothing.

    `inverse` is int64[B,W], a bag in each row, or int64[n] with offsets int64[B] after it. With `weighted`, weights of
    its shape come last and scale rows.
    """
    flat, offsets = _bags(inverse, rest)
    weights = rest[-1].reshape(-1) if weighted else None
    padding = rows.shape[0]
    return F.embedding_bag(
        _behind(flat, padding),
        _with_padding(rows),
        offsets,
        mode=mode,
        per_sample_weights=weights,
        padding_idx=padding,
    )


def pool_rows_gradient(
    rows: torch.Tensor, inverse: torch.Tensor, *rest: torch.Tensor, mode: str, weighted: bool, wants_weights: bool
) -> tuple[torch.Tensor, ...]:
    """drows[u,D] of `pool_rows` for dy[B,D], which is the last of `rest`; with `wants_weights` also the gradient of the
    weights.
    """
    *bags, dy = rest
    flat, offsets = _bags(inverse, bags)
    bag_of = torch.bucketize(torch.arange(flat.numel(), device=flat.device), offsets, right=True) - 1
    counted = (flat >= 0).to(dy.dtype)
    scale = bags[-1].reshape(-1) if weighted else counted
    if mode == "mean":
        scale = counted / dy.new_zeros(offsets.numel()).index_add_(0, bag_of, counted).clamp_(min=1).index_select(
            0, bag_of
        )
    drows = _summed(dy.index_select(0, bag_of) * scale.unsqueeze(1), flat, rows.shape[0])
    if not wants_weights:
        return (drows,)
    seen = F.embedding(_behind(flat, rows.shape[0]), _with_padding(rows))
    return drows, (seen * dy.index_select(0, bag_of)).sum(1).reshape(bags[-1].shape)


def _bags(inverse: torch.Tensor, rest: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat inverse indices, and where each bag begins."""
    if inverse.dim() == 1:
        return inverse, rest[0]
    return inverse.reshape(-1), torch.arange(inverse.shape[0], device=inverse.device) * inverse.shape[1]


def _with_padding(rows: torch.Tensor) -> torch.Tensor:
    """rows[u+1,D]: a row of zeros after the others."""
    return F.pad(rows, (0, 0, 0, 1))


def _behind(inverse: torch.Tensor, padding: int) -> torch.Tensor:
    """Inverse indices in which -1, the padding id's, is that of the row behind the others."""
    return torch.where(inverse < 0, padding, inverse)


def _summed(rows: torch.Tensor, inverse: torch.Tensor, count: int) -> torch.Tensor:
    """The sum of the rows of each inverse index below `count`."""
    return rows.new_zeros(count + 1, rows.shape[1]).index_add_(0, _behind(inverse, count), rows).narrow(0, 0, count)


def _places(ids: torch.Tensor, first_row: int) -> torch.Tensor:
    """Where distinct ids stand in a shard that starts at `first_row`."""
    return ids - first_row if first_row else ids


def sparse_sgd(table: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor, *, lr: float, first_row: int) -> None:
    """table[id] -= lr * row, in place, for distinct ids int64[u] of a shard table[R,D] that starts at `first_row`, and
    rows[u,D].
    """
    table.index_add_(0, _places(ids, first_row), rows, alpha=-lr)


def sparse_adagrad(
    table: torch.Tensor,
    accumulator: torch.Tensor,
    ids: torch.Tensor,
    rows: torch.Tensor,
    *,
    lr: float,
    eps: float,
    first_row: int,
) -> None:
    """Adagrad in place on the rows of a shard, each number with an accumulator of its own: accumulator[R,D],
    table[R,D].

    `ids` are distinct, int64[u], and `rows`[u,D] are their gradients; the shard starts at `first_row`.
    """
    slots = _places(ids, first_row)
    accumulator.index_add_(0, slots, rows.square())
    total = accumulator.index_select(0, slots)
    table.index_add_(0, slots, rows / total.sqrt_().add_(eps), alpha=-lr)


def row_wise_adagrad(
    table: torch.Tensor,
    accumulator: torch.Tensor,
    ids: torch.Tensor,
    rows: torch.Tensor,
    *,
    lr: float,
    eps: float,
    first_row: int,
) -> None:
    """Adagrad in place on the rows of a shard, with one accumulator[R] for a row of table[R,D]: of the mean of the
    squared gradient.

    `ids` are distinct, int64[u], and `rows`[u,D] are their gradients; the shard starts at `first_row`.
    """
    slots = _places(ids, first_row)
    accumulator.index_add_(0, slots, rows.square().mean(1))
    total = accumulator.index_select(0, slots)
    table.index_add_(0, slots, rows / total.sqrt_().add_(eps).unsqueeze(1), alpha=-lr)


def sparse_ftrl(
    table: torch.Tensor,
    ftrl: torch.Tensor,
    ids: torch.Tensor,
    rows: torch.Tensor,
    *,
    lr: float,
    beta: float,
    l1: float,
    l2: float,
    first_row: int,
) -> None:
    """FTRL-Proximal in place on the rows of a shard; ftrl[R,2D] is z, then n, of each row of table[R,D].

    `ids` are distinct, int64[u], and `rows`[u,D] are their gradients; the shard starts at `first_row`.
    """
    slots = _places(ids, first_row).long()
    held, state = table.index_select(0, slots), ftrl.index_select(0, slots)
    z, n = state.tensor_split(2, 1)
    ftrl_step(held, z, n, rows, lr=lr, beta=beta, l1=l1, l2=l2)
    table.index_copy_(0, slots, held)
    ftrl.index_copy_(0, slots, state)


def fc_relu(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """y[B,N] = max(x[B,K] @ w[N,K].T + b[N], 0), in one kernel where there is a bias."""
    if bias and x.dim() == 2:
        return torch._addmm_activation(bias[0], x, w.t())
    return F.linear(x, w, *bias).relu_()


def bind_fc_sgd(*known: torch.Tensor | None, lr: float) -> Callable[..., None]:
    """FCSgd with a weight[N,K] and a bias[N] that are known."""
    w, *bias = (each for each in known if each is not None)
    return _FCSgd(w, bias[0] if bias else None, lr)


def fc_sgd(w: torch.Tensor, *rest: torch.Tensor, lr: float) -> None:
    """w[N,K] -= lr * dy[B,N].T @ x[B,K], and b[N] -= lr * dy summed over the batch: `rest` are the bias, where there is one, x and dy."""
    *bias, x, dy = rest
    _FCSgd(w, bias[0] if bias else None, lr)(x, dy)


class _FCSgd:
    """One FC's step: two products. The bias takes that of the gradient and ones, which are kept from step to step."""

    def __init__(self, w: torch.Tensor, bias: torch.Tensor | None, lr: float) -> None:
        self._w, self._bias, self._lr = w, bias, lr
        self._ones = w.new_ones(0)

    def __call__(self, x: torch.Tensor, dy: torch.Tensor) -> None:
        x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        if x.dtype != self._w.dtype:
            self._w.sub_(dy.t() @ x, alpha=self._lr)
        else:
            self._w.addmm_(dy.t(), x, alpha=-self._lr)
        if self._bias is None:
            return
        if dy.dtype != self._bias.dtype:
            self._bias.sub_(dy.sum(0, dtype=self._bias.dtype), alpha=self._lr)
            return
        if self._ones.numel() < len(dy):
            self._ones = self._w.new_ones(len(dy))
        self._bias.addmv_(dy.t(), self._ones.narrow(0, 0, len(dy)), alpha=-self._lr)


def pairwise_dots(features: torch.Tensor, positions: torch.Tensor, *, kept: int = 0) -> torch.Tensor:
    """y[B, kept * D + P]: the first `kept` features, then the dot products of pairs of features[B,F,D] (HT 2.1).

    `positions`: int64[P] are places in the F x F matrix of dot products, by rows.
    """
    dots = torch.bmm(features, features.transpose(1, 2)).flatten(1).index_select(1, positions)
    return torch.cat([features.narrow(1, 0, kept).flatten(1), dots], 1) if kept else dots


def pairwise_dots_gradient(
    features: torch.Tensor, positions: torch.Tensor, dy: torch.Tensor, *, kept: int = 0
) -> torch.Tensor:
    """dfeatures[B,F,D] of `pairwise_dots` for dy[B, kept * D + P]."""
    examples, count, width = features.shape
    own, products = dy.split([kept * width, dy.shape[1] - kept * width], 1)
    weights = dy.new_zeros(examples, count * count).index_add_(1, positions, products).view(examples, count, count)
    gradient = torch.bmm(weights + weights.transpose(1, 2), features)
    gradient.narrow(1, 0, kept).add_(own.reshape(examples, kept, width))
    return gradient


def stack_rows(*values: torch.Tensor, dense: int) -> torch.Tensor:
    """y[B,F,D]: `dense` features of [B,D], then for each table the rows[u,D] that its inverse indices int64[B] take;
    all rows come before all indices.
    """
    own, rows, inverse = _fields(values, dense)
    return torch.stack([*own, *(take_rows(r, p) for r, p in zip(rows, inverse, strict=True))], 1)


def stack_rows_gradient(*values: torch.Tensor, dense: int) -> tuple[torch.Tensor, ...]:
    """The gradients of what `stack_rows` takes, of the features and then of the rows of each table, for dy[B,F,D],
    which is the last value.
    """
    *inputs, dy = values
    _, rows, inverse = _fields(inputs, dense)
    parts = dy.unbind(1)
    return (
        *parts[:dense],
        *(take_rows_gradient(r, p, d) for r, p, d in zip(rows, inverse, parts[dense:], strict=True)),
    )


def _fields(
    values: Sequence[torch.Tensor], dense: int
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """Dense values, rows, and inverse indices."""
    tables = (len(values) - dense) // 2
    return values[:dense], values[dense : dense + tables], values[dense + tables :]


def on_accelerator(definition: OpDef) -> OpDef:
    """The op that takes the place of one with an `accelerated` kernel, where tensors are on an accelerator."""
    assert definition.accelerated
    name = accelerated_type(definition.type)
    return replace(
        definition,
        type=name,
        kernel=definition.accelerated,
        gradient=None,
        bind=definition.bind_accelerated,
        on_host=False,
        accelerated=None,
        bind_accelerated=None,
        aten=(),
        onnx=False,
    )


def accelerated_type(type: str) -> str:
    """The name of what takes an op's place on an accelerator."""
    return f"Accelerated{type}"

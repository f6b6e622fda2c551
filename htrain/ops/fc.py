"""FC: y[B,N] = x[B,K] @ w[N,K].T + b[N], and its gradient (HT 2.1: the FC and FCGradient operators)."""

from collections.abc import Sequence

import torch
from torch.nn.functional import linear

from htrain.net import Blob, Op, numel
from htrain.ops.base import Builder, Cost, OpDef, Signature


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    rows, n = numel(outputs[0].shape[:-1], batch_size), numel(outputs[0].shape[-1:], batch_size)
    k = numel(inputs[0].shape[-1:], batch_size)
    bias = len(inputs) == 3
    return Cost(2.0 * rows * k * n + bias * rows * n, 4.0 * (rows * k + n * k + bias * n + rows * n))


def _gradient_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    rows, k = numel(inputs[0].shape[:-1], batch_size), numel(inputs[0].shape[-1:], batch_size)
    n = numel(inputs[2].shape[-1:], batch_size)
    bias, wants_x = bool(op.attrs["bias"]), bool(op.attrs["wants_x"])
    products = 1 + wants_x  # dw = dy.T @ x, and dx = dy @ w where somebody wants it
    moved = rows * k + rows * n + n * k + bias * n + wants_x * (n * k + rows * k)
    return Cost(2.0 * products * rows * k * n + bias * rows * n, 4.0 * moved)


def _kernel(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    return linear(x, w, *bias)


def _gradient_kernel(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, *, bias: bool, wants_x: bool
) -> tuple[torch.Tensor, ...]:
    dw = dy.t() @ x
    db = (dy.sum(0),) if bias else ()
    dx = (dy @ w,) if wants_x else ()
    return (dw, *db, *dx)


def _gradient_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    x, w, _ = inputs
    bias = [(w.shape[:1], w.dtype)] if op.attrs["bias"] else []
    return [(w.shape, w.dtype), *bias, *([(x.shape, x.dtype)] if op.attrs["wants_x"] else [])]


def _gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    bias = len(op.inputs) == 3
    names = [builder.gradient_name(n) for n in op.inputs[1:]] + [builder.gradient_name(op.inputs[0])] * wanted[0]
    attrs = {"bias": bias, "wants_x": wanted[0]}
    outputs = builder.add("FCGradient", (*op.inputs[:2], dys[0]), attrs=attrs, module=op.module, outputs=names)
    return [outputs[-1] if wanted[0] else "", *outputs[: 1 + bias]]


FC = OpDef("FC", _kernel, cost=_cost, gradient=_gradient, work="gemm")
FC_GRADIENT = OpDef("FCGradient", _gradient_kernel, _gradient_infer, _gradient_cost, gradient=None, work="gemm")
DEFINITIONS = (FC, FC_GRADIENT)

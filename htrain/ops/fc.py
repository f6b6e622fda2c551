"""FC: y[B,N] = x[B,K] @ w[N,K].T + b[N], and its gradient (HT 2.1: the FC and FCGradient operators)."""

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import linear

from htrain.net import Blob, Op, numel
from htrain.ops.base import Builder, Cost, OpDef, Signature, no_outputs
from htrain.ops.blas import add_product, is_ahead, product


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    rows, n = numel(outputs[0].shape[:-1], batch_size), numel(outputs[0].shape[-1:], batch_size)
    k = numel(inputs[0].shape[-1:], batch_size)
    bias = len(inputs) == 3
    return Cost(2.0 * rows * k * n + bias * rows * n, _bytes(inputs) * (rows * k + n * k + bias * n + rows * n))


def _gradient_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    rows, k = numel(inputs[0].shape[:-1], batch_size), numel(inputs[0].shape[-1:], batch_size)
    n = numel(inputs[2].shape[-1:], batch_size)
    bias, wants_x = bool(op.attrs["bias"]), bool(op.attrs["wants_x"])
    products = 1 + wants_x  # dw = dy.T @ x, and dx = dy @ w where somebody wants it
    moved = rows * k + rows * n + n * k + bias * n + wants_x * (n * k + rows * k)
    return Cost(2.0 * products * rows * k * n + bias * rows * n, _bytes(inputs) * moved)


def _bytes(inputs: Sequence[Blob]) -> float:
    """Of a number: FCs take and give one dtype."""
    return 2.0 if inputs[0].dtype == "bfloat16" else 4.0


_pointwise: Callable[..., torch.Tensor] | None = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
)  # oneDNN's product, with what comes behind it in the same pass: tools/bench/fc_products.py


_MANY = 512  # rows: with more, oneDNN is ahead of OpenBLAS where nothing is added (tools/bench/fc_products.py)


_SEVERAL = 128  # rows: with fewer a gradient is made as fast by either, and torch's own is the one that nets without fusions are compared with


_FEW = 32  # columns: MKL makes a narrow gradient at twice the speed when it is turned, as wide as dy (tools/bench/fc_products.py)


_LARGE = 1 << 23  # multiply-adds: below, beginning costs oneDNN more than it gains


def _by_onednn(x: torch.Tensor, outputs: int, w: torch.Tensor) -> bool:
    large = _pointwise is not None and x.numel() * outputs >= _LARGE
    return large and x.device.type == "cpu" and x.dtype == w.dtype and x.dtype in (torch.float32, torch.bfloat16)


def _by_openblas(rows: torch.Tensor, w: torch.Tensor) -> bool:
    return len(rows) <= _MANY and is_ahead(rows, w)


def _kernel(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    return linear(x, w, *bias)


def _gradient_kernel(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, *, bias: bool, wants_x: bool
) -> tuple[torch.Tensor, ...]:
    dw = product(dy.t(), x) if len(x) >= _SEVERAL and is_ahead(dy.t(), x) else dy.t() @ x
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


def _relu_kernel(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """max(FC, 0)."""
    if _by_openblas(x, w.t()):
        y = product(x, w.t())
        return (y.add_(bias[0]) if bias else y).relu_()
    if _pointwise and _by_onednn(x, w.shape[0], w):
        return _pointwise(x, w, bias[0] if bias else None, "relu", [], "")
    return linear(x, w, *bias).relu_()


def _relu_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """Those of Relu and of FC."""
    (y,) = op.outputs
    names = (builder.gradient_name(f"{y}_sum"),)
    (dy,) = builder.add("ReluGradient", (y, dys[0]), module=op.module, outputs=names)
    return _gradient(builder, op, (dy,), wanted)


def _input_gradient(w: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """dx[B,K] = dy[B,N] @ w[N,K]."""
    if _by_openblas(dy, w):
        return product(dy, w)
    if _pointwise and _by_onednn(dy, w.shape[1], w):
        return _pointwise(dy, w.t(), None, "none", [], "")
    return dy @ w


def _input_gradient_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    w, dy = inputs
    return [((*dy.shape[:-1], w.shape[1]), w.dtype)]


def _sgd(w: torch.Tensor, *rest: torch.Tensor, lr: float) -> None:
    """w -= lr * dw, and b -= lr * db, of x[B,K] and dy[B,N]: the product goes into the weight, no gradient is kept. One of bfloat16 is rounded first."""
    *bias, x, dy = rest
    if x.dtype != w.dtype:
        w.sub_(dy.t() @ x, alpha=lr)
    elif is_ahead(dy.t(), x) and w.is_contiguous():
        add_product(w, dy.t(), x, -lr)
    elif x.shape[1] <= _FEW < w.shape[0]:
        w.sub_((x.t() @ dy).t(), alpha=lr)
    else:
        w.addmm_(dy.t(), x, alpha=-lr)
    for b in bias:
        b.sub_(dy.sum(0, dtype=b.dtype), alpha=lr)


def _stepped(op: Op) -> tuple[int, ...]:
    """The weight, and the bias if there is one."""
    return tuple(range(len(op.inputs) - 2))


def _product_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """One product of a weight[N,K] and B rows; the bias of a step besides."""
    n, k = (numel((dim,), batch_size) for dim in inputs[0].shape)
    rows = numel(inputs[-1].shape[:-1], batch_size)
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    return Cost(2.0 * rows * k * n + (len(inputs) == 4) * rows * n, float(moved))


FC = OpDef("FC", _kernel, cost=_cost, gradient=_gradient, work="gemm")
FC_GRADIENT = OpDef("FCGradient", _gradient_kernel, _gradient_infer, _gradient_cost, gradient=None, work="gemm")
DEFINITIONS = (
    FC,
    FC_GRADIENT,
    OpDef("FCRelu", _relu_kernel, FC.infer, cost=_cost, gradient=_relu_gradient, work="gemm"),
    OpDef("FCInputGradient", _input_gradient, _input_gradient_infer, _product_cost, gradient=None, work="gemm"),
    OpDef("FCSgd", _sgd, no_outputs, _product_cost, None, effects=True, writes=_stepped, steps_weights=True, work="gemm"),
)

"""FC: y[B,N] = x[B,K] @ w[N,K].T + b[N], and its gradient (HT 2.1: the FC and FCGradient operators)."""

from collections.abc import Sequence

import torch
from torch.nn.functional import linear

from htrain.net.net import Blob, Op, numel
from htrain.ops import accelerated
from htrain.ops.base import Builder, Cost, OpDef, Signature, no_outputs
from htrain.ops.fc_rules import cost, gradient, number_bytes
from htrain.ops.products import fast_linear, sgd_step, weight_gradient


def _gradient_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    rows, k = numel(inputs[0].shape[:-1], batch_size), numel(inputs[0].shape[-1:], batch_size)
    n = numel(inputs[2].shape[-1:], batch_size)
    bias, wants_x = bool(op.attrs["bias"]), bool(op.attrs["wants_x"])
    products = 1 + wants_x  # dw = dy.T @ x, and dx = dy @ w where somebody wants it
    moved = rows * k + rows * n + n * k + bias * n + wants_x * (n * k + rows * k)
    return Cost(2.0 * products * rows * k * n + bias * rows * n, number_bytes(inputs) * moved)


def _kernel(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    return linear(x, w, *bias)


def _fast_kernel(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """FC by the library that is ahead on this CPU: it rounds otherwise."""
    return fast_linear(x, w, bias[0] if bias else None)


def _gradient_kernel(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, *, bias: bool, wants_x: bool
) -> tuple[torch.Tensor, ...]:
    dw = dy.t() @ x
    db = (dy.sum(0),) if bias else ()
    dx = (dy @ w,) if wants_x else ()
    return (dw, *db, *dx)


def _fast_gradient_kernel(
    x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor, *, bias: bool, wants_x: bool
) -> tuple[torch.Tensor, ...]:
    """FCGradient by the libraries that are ahead on this CPU: it rounds otherwise."""
    db = (dy.sum(0),) if bias else ()
    dx = (fast_linear(dy, w.t()),) if wants_x else ()
    return (weight_gradient(dy, x), *db, *dx)


def _gradient_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    x, w, _ = inputs
    bias = [(w.shape[:1], w.dtype)] if op.attrs["bias"] else []
    return [(w.shape, w.dtype), *bias, *([(x.shape, x.dtype)] if op.attrs["wants_x"] else [])]


def _relu_kernel(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """y[B,N] = max(FC(x, w, b), 0)."""
    return fast_linear(x, w, bias[0] if bias else None, relu=True)


def _relu_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """The gradients of Relu and of the FC before it."""
    (y,) = op.outputs
    names = (builder.gradient_name(f"{y}_sum"),)
    (dy,) = builder.add("ReluGradient", (y, dys[0]), module=op.module, outputs=names)
    return gradient(builder, op, (dy,), wanted)


def _input_gradient(w: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """dx[B,K] = dy[B,N] @ w[N,K]."""
    return fast_linear(dy, w.t())


def _input_gradient_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    w, dy = inputs
    return [((*dy.shape[:-1], w.shape[1]), w.dtype)]


def _sgd(w: torch.Tensor, *rest: torch.Tensor, lr: float) -> None:
    """w -= lr * dw, and b -= lr * db, of x[B,K] and dy[B,N]: the product goes into the weight, no gradient is kept. One of bfloat16 is rounded first."""
    *bias, x, dy = rest
    sgd_step(w, dy, x, lr)
    for b in bias:
        b.sub_(dy.sum(0, dtype=b.dtype), alpha=lr)


def _stepped(op: Op) -> tuple[int, ...]:
    """The positions of the weight, and of the bias where there is one."""
    return tuple(range(len(op.inputs) - 2))


def _product_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The cost of one product of a weight[N,K] and B rows, and of the bias in a step."""
    n, k = (numel((dim,), batch_size) for dim in inputs[0].shape)
    rows = numel(inputs[-1].shape[:-1], batch_size)
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    return Cost(2.0 * rows * k * n + (len(inputs) == 4) * rows * n, float(moved))


FC = OpDef("FC", _kernel, cost=cost, gradient=gradient, work="gemm")
FC_GRADIENT = OpDef(
    "FCGradient", _gradient_kernel, _gradient_infer, _gradient_cost, gradient=None, many=True, work="gemm"
)
DEFINITIONS = (
    FC,
    FC_GRADIENT,
    OpDef("FastFC", _fast_kernel, FC.infer, cost=cost, gradient=None, work="gemm"),
    OpDef(
        "FastFCGradient", _fast_gradient_kernel, _gradient_infer, _gradient_cost, gradient=None, many=True, work="gemm"
    ),
    OpDef(
        "FCRelu",
        _relu_kernel,
        FC.infer,
        cost=cost,
        gradient=_relu_gradient,
        work="gemm",
        accelerated=accelerated.fc_relu,
    ),
    OpDef("FCInputGradient", _input_gradient, _input_gradient_infer, _product_cost, gradient=None, work="gemm"),
    OpDef(
        "FCSgd",
        _sgd,
        no_outputs,
        _product_cost,
        None,
        effects=True,
        writes=_stepped,
        steps_weights=True,
        work="gemm",
        accelerated=accelerated.fc_sgd,
        bind_accelerated=accelerated.bind_fc_sgd,
    ),
)

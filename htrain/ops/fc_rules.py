"""What FCs of every precision have in common: what they cost, and their gradient (HT 2.1)."""

from collections.abc import Sequence

from htrain.net.net import Blob, Op, numel
from htrain.ops.base import Builder, Cost, gradient_names


def cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Products and the bias of y[B,N] = x[B,K] @ w[N,K].T + b[N]; every operand read or written once."""
    rows, n = numel(outputs[0].shape[:-1], batch_size), numel(outputs[0].shape[-1:], batch_size)
    k = numel(inputs[0].shape[-1:], batch_size)
    bias = len(inputs) == 3
    return Cost(2.0 * rows * k * n + bias * rows * n, number_bytes(inputs) * (rows * k + n * k + bias * n + rows * n))


def number_bytes(inputs: Sequence[Blob]) -> float:
    """Bytes of one number: all operands of an FC have one dtype, bfloat16 or float32."""
    return 2.0 if inputs[0].dtype == "bfloat16" else 4.0


def gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """FCGradient, which makes dw, db where there is a bias, and dx where somebody wants it."""
    bias = len(op.inputs) == 3
    names = gradient_names(builder, op, (*range(1, len(op.inputs)), *(0,) * wanted[0]))
    attrs = {"bias": bias, "wants_x": wanted[0]}
    outputs = builder.add("FCGradient", (*op.inputs[:2], dys[0]), attrs=attrs, module=op.module, outputs=names)
    return [outputs[-1] if wanted[0] else "", *outputs[: 1 + bias]]

"""Elementwise ops: ONNX's names and semantics, numpy broadcasting; gradients of the common ones, the generic rule for the rest."""

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from htrain.net.net import Op
from htrain.ops.base import Builder, OpDef, dtype_of, gradient_like_input, same_as_input

aten = torch.ops.aten


def _cast(x: torch.Tensor, *, to: str) -> torch.Tensor:
    return x.to(dtype_of(to))


def _clip(x: torch.Tensor, *, min: float, max: float) -> torch.Tensor:
    return x.clamp(min, max)


def _leaky_relu(x: torch.Tensor, *, alpha: float) -> torch.Tensor:
    return F.leaky_relu(x, alpha)


def _elu(x: torch.Tensor, *, alpha: float) -> torch.Tensor:
    return F.elu(x, alpha)


def _gelu(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    return F.gelu(x, approximate=approximate)


def _gelu_gradient(x: torch.Tensor, dy: torch.Tensor, *, approximate: str) -> torch.Tensor:
    return aten.gelu_backward(dy, x, approximate=approximate)


def _prelu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, x * slope)


def _modulo(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.remainder(x, y)


def _sum_like(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return x.sum_to_size(like.shape).to(like.dtype) if x.shape != like.shape else x


def _total(*xs: torch.Tensor) -> torch.Tensor:
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def _sum_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    return [gradient_like_input(builder, op, dys[0], i) if want else "" for i, want in enumerate(wanted)]


def _sub_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    left = gradient_like_input(builder, op, dys[0], 0) if wanted[0] else ""
    if not wanted[1]:
        return [left, ""]
    negated = builder.add("Neg", (dys[0],), module=op.module)[0]
    return [left, gradient_like_input(builder, op, negated, 1)]


def _mul_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    def side(position: int) -> str:
        product = builder.add("Mul", (dys[0], op.inputs[1 - position]), module=op.module)[0]
        return gradient_like_input(builder, op, product, position)

    return [side(i) if want else "" for i, want in enumerate(wanted)]


def _from_output(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """dx from y and dy alone: Relu, Sigmoid, Tanh."""
    names = (builder.gradient_name(op.inputs[0]),)
    return builder.add(op.type + "Gradient", (op.outputs[0], dys[0]), module=op.module, outputs=names)


def _from_input(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """dx from x and dy, with the op's attributes: Gelu."""
    names = (builder.gradient_name(op.inputs[0]),)
    return builder.add(op.type + "Gradient", (op.inputs[0], dys[0]), attrs=op.attrs, module=op.module, outputs=names)


def _pass_on(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    return [dys[0]]


def _stop(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """The user said that no gradient goes further."""
    return [""]


def _cast_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    to = builder.blob(op.inputs[0]).dtype
    return builder.add(
        "Cast", (dys[0],), attrs={"to": to}, module=op.module, outputs=(builder.gradient_name(op.inputs[0]),)
    )


def _relu_gradient(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    return aten.threshold_backward(dy, y, 0)


def _sigmoid_gradient(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    return aten.sigmoid_backward(dy, y)


def _tanh_gradient(y: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    return aten.tanh_backward(dy, y)


_GENERIC: dict[str, Callable[..., torch.Tensor]] = {
    "Abs": torch.abs,
    "Clip": _clip,
    "Cos": torch.cos,
    "Div": torch.true_divide,
    "Elu": _elu,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "HardSigmoid": F.hardsigmoid,
    "HardSwish": F.hardswish,
    "LeakyRelu": _leaky_relu,
    "Log": torch.log,
    "Log1p": torch.log1p,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Mish": F.mish,
    "Neg": torch.neg,
    "PRelu": _prelu,
    "Pow": torch.pow,
    "Reciprocal": torch.reciprocal,
    "Rsqrt": torch.rsqrt,
    "Sin": torch.sin,
    "Softplus": F.softplus,
    "Sqrt": torch.sqrt,
    "Swish": F.silu,
    "Where": torch.where,
}
_NOT_DIFFERENTIABLE: dict[str, Callable[..., torch.Tensor]] = {
    "And": torch.logical_and,
    "Ceil": torch.ceil,
    "Equal": torch.eq,
    "Floor": torch.floor,
    "FloorDiv": torch.floor_divide,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "IsNaN": torch.isnan,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mod": _modulo,
    "Not": torch.logical_not,
    "NotEqual": torch.ne,
    "Or": torch.logical_or,
    "Round": torch.round,
    "Sign": torch.sign,
    "Xor": torch.logical_xor,
}
DEFINITIONS = (
    *(OpDef(name, kernel, elementwise=True) for name, kernel in _GENERIC.items()),
    *(OpDef(name, kernel, gradient=None, elementwise=True) for name, kernel in _NOT_DIFFERENTIABLE.items()),
    OpDef("Add", torch.add, gradient=_sum_gradient, elementwise=True),
    OpDef("Sub", torch.sub, gradient=_sub_gradient, elementwise=True),
    OpDef("Mul", torch.mul, gradient=_mul_gradient, elementwise=True),
    OpDef("Sum", _total, gradient=_sum_gradient, elementwise=True),
    OpDef("SumLike", _sum_like, same_as_input(1), gradient=None),
    OpDef("Identity", torch.Tensor.clone, gradient=_pass_on, elementwise=True),
    OpDef("Detach", torch.Tensor.clone, gradient=_stop, elementwise=True),
    OpDef("Cast", _cast, gradient=_cast_gradient),
    OpDef("Relu", torch.relu, gradient=_from_output, elementwise=True),
    OpDef("ReluGradient", _relu_gradient, gradient=None),
    OpDef("Sigmoid", torch.sigmoid, gradient=_from_output, elementwise=True),
    OpDef("SigmoidGradient", _sigmoid_gradient, gradient=None),
    OpDef("Tanh", torch.tanh, gradient=_from_output, elementwise=True),
    OpDef("TanhGradient", _tanh_gradient, gradient=None),
    OpDef("Gelu", _gelu, gradient=_from_input, elementwise=True),
    OpDef("GeluGradient", _gelu_gradient, gradient=None),
)

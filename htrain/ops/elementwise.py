"""Elementwise ops: ONNX's names and semantics, numpy broadcasting, torch's promotion of dtypes.

Gradients of the common ones are written here; the others have the generic rule. Where an operand was broadcast, its
gradient ends with SumLike(dy, like): dy summed to the shape of `like`, in its dtype.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from htrain.net.net import Blob, Op
from htrain.ops.base import Builder, OpDef, Signature, dtype_of, gradient_like_input, gradient_names, same_as_input

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
    """The sum in order. What has the form of the first two goes into it in place: a tensor for each of them would cross memory once more."""
    if len(xs) == 1:
        return xs[0]
    total = xs[0] + xs[1]
    for x in xs[2:]:
        total = total.add_(x) if (x.shape, x.dtype) == (total.shape, total.dtype) else total + x
    return total


def _div_gradient(
    x: torch.Tensor, by: torch.Tensor, dy: torch.Tensor, *, wrt: tuple[int, ...], **_: object
) -> tuple[torch.Tensor, ...]:
    """What autograd gives, by its own formulas; what it negates first is negated when it has been summed, which is the same."""
    return tuple(
        _sum_like(dy / by, x).to(x.dtype)
        if place == 0
        else _sum_like((x / by).div_(by).mul_(dy), by).neg().to(by.dtype)
        for place in wrt
    )


def _sqrt_gradient(x: torch.Tensor, dy: torch.Tensor, **_: object) -> tuple[torch.Tensor, ...]:
    """What autograd gives, by its own formula."""
    return (dy / (2 * x.sqrt()),)


def _as_wanted(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    wrt = op.attrs["wrt"]
    assert isinstance(wrt, tuple)
    return [(inputs[place].shape, inputs[place].dtype) for place in wrt]


def _sum_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    return [gradient_like_input(builder, op, dys[0], i) if want else "" for i, want in enumerate(wanted)]


def _sub_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    left = gradient_like_input(builder, op, dys[0], 0) if wanted[0] else ""
    if not wanted[1]:
        return [left, ""]
    summed = gradient_like_input(
        builder, op, dys[0], 1
    )  # first: a sum of negated numbers has the bits of the negated sum
    return [left, builder.add("Neg", (summed,), module=op.module)[0]]


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


def _flat(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """Of steps, which are flat wherever they have a slope: zeros, as autograd gives them. By these, momentum and decay step a weight."""
    names = gradient_names(builder, op, range(len(op.inputs)))
    return [
        builder.add("ZerosLike", (source,), module=op.module, outputs=(name,))[0] if want else ""
        for source, name, want in zip(op.inputs, names, wanted, strict=True)
    ]


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


DEFINITIONS = (
    OpDef("Abs", torch.abs, elementwise=True, aten=("abs",), onnx=True),
    OpDef("Clip", _clip, elementwise=True),
    OpDef("Cos", torch.cos, elementwise=True, aten=("cos",), onnx=True),
    OpDef("Div", torch.true_divide, elementwise=True, onnx=True),
    OpDef("DivGradient", _div_gradient, _as_wanted, gradient=None, many=True),
    OpDef("Elu", _elu, elementwise=True, aten=("elu",), onnx=True),
    OpDef("Erf", torch.erf, elementwise=True, aten=("erf",), onnx=True),
    OpDef("Exp", torch.exp, elementwise=True, aten=("exp",), onnx=True),
    OpDef("HardSigmoid", F.hardsigmoid, elementwise=True, aten=("hardsigmoid",)),
    OpDef("HardSwish", F.hardswish, elementwise=True, aten=("hardswish",), onnx=True),
    OpDef("LeakyRelu", _leaky_relu, elementwise=True, onnx=True),
    OpDef("Log", torch.log, elementwise=True, aten=("log",), onnx=True),
    OpDef("Log1p", torch.log1p, elementwise=True, aten=("log1p",)),
    OpDef("Max", torch.maximum, elementwise=True, aten=("maximum",), onnx=True),
    OpDef("Min", torch.minimum, elementwise=True, aten=("minimum",), onnx=True),
    OpDef("Mish", F.mish, elementwise=True, aten=("mish",), onnx=True),
    OpDef("Neg", torch.neg, elementwise=True, aten=("neg",), onnx=True),
    OpDef("PRelu", _prelu, elementwise=True, onnx=True),
    OpDef("Pow", torch.pow, elementwise=True, aten=("pow",), onnx=True),
    OpDef("Reciprocal", torch.reciprocal, elementwise=True, aten=("reciprocal",), onnx=True),
    OpDef("Rsqrt", torch.rsqrt, elementwise=True, aten=("rsqrt",)),
    OpDef("Sin", torch.sin, elementwise=True, aten=("sin",), onnx=True),
    OpDef("Softplus", F.softplus, elementwise=True, aten=("softplus",), onnx=True),
    OpDef("Sqrt", torch.sqrt, elementwise=True, aten=("sqrt",), onnx=True),
    OpDef("SqrtGradient", _sqrt_gradient, _as_wanted, gradient=None, many=True),
    OpDef("Swish", F.silu, elementwise=True, aten=("silu",)),
    OpDef("Where", torch.where, elementwise=True, onnx=True),
    OpDef("And", torch.logical_and, gradient=None, elementwise=True, aten=("logical_and",), onnx=True),
    OpDef("BitwiseAnd", torch.bitwise_and, gradient=None, elementwise=True, onnx=True),
    OpDef("BitwiseNot", torch.bitwise_not, gradient=None, elementwise=True, onnx=True),
    OpDef("BitwiseOr", torch.bitwise_or, gradient=None, elementwise=True, onnx=True),
    OpDef("BitwiseXor", torch.bitwise_xor, gradient=None, elementwise=True, onnx=True),
    OpDef("Ceil", torch.ceil, gradient=_flat, elementwise=True, aten=("ceil",), onnx=True),
    OpDef("Equal", torch.eq, gradient=None, elementwise=True, aten=("eq",), onnx=True),
    OpDef("Floor", torch.floor, gradient=_flat, elementwise=True, aten=("floor",), onnx=True),
    OpDef("FloorDiv", torch.floor_divide, gradient=_flat, elementwise=True, aten=("floor_divide",)),
    OpDef("Greater", torch.gt, gradient=None, elementwise=True, aten=("gt",), onnx=True),
    OpDef("GreaterOrEqual", torch.ge, gradient=None, elementwise=True, aten=("ge",), onnx=True),
    OpDef("IsNaN", torch.isnan, gradient=None, elementwise=True, aten=("isnan",), onnx=True),
    OpDef("Less", torch.lt, gradient=None, elementwise=True, aten=("lt",), onnx=True),
    OpDef("LessOrEqual", torch.le, gradient=None, elementwise=True, aten=("le",), onnx=True),
    OpDef("Mod", _modulo, elementwise=True, aten=("remainder",)),
    OpDef("Not", torch.logical_not, gradient=None, elementwise=True, aten=("logical_not",), onnx=True),
    OpDef("NotEqual", torch.ne, gradient=None, elementwise=True, aten=("ne",)),
    OpDef("Or", torch.logical_or, gradient=None, elementwise=True, aten=("logical_or",), onnx=True),
    OpDef("Round", torch.round, gradient=_flat, elementwise=True, aten=("round",), onnx=True),
    OpDef("Sign", torch.sign, gradient=_flat, elementwise=True, aten=("sign", "sgn"), onnx=True),
    OpDef("Trunc", torch.trunc, gradient=_flat, elementwise=True, aten=("trunc",)),
    OpDef("Xor", torch.logical_xor, gradient=None, elementwise=True, aten=("logical_xor",), onnx=True),
    OpDef("Add", torch.add, gradient=_sum_gradient, elementwise=True, onnx=True),
    OpDef("Sub", torch.sub, gradient=_sub_gradient, elementwise=True, onnx=True),
    OpDef("Mul", torch.mul, gradient=_mul_gradient, elementwise=True, aten=("mul",), onnx=True),
    OpDef("Sum", _total, gradient=_sum_gradient, elementwise=True, onnx=True),
    OpDef("SumLike", _sum_like, same_as_input(1), gradient=None),
    OpDef("Identity", torch.Tensor.clone, gradient=_pass_on, elementwise=True, onnx=True),
    OpDef("Detach", torch.Tensor.clone, gradient=_stop, elementwise=True, aten=("detach",)),
    OpDef("Cast", _cast, gradient=_cast_gradient),
    OpDef("Relu", torch.relu, gradient=_from_output, elementwise=True, aten=("relu",), onnx=True),
    OpDef("ReluGradient", _relu_gradient, gradient=None),
    OpDef("Sigmoid", torch.sigmoid, gradient=_from_output, elementwise=True, aten=("sigmoid",), onnx=True),
    OpDef("SigmoidGradient", _sigmoid_gradient, gradient=None),
    OpDef("Tanh", torch.tanh, gradient=_from_output, elementwise=True, aten=("tanh",), onnx=True),
    OpDef("TanhGradient", _tanh_gradient, gradient=None),
    OpDef("Gelu", _gelu, gradient=_from_input, elementwise=True, aten=("gelu",), onnx=True),
    OpDef("GeluGradient", _gelu_gradient, gradient=None),
)

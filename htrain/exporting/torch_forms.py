"""PyTorch's own ops, and batch norms by their statistics, in ONNX: those that it has under other names, or that are few of its nodes."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch

from htrain.exporting.attributes import number
from htrain.exporting.graph import Graph
from htrain.exporting.native import operands
from htrain.exporting.reductions import add_norm
from htrain.net.net import Op
from htrain.ops.base import dtype_of

Rule = Callable[[Graph, Op], None]


def _renamed(type: str, names: Mapping[str, str] | None = None) -> Rule:
    """An op of one input that ONNX has; its attributes under ONNX's names."""

    def rule(graph: Graph, op: Op) -> None:
        attrs = {new: float(number(op, old)) for old, new in (names or {}).items()}
        graph.add(type, graph.value(op.inputs[0], op), attrs=attrs, output=op.outputs[0])

    return rule


def _dtype(graph: Graph, op: Op) -> str:
    return graph.blob(op.inputs[0]).dtype


def _clip(low: float | str, high: float | str) -> Rule:
    def rule(graph: Graph, op: Op) -> None:
        bounds = [b if isinstance(b, float) else number(op, b, -1.0 if b == "min_val" else 1.0) for b in (low, high)]
        limits = [graph.scalar(bound, _dtype(graph, op)) for bound in bounds]
        graph.add("Clip", graph.value(op.inputs[0], op), *limits, output=op.outputs[0])

    return rule


def _shrink(graph: Graph, op: Op, *, soft: bool) -> None:
    by = float(number(op, "lambd", 0.5))
    graph.add("Shrink", graph.value(op.inputs[0], op), attrs={"lambd": by, "bias": by * soft}, output=op.outputs[0])


def _log_sigmoid(graph: Graph, op: Op) -> None:
    away = graph.add("Softplus", graph.add("Neg", graph.value(op.inputs[0], op)))
    graph.add("Neg", away, output=op.outputs[0])


def _scaled(type: str, factor: float, *, before: bool) -> Rule:
    """A logarithm or a power of another base."""

    def rule(graph: Graph, op: Op) -> None:
        x, by = graph.value(op.inputs[0], op), graph.scalar(factor, _dtype(graph, op))
        if before:
            graph.add(type, graph.add("Mul", x, by), output=op.outputs[0])
        else:
            graph.add("Mul", graph.add(type, x), by, output=op.outputs[0])

    return rule


def _expm1(graph: Graph, op: Op) -> None:
    one = graph.scalar(1.0, _dtype(graph, op))
    graph.add("Sub", graph.add("Exp", graph.value(op.inputs[0], op)), one, output=op.outputs[0])


def _threshold(graph: Graph, op: Op) -> None:
    x, dtype = graph.value(op.inputs[0], op), _dtype(graph, op)
    above = graph.add("Greater", x, graph.scalar(number(op, "threshold"), dtype))
    graph.add("Where", above, x, graph.scalar(number(op, "value"), dtype), output=op.outputs[0])


def _product_added(graph: Graph, op: Op, *, type: str) -> None:
    x, left, right = operands(graph, op)
    by = graph.scalar(number(op, "value", 1.0), graph.blob(op.outputs[0]).dtype)
    graph.add("Add", x, graph.add("Mul", graph.add(type, left, right), by), output=op.outputs[0])


def _lerp(graph: Graph, op: Op) -> None:
    x, y, *weight = operands(graph, op)
    share = weight[0] if weight else graph.scalar(number(op, "weight"), graph.blob(op.outputs[0]).dtype)
    graph.add("Add", x, graph.add("Mul", graph.add("Sub", y, x), share), output=op.outputs[0])


def _one_hot(graph: Graph, op: Op) -> None:
    values = graph.ints(0, 1)
    classes = graph.ints(int(number(op, "num_classes")))
    graph.add("OneHot", graph.value(op.inputs[0], op), classes, values, output=op.outputs[0])


def _fmod(graph: Graph, op: Op) -> None:
    """The sign of the result is that of what is divided."""
    graph.add("Mod", *operands(graph, op), attrs={"fmod": 1}, output=op.outputs[0])


def _truncated(graph: Graph, x: str, output: str = "") -> str:
    return graph.add("Mul", graph.add("Sign", x), graph.add("Floor", graph.add("Abs", x)), output=output)


def _trunc(graph: Graph, op: Op) -> None:
    x = graph.value(op.inputs[0], op)
    if "float" in _dtype(graph, op):
        _truncated(graph, x, op.outputs[0])
    else:
        graph.add("Identity", x, output=op.outputs[0])


def _frac(graph: Graph, op: Op) -> None:
    x = graph.value(op.inputs[0], op)
    graph.add("Sub", x, _truncated(graph, x), output=op.outputs[0])


def _nan_to_num(graph: Graph, op: Op) -> None:
    """What is infinite becomes the largest number of its sign, where nothing else is said."""
    x, dtype = graph.value(op.inputs[0], op), _dtype(graph, op)
    limits = torch.finfo(dtype_of(dtype))
    x = graph.add("Where", graph.add("IsNaN", x), graph.scalar(number(op, "nan"), dtype), x)
    for name, sign, most in (("posinf", "negative", limits.max), ("neginf", "positive", limits.min)):
        found = graph.add("IsInf", x, attrs={f"detect_{sign}": 0})
        last = op.outputs[0] if name == "neginf" else ""
        x = graph.add("Where", found, graph.scalar(number(op, name, most), dtype), x, output=last)


def _celu(graph: Graph, op: Op) -> None:
    attrs = {"alpha": float(number(op, "alpha", 1.0))}
    graph.add("Celu", graph.value(op.inputs[0], op), attrs=attrs, output=op.outputs[0])


def _glu(graph: Graph, op: Op) -> None:
    axis, halves = int(number(op, "dim", -1)), [graph.fresh("half"), graph.fresh("half")]
    graph.add_many("Split", (graph.value(op.inputs[0], op),), halves, attrs={"axis": axis, "num_outputs": 2})
    graph.add("Mul", halves[0], graph.add("Sigmoid", halves[1]), output=op.outputs[0])


def _erfc(graph: Graph, op: Op) -> None:
    one = graph.scalar(1.0, _dtype(graph, op))
    graph.add("Sub", one, graph.add("Erf", graph.value(op.inputs[0], op)), output=op.outputs[0])


def _sinc(graph: Graph, op: Op) -> None:
    """1 at 0, where a quotient would be no number."""
    x, dtype = graph.value(op.inputs[0], op), _dtype(graph, op)
    turns = graph.add("Mul", x, graph.scalar(math.pi, dtype))
    at_zero = graph.add("Equal", turns, graph.scalar(0.0, dtype))
    found = graph.add("Div", graph.add("Sin", turns), turns)
    graph.add("Where", at_zero, graph.scalar(1.0, dtype), found, output=op.outputs[0])


def _hypot(graph: Graph, op: Op) -> None:
    squares = [graph.add("Mul", x, x) for x in operands(graph, op)]
    graph.add("Sqrt", graph.add("Add", *squares), output=op.outputs[0])


def _log_add_exp(graph: Graph, op: Op) -> None:
    """The larger one, and what the other adds to it; of equal ones, which may be infinite, the logarithm of 2."""
    x, y = operands(graph, op)
    dtype = graph.blob(op.outputs[0]).dtype
    equal, zero = graph.add("Equal", x, y), graph.scalar(0.0, dtype)
    away = graph.add("Where", equal, zero, graph.add("Abs", graph.add("Sub", x, y)))
    more = graph.add("Log", graph.add("Add", graph.scalar(1.0, dtype), graph.add("Exp", graph.add("Neg", away))))
    graph.add("Add", graph.add("Max", x, y), more, output=op.outputs[0])


def _x_log_y(graph: Graph, op: Op) -> None:
    """0 where x is, whatever y."""
    x, y = operands(graph, op)
    zero = graph.scalar(0.0, graph.blob(op.outputs[0]).dtype)
    product = graph.add("Mul", x, graph.add("Log", y))
    graph.add("Where", graph.add("Equal", x, zero), zero, product, output=op.outputs[0])


def _binary_cross_entropy(graph: Graph, op: Op) -> None:
    """Logarithms are at least -100, as PyTorch's are."""
    x, target, *weight = operands(graph, op)
    dtype = graph.blob(op.outputs[0]).dtype
    one, least = graph.scalar(1.0, dtype), graph.scalar(-100.0, dtype)
    positive, negative = (graph.add("Max", graph.add("Log", p), least) for p in (x, graph.add("Sub", one, x)))
    both = (graph.add("Mul", target, positive), graph.add("Mul", graph.add("Sub", one, target), negative))
    loss = graph.add("Neg", graph.add("Add", *both), output="" if weight else op.outputs[0])
    if weight:
        graph.add("Mul", loss, weight[0], output=op.outputs[0])


def _distances(graph: Graph, op: Op) -> None:
    """The norm of each difference of two rows."""
    x, y = (graph.value(name, op) for name in op.inputs)
    apart = (graph.add("Unsqueeze", x, graph.ints(-2)), graph.add("Unsqueeze", y, graph.ints(-3)))
    add_norm(graph, graph.add("Sub", *apart), number(op, "p", 2.0), (-1,), keepdims=False, output=op.outputs[0])


_SAME = ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Selu", "Sinh", "Tan", "IsInf")
RULES: Mapping[str, Rule] = {
    **{name: _renamed(name) for name in _SAME},
    "Relu6": _clip(0.0, 6.0),
    "Hardtanh": _clip("min_val", "max_val"),
    "Hardshrink": partial(_shrink, soft=False),
    "Softshrink": partial(_shrink, soft=True),
    "LogSigmoid": _log_sigmoid,
    "Log2": _scaled("Log", 1 / math.log(2), before=False),
    "Log10": _scaled("Log", 1 / math.log(10), before=False),
    "Exp2": _scaled("Exp", math.log(2), before=True),
    "Expm1": _expm1,
    "Threshold": _threshold,
    "Addcmul": partial(_product_added, type="Mul"),
    "Addcdiv": partial(_product_added, type="Div"),
    "Lerp": _lerp,
    "LerpBy": _lerp,
    "Fmod": _fmod,
    "Trunc": _trunc,
    "Frac": _frac,
    "NanToNum": _nan_to_num,
    "Celu": _celu,
    "Glu": _glu,
    "Erfc": _erfc,
    "Sinc": _sinc,
    "Hypot": _hypot,
    "LogAddExp": _log_add_exp,
    "XLogY": _x_log_y,
    "BinaryCrossEntropy": _binary_cross_entropy,
    "CDist": _distances,
    "OneHot": _one_hot,
}

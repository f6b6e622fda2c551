"""ONNX's elementwise ops, reductions and normalizations as ops of htrain."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
import torch

from htrain.frontend.onnx_graph import Graph
from htrain.frontend.onnx_operator import Operator
from htrain.frontend.onnx_weights import DTYPES
from htrain.net.net import Attr

Handler = Callable[[Graph, Operator], None]
_SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}  # as ONNX has them


def _alias(graph: Graph, node: Operator) -> None:
    graph.alias(node, graph.blob(node, 0))


def _dropout(graph: Graph, node: Operator) -> None:
    """Dropout in inference is its input."""
    training = graph.array(node, 2)
    if training is not None and bool(training.any()):
        raise graph.refusal(node, "drops out while training: export the model in eval mode, or with p=0")
    graph.operand(node, 1)  # the ratio
    node.attributes.without_effect("seed", "ratio")
    graph.alias(node, graph.blob(node, 0))


def _is_integer(graph: Graph, blob: str) -> bool:
    return graph.builder.blob(blob).dtype.startswith(("int", "uint"))


def _div(graph: Graph, node: Operator) -> None:
    """ONNX divides integers towards zero."""
    a, b = graph.blobs(node)
    if not _is_integer(graph, a):
        graph.emit(node, "Div", (a, b))
        return
    size = graph.step(node, "FloorDiv", (graph.step(node, "Abs", (a,)), graph.step(node, "Abs", (b,))))
    sign = graph.step(node, "Mul", (graph.step(node, "Sign", (a,)), graph.step(node, "Sign", (b,))))
    graph.emit(node, "Mul", (size, sign))


def _mod(graph: Graph, node: Operator) -> None:
    """`fmod` takes the sign of the dividend, as C does; otherwise that of the divisor."""
    a, b = graph.blobs(node)
    if not node.attributes.get_int("fmod", 0):
        graph.emit(node, "Mod", (a, b))
        return
    rest = graph.step(node, "Mod", (graph.step(node, "Abs", (a,)), graph.step(node, "Abs", (b,))))
    graph.emit(node, "Mul", (rest, graph.step(node, "Sign", (a,))))


def _pow(graph: Graph, node: Operator) -> None:
    """The exponent is cast to the base's dtype, which ONNX's result has."""
    base, exponent = graph.blobs(node)
    dtype = graph.builder.blob(base).dtype
    if graph.builder.blob(exponent).dtype != dtype:
        exponent = graph.step(node, "Cast", (exponent,), {"to": dtype})
    graph.emit(node, "Pow", (base, exponent))


def _folded(graph: Graph, node: Operator) -> None:
    """Max and Min of any number of operands, two at a time."""
    first, *others = graph.blobs(node)
    for other in others[:-1]:
        first = graph.step(node, node.op_type, (first, other))
    if others:
        graph.emit(node, node.op_type, (first, others[-1]))
    else:
        graph.alias(node, first)


def _mean(graph: Graph, node: Operator) -> None:
    blobs = graph.blobs(node)
    total = graph.step(node, "Sum", blobs)
    graph.emit(node, "Mul", (total, graph.scalar(node, 1 / len(blobs), total)))


def _cast(graph: Graph, node: Operator) -> None:
    to = ir.DataType(node.attributes["to"].as_int())
    if to not in DTYPES:
        raise graph.refusal(node, f"casts to {to.name}, which htrain does not know")
    graph.emit(node, "Cast", (graph.blob(node, 0),), {"to": DTYPES[to]})


def _cast_like(graph: Graph, node: Operator) -> None:
    graph.emit(node, "Cast", (graph.blob(node, 0),), {"to": graph.builder.blob(graph.blob(node, 1)).dtype})


def _clip(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    low, high = (_bound(graph, node, i, name) for i, name in ((1, "min"), (2, "max")))
    if "float" in graph.builder.blob(x).dtype:
        graph.emit(node, "Clip", (x,), {"min": low, "max": high})
        return
    limits = torch.iinfo(getattr(torch, graph.builder.blob(x).dtype))
    for type, bound in (("Max", low), ("Min", high)):
        if limits.min < bound < limits.max:  # beyond, or at its end, it bounds nothing
            x = graph.step(node, type, (x, graph.scalar(node, int(bound), x)))
    graph.alias(node, x)


def _bound(graph: Graph, node: Operator, index: int, name: str) -> float:
    unbounded = -np.inf if name == "min" else np.inf
    if name in node.attributes:
        return node.attributes[name].as_float()
    array = graph.array(node, index)
    return float(unbounded if array is None else array.item())


def _hard_sigmoid(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
    scaled = graph.step(node, "Mul", (x, graph.scalar(node, alpha, x)))
    line = graph.step(node, "Add", (scaled, graph.scalar(node, beta, x)))
    graph.emit(node, "Clip", (line,), {"min": 0.0, "max": 1.0})


def _swish(graph: Graph, node: Operator) -> None:
    x, alpha = graph.blob(node, 0), node.attributes.get_float("alpha", 1.0)
    if alpha == 1.0:
        graph.emit(node, "Swish", (x,))
        return
    scaled = graph.step(node, "Mul", (x, graph.scalar(node, alpha, x)))
    graph.emit(node, "Mul", (x, graph.step(node, "Sigmoid", (scaled,))))


def _softsign(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    size = graph.step(node, "Abs", (x,))
    graph.emit(node, "Div", (x, graph.step(node, "Add", (size, graph.scalar(node, 1.0, x)))))


def _softmax(graph: Graph, node: Operator) -> None:
    """Before opset 13, Softmax is over all dimensions from `axis` on."""
    x, old = graph.blob(node, 0), graph.opset < 13
    axis = node.attributes.get_int("axis", 1 if old else -1)
    if old and axis % graph.rank(x) != graph.rank(x) - 1:
        raise graph.refusal(node, "is over several dimensions, as before opset 13: export with opset 13 or newer")
    graph.emit(node, node.op_type, (x,), {"axis": axis})


def _reduce(graph: Graph, node: Operator) -> None:
    x, axes = graph.blob(node, 0), graph.ints(node, 1, "axes") or ()
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0):
        graph.alias(node, x)
        return
    shape = graph.shape(x)
    if any(shape[axis] == 0 for axis in axes or range(len(shape))):
        raise graph.refusal(node, "reduces a dimension of size 0: there is nothing in it")
    before, type, after = _REDUCTIONS[node.op_type]
    attrs: Mapping[str, Attr] = {"axes": axes, "keepdims": bool(node.attributes.get_int("keepdims", 1))}
    if before:
        x = graph.step(node, before, (x, x) if before == "Mul" else (x,))
    if after:
        graph.emit(node, after, (graph.step(node, type, (x,), attrs),))
    else:
        graph.emit(node, type, (x,), attrs)


_REDUCTIONS = {
    **{
        name: ("", name, "") for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2")
    },
    "ReduceLogSumExp": ("", "ReduceLogSumExp", ""),
    "ReduceSumSquare": ("Mul", "ReduceSum", ""),
    "ReduceL1": ("Abs", "ReduceSum", ""),
    "ReduceLogSum": ("", "ReduceSum", "Log"),
}


def _arg(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    if node.attributes.get_int("select_last_index", 0):
        raise graph.refusal(node, "selects the last of equal entries, which htrain does not")
    if node.op_type == "ArgMin":
        x = graph.step(node, "Neg", (x,))
    keep = bool(node.attributes.get_int("keepdims", 1))
    graph.emit(node, "ArgMax", (x,), {"axis": node.attributes.get_int("axis", 0), "keepdims": keep})


def _cumulative_sum(graph: Graph, node: Operator) -> None:
    if node.attributes.get_int("exclusive", 0) or node.attributes.get_int("reverse", 0):
        raise graph.refusal(node, "is exclusive or reversed, which htrain's is not")
    (axis,) = graph.ints(node, 1, "axis") or (0,)
    graph.emit(node, "CumSum", (graph.blob(node, 0),), {"axis": axis})


def _layer_normalization(graph: Graph, node: Operator) -> None:
    """htrain scales by what has exactly the normalized shape; a scale that is broadcast stands apart."""
    x, *scale_bias = graph.blobs(node)
    axis = node.attributes.get_int("axis", -1)
    attrs: Mapping[str, Attr] = {"axis": axis, "epsilon": node.attributes.get_float("epsilon", 1e-5)}
    if all(graph.shape(s) == graph.shape(x)[axis:] for s in scale_bias):
        graph.emit(node, "LayerNormalization", (x, *scale_bias), attrs)
        return
    y = graph.step(node, "LayerNormalization", (x,), attrs)
    for type, operand in zip(("Mul", "Add"), scale_bias, strict=False):
        y = graph.step(node, type, (y, operand))
    graph.alias(node, y)


def _rms_normalization(graph: Graph, node: Operator) -> None:
    x, scale = graph.blob(node, 0), graph.blob(node, 1)
    axes = tuple(range(node.attributes.get_int("axis", -1) % graph.rank(x), graph.rank(x)))
    square = graph.step(node, "Mul", (x, x))
    mean = graph.step(node, "ReduceMean", (square,), {"axes": axes, "keepdims": True})
    epsilon = graph.scalar(node, node.attributes.get_float("epsilon", 1e-5), x)
    root = graph.step(node, "Rsqrt", (graph.step(node, "Add", (mean, epsilon)),))
    graph.emit(node, "Mul", (graph.step(node, "Mul", (x, root)), scale))


def _batch_normalization(graph: Graph, node: Operator) -> None:
    """Batch normalization in inference, with its statistics as they stand in the file.

    It is (x - mean) / sqrt(var + epsilon) * scale + bias over the channels, which are dimension 1.
    """
    if node.attributes.get_int("training_mode", 0):
        raise graph.refusal(node, "is in training mode: export the model in eval mode")
    x = graph.blob(node, 0)
    node.attributes.without_effect("momentum")
    mean, variance = (graph.array(node, i) for i in (3, 4))
    if mean is None or variance is None:
        raise graph.refusal(node, "has no mean and variance")
    inverse = (1 / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))).astype(mean.dtype)
    operands = [graph.constant(node, mean), graph.constant(node, inverse), graph.blob(node, 1), graph.blob(node, 2)]
    for type, operand in zip(("Sub", "Mul", "Mul", "Add"), operands, strict=True):
        channels = (*graph.shape(operand), *[1] * (graph.rank(x) - 2))
        x = graph.step(node, type, (x, graph.reshape(node, operand, channels)))
    graph.alias(node, x)


def _is_infinite(graph: Graph, node: Operator) -> None:
    """Of either sign, or of one alone."""
    x = graph.blob(node, 0)
    signs = [node.attributes.get_int(f"detect_{sign}", 1) for sign in ("negative", "positive")]
    if all(signs):
        graph.emit(node, "IsInf", (x,))
        return
    if not any(signs):
        raise graph.refusal(node, "looks for infinite numbers of neither sign")
    side = graph.step(node, "Less" if signs[0] else "Greater", (x, graph.scalar(node, 0.0, x)))
    graph.emit(node, "And", (graph.step(node, "IsInf", (x,)), side))


def _unary(graph: Graph, node: Operator) -> None:
    """One that is PyTorch's op of the same name."""
    graph.emit(node, node.op_type, graph.blobs(node))


def _celu(graph: Graph, node: Operator) -> None:
    graph.emit(node, "Celu", graph.blobs(node), {"alpha": node.attributes.get_float("alpha", 1.0)})


def _selu(graph: Graph, node: Operator) -> None:
    """By its two numbers, which files may name: those of the paper as a rule."""
    given = {name: node.attributes.get_float(name, usual) for name, usual in _SELU.items()}
    if any(abs(given[name] - usual) > 1e-4 for name, usual in _SELU.items()):
        raise graph.refusal(node, f"has other numbers than the paper's, {given['alpha']:.4g} and {given['gamma']:.4g}")
    graph.emit(node, "Selu", graph.blobs(node))


HANDLERS: Mapping[str, Handler] = {
    "Identity": _alias,
    "IsInf": _is_infinite,
    **dict.fromkeys(("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan"), _unary),
    "Celu": _celu,
    "Selu": _selu,
    "Dropout": _dropout,
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("Max", "Min"), _folded),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "Mean": _mean,
    "Div": _div,
    "Mod": _mod,
    "Pow": _pow,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "Swish": _swish,
    "Softsign": _softsign,
    "CumSum": _cumulative_sum,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "BatchNormalization": _batch_normalization,
}

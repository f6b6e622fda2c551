"""Ops of numbers and of shapes in ONNX, where it has no op of the same meaning."""

from collections.abc import Callable, Mapping

import torch

from htrain.exporting.graph import Graph
from htrain.exporting.native import add_native, no_form, operands
from htrain.net.net import BatchDim, Op
from htrain.ops.base import constant_of, dtype_of

_LEAST = -(1 << 63)


def _cast(graph: Graph, op: Op) -> None:
    """bfloat16 is held as float32, and rounded by who adds the op."""
    to = str(op.attrs["to"])
    graph.cast(graph.value(op.inputs[0], op), "float32" if to == "bfloat16" else to, op.outputs[0])


def _as_it_is(graph: Graph, op: Op) -> None:
    graph.add("Identity", graph.value(op.inputs[0], op), output=op.outputs[0])


def _log1p(graph: Graph, op: Op) -> None:
    (x,) = operands(graph, op)
    one = graph.scalar(1.0, graph.blob(op.outputs[0]).dtype)
    graph.add("Log", graph.add("Add", x, one), output=op.outputs[0])


def _rsqrt(graph: Graph, op: Op) -> None:
    (x,) = operands(graph, op)
    graph.add("Reciprocal", graph.add("Sqrt", x), output=op.outputs[0])


def _swish(graph: Graph, op: Op) -> None:
    (x,) = operands(graph, op)
    graph.add("Mul", x, graph.add("Sigmoid", x), output=op.outputs[0])


def _not_equal(graph: Graph, op: Op) -> None:
    graph.add("Not", graph.add("Equal", *operands(graph, op)), output=op.outputs[0])


def _modulo(graph: Graph, op: Op) -> None:
    """The sign of the result is the divisor's."""
    x, y = operands(graph, op)
    dtype = graph.blob(op.outputs[0]).dtype
    if "float" in dtype:
        _remainder(graph, x, y, dtype, op.outputs[0])
    else:
        graph.add("Mod", x, y, output=op.outputs[0])


def _remainder(graph: Graph, x: str, y: str, dtype: str, output: str = "") -> str:
    """What is left of x, without an error: a quotient that is rounded may be a whole one more, or lose all of a large number's digits. The sign is y's."""
    left, zero = graph.add("Mod", x, y, attrs={"fmod": 1}), graph.scalar(0.0, dtype)
    negative = [graph.add("Less", value, zero) for value in (left, y)]
    other_sign = graph.add("And", graph.add("Xor", *negative), graph.add("Not", graph.add("Equal", left, zero)))
    return graph.add("Where", other_sign, graph.add("Add", left, y), left, output=output)


def _floor_div(graph: Graph, op: Op) -> None:
    """What is divided is made a multiple first: ONNX's Div of whole numbers rounds towards zero, and that of others may round to the next whole one."""
    x, y = operands(graph, op)
    dtype = graph.blob(op.outputs[0]).dtype
    if "float" not in dtype:
        graph.add("Div", graph.add("Sub", x, graph.add("Mod", x, y)), y, output=op.outputs[0])
        return
    quotient = graph.add("Round", graph.add("Div", graph.add("Sub", x, _remainder(graph, x, y, dtype)), y))
    by_zero = graph.add("Equal", y, graph.scalar(0.0, dtype))
    graph.add("Where", by_zero, graph.add("Div", x, y), quotient, output=op.outputs[0])


def _product(graph: Graph, op: Op) -> None:
    """Of truths, where both are."""
    if graph.blob(op.outputs[0]).dtype == "bool":
        graph.add("And", *operands(graph, op), output=op.outputs[0])
    elif not add_native(graph, op):
        raise no_form(op, [graph.blob(name) for name in op.inputs])


def _prelu(graph: Graph, op: Op) -> None:
    if not add_native(graph, op):
        x, slope = operands(graph, op)
        positive = graph.add("Greater", x, graph.scalar(0.0, graph.blob(op.outputs[0]).dtype))
        graph.add("Where", positive, x, graph.add("Mul", x, slope), output=op.outputs[0])


def _stack(graph: Graph, op: Op) -> None:
    axis = _axis(graph, op, len(graph.blob(op.outputs[0]).shape))
    apart = [graph.add("Unsqueeze", value, graph.ints(axis)) for value in operands(graph, op)]
    graph.add("Concat", *apart, attrs={"axis": axis}, output=op.outputs[0])


def _unstack(graph: Graph, op: Op) -> None:
    axis = _axis(graph, op, len(graph.blob(op.inputs[0]).shape))
    for index, output in enumerate(op.outputs):
        value = graph.value(op.inputs[0], op)
        graph.add("Gather", value, graph.scalar(index, "int64"), attrs={"axis": axis}, output=output)


def _axis(graph: Graph, op: Op, rank: int) -> int:
    axis = op.attrs["axis"]
    assert isinstance(axis, int)
    return axis % rank


def _flip(graph: Graph, op: Op) -> None:
    axes = op.attrs["axes"]
    assert isinstance(axes, tuple)
    from_last = [graph.ints(*[number] * len(axes)) for number in (-1, _LEAST)]
    arguments = (*from_last, graph.ints(*axes), graph.ints(*[-1] * len(axes)))
    graph.add("Slice", graph.value(op.inputs[0], op), *arguments, output=op.outputs[0])


def _reshape(graph: Graph, op: Op) -> None:
    """0 is a dimension, as in torch."""
    shape = op.attrs["shape"]
    assert isinstance(shape, tuple)
    zeros = {"allowzero": 1} if 0 in shape else {}
    value = graph.value(op.inputs[0], op)
    graph.add("Reshape", value, graph.ints(*shape), attrs=zeros, output=op.outputs[0])


def _broadcast_to(graph: Graph, op: Op) -> None:
    """Where the input has a batch's dimension already, it stays."""
    shape, source = op.attrs["shape"], graph.blob(op.inputs[0]).shape
    assert isinstance(shape, tuple)
    dims = [None] * (len(shape) - len(source)) + list(source)
    wanted = [1 if d <= 0 and isinstance(own, BatchDim) else d for d, own in zip(shape, dims, strict=True)]
    graph.add("Expand", graph.value(op.inputs[0], op), graph.dims(wanted, op), output=op.outputs[0])


def _fill(graph: Graph, op: Op) -> None:
    shape, dtype = op.attrs["shape"], graph.blob(op.outputs[0]).dtype
    assert isinstance(shape, tuple)
    value = constant_of(torch.full((1,), op.attrs["value"], dtype=dtype_of(dtype)))  # type: ignore[arg-type]
    graph.add("ConstantOfShape", graph.dims(shape, op), attrs={"value": value}, output=op.outputs[0])


def _split(graph: Graph, op: Op) -> None:
    widths = op.attrs["split"]
    assert isinstance(widths, tuple)
    inputs = (graph.value(op.inputs[0], op), graph.dims(widths, op))
    graph.add_many("Split", inputs, op.outputs, attrs={"axis": op.attrs["axis"]})


def _variance(graph: Graph, op: Op) -> None:
    x = graph.value(op.inputs[0], op)
    given = op.attrs["axes"]
    assert isinstance(given, tuple)
    axes = graph.ints(*(given or range(len(graph.blob(op.inputs[0]).shape))))
    away = graph.add("Sub", x, graph.add("ReduceMean", x, axes, attrs={"keepdims": 1}))
    squared = graph.add("Mul", away, away)
    keepdims = {"keepdims": int(bool(op.attrs["keepdims"]))}
    graph.add("ReduceMean", squared, axes, attrs=keepdims, output=op.outputs[0])


def _flat_non_zero(graph: Graph, op: Op) -> None:
    flat = graph.add("Reshape", graph.value(op.inputs[0], op), graph.ints(-1))
    graph.add("Reshape", graph.add("NonZero", flat), graph.ints(-1), output=op.outputs[0])


def _unique(graph: Graph, op: Op) -> None:
    x = graph.value(op.inputs[0], op)
    unique, inverse, counts = op.outputs
    flat = f"{inverse}_flat"
    graph.add_many("Unique", (x,), (unique, "", flat, counts), attrs={"sorted": 1})
    graph.add("Reshape", flat, graph.add("Shape", x), output=inverse)


def _bound_rows(graph: Graph, op: Op) -> None:
    """Rows that are longer than max_norm, times a scale of each."""
    x, dtype = graph.value(op.inputs[0], op), graph.blob(op.inputs[0]).dtype
    most = graph.scalar(float(str(op.attrs["max_norm"])), dtype)
    norm = graph.add("ReduceL2", x, graph.ints(-1), attrs={"keepdims": 1})
    scale = graph.add("Div", most, graph.add("Add", norm, graph.scalar(1e-7, dtype)))
    graph.add("Where", graph.add("Greater", norm, most), graph.add("Mul", x, scale), x, output=op.outputs[0])


def _layer_normalization(graph: Graph, op: Op) -> None:
    """ONNX wants a scale."""
    if add_native(graph, op):
        return
    blob, axis = graph.blob(op.inputs[0]), op.attrs["axis"]
    assert isinstance(axis, int)
    ones = torch.ones([int(str(d)) for d in blob.shape[axis:]], dtype=dtype_of(blob.dtype))
    inputs = (graph.value(op.inputs[0], op), graph.constant(ones))
    graph.add_many("LayerNormalization", inputs, op.outputs, attrs=op.attrs, kinds={"epsilon": float})


RULES: Mapping[str, Callable[[Graph, Op], None]] = {
    "Cast": _cast,
    "Detach": _as_it_is,
    "ToAccelerator": _as_it_is,
    "ToHost": _as_it_is,
    "Log1p": _log1p,
    "Rsqrt": _rsqrt,
    "Swish": _swish,
    "NotEqual": _not_equal,
    "Mul": _product,
    "Mod": _modulo,
    "FloorDiv": _floor_div,
    "PRelu": _prelu,
    "Stack": _stack,
    "Unstack": _unstack,
    "Flip": _flip,
    "Reshape": _reshape,
    "BroadcastTo": _broadcast_to,
    "Fill": _fill,
    "Split": _split,
    "FlatNonZero": _flat_non_zero,
    "Unique": _unique,
    "ReduceVariance": _variance,
    "LayerNormalization": _layer_normalization,
    "BoundRows": _bound_rows,
}

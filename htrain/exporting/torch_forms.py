"""PyTorch's own ops, and batch norms by their statistics, in ONNX: those that it has under other names, or that are few of its nodes."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from htrain.exporting.graph import Graph
from htrain.exporting.native import operands
from htrain.net.net import Attr, BatchDim, Op

Rule = Callable[[Graph, Op], None]


def _renamed(type: str, names: Mapping[str, str] | None = None) -> Rule:
    """An op of one input that ONNX has; its attributes under ONNX's names."""

    def rule(graph: Graph, op: Op) -> None:
        attrs = {new: float(_number(op, old)) for old, new in (names or {}).items()}
        graph.add(type, graph.value(op.inputs[0], op), attrs=attrs, output=op.outputs[0])

    return rule


def _number(op: Op, name: str, default: float = 0.0) -> float:
    value = op.attrs.get(name, default)
    assert isinstance(value, int | float)
    return value


def _ints(op: Op, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
    value = op.attrs.get(name, ())
    assert isinstance(value, tuple)
    return tuple(value or default)


def _dtype(graph: Graph, op: Op) -> str:
    return graph.blob(op.inputs[0]).dtype


def _clip(low: float | str, high: float | str) -> Rule:
    def rule(graph: Graph, op: Op) -> None:
        bounds = [b if isinstance(b, float) else _number(op, b, -1.0 if b == "min_val" else 1.0) for b in (low, high)]
        limits = [graph.scalar(bound, _dtype(graph, op)) for bound in bounds]
        graph.add("Clip", graph.value(op.inputs[0], op), *limits, output=op.outputs[0])

    return rule


def _shrink(graph: Graph, op: Op, *, soft: bool) -> None:
    by = float(_number(op, "lambd", 0.5))
    graph.add("Shrink", graph.value(op.inputs[0], op), attrs={"lambd": by, "bias": by * soft}, output=op.outputs[0])


def _log_sigmoid(graph: Graph, op: Op) -> None:
    away = graph.add("Softplus", graph.add("Neg", graph.value(op.inputs[0], op)))
    graph.add("Neg", away, output=op.outputs[0])


def _scaled(type: str, number: float, *, before: bool) -> Rule:
    """A logarithm or a power of another base."""

    def rule(graph: Graph, op: Op) -> None:
        x, by = graph.value(op.inputs[0], op), graph.scalar(number, _dtype(graph, op))
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
    above = graph.add("Greater", x, graph.scalar(_number(op, "threshold"), dtype))
    graph.add("Where", above, x, graph.scalar(_number(op, "value"), dtype), output=op.outputs[0])


def _product_added(graph: Graph, op: Op, *, type: str) -> None:
    x, left, right = operands(graph, op)
    by = graph.scalar(_number(op, "value", 1.0), graph.blob(op.outputs[0]).dtype)
    graph.add("Add", x, graph.add("Mul", graph.add(type, left, right), by), output=op.outputs[0])


def _lerp(graph: Graph, op: Op) -> None:
    x, y, *weight = operands(graph, op)
    share = weight[0] if weight else graph.scalar(_number(op, "weight"), graph.blob(op.outputs[0]).dtype)
    graph.add("Add", x, graph.add("Mul", graph.add("Sub", y, x), share), output=op.outputs[0])


def _any_or_all(graph: Graph, op: Op, *, type: str) -> None:
    """Of numbers, those that are not 0 count as true."""
    truth = graph.cast(graph.cast(graph.value(op.inputs[0], op), "bool"), "int64")
    rank = len(graph.blob(op.inputs[0]).shape)
    axes = graph.ints(int(_number(op, "dim"))) if "dim" in op.attrs else graph.ints(*range(rank))
    keep = {"keepdims": int(bool(op.attrs.get("keepdim", False)))}
    graph.cast(graph.add(type, truth, axes, attrs=keep), "bool", op.outputs[0])


def _extreme(graph: Graph, op: Op, *, values: str, places: str) -> None:
    x, axis = graph.value(op.inputs[0], op), int(_number(op, "dim"))
    keep = int(bool(op.attrs.get("keepdim", False)))
    graph.add(values, x, graph.ints(axis), attrs={"keepdims": keep}, output=op.outputs[0])
    graph.add(places, x, attrs={"axis": axis, "keepdims": keep}, output=op.outputs[1])


def _largest(graph: Graph, op: Op) -> None:
    x, attrs = graph.value(op.inputs[0], op), _order(op, largest=bool(op.attrs.get("largest", True)))
    graph.add_many("TopK", (x, graph.ints(int(_number(op, "k")))), op.outputs, attrs=attrs)


def _sorted(graph: Graph, op: Op, *, indices_alone: bool) -> None:
    x, axis = graph.value(op.inputs[0], op), int(_number(op, "dim", -1))
    rank = len(graph.blob(op.inputs[0]).shape)
    size = graph.add("Shape", x, attrs={"start": axis % rank, "end": axis % rank + 1})
    outputs = (graph.fresh("sorted"), op.outputs[0]) if indices_alone else op.outputs
    attrs = _order(op, largest=bool(op.attrs.get("descending", False)))
    graph.add_many("TopK", (x, size), outputs, attrs=attrs)


def _order(op: Op, *, largest: bool) -> dict[str, Attr]:
    return {"axis": int(_number(op, "dim", -1)), "largest": int(largest), "sorted": 1}


def _norm(graph: Graph, op: Op) -> None:
    """Of the absolute values; ONNX has those of the first and the second power."""
    x, power = graph.value(op.inputs[0], op), _number(op, "ord", 2.0)
    axes = graph.ints(*_ints(op, "dim", range(len(graph.blob(op.inputs[0]).shape))))
    attrs = {"keepdims": int(bool(op.attrs.get("keepdim", False)))}
    if power in (1, 2):
        graph.add(f"ReduceL{int(power)}", x, axes, attrs=attrs, output=op.outputs[0])
        return
    by, back = (graph.scalar(p, _dtype(graph, op)) for p in (power, 1 / power))
    total = graph.add("ReduceSum", graph.add("Pow", graph.add("Abs", x), by), axes, attrs=attrs)
    graph.add("Pow", total, back, output=op.outputs[0])


def _variance(graph: Graph, op: Op, *, root: bool) -> None:
    """The sum of squares by their number less the correction."""
    x, dtype = graph.value(op.inputs[0], op), _dtype(graph, op)
    shape = graph.blob(op.inputs[0]).shape
    dims = _ints(op, "dim", range(len(shape)))
    axes, attrs = graph.ints(*dims), {"keepdims": int(bool(op.attrs.get("keepdim", False)))}
    away = graph.add("Sub", x, graph.add("ReduceMean", x, axes, attrs={"keepdims": 1}))
    total = graph.add("ReduceSum", graph.add("Mul", away, away), axes, attrs=attrs)
    lengths = [graph.add("Shape", x, attrs={"start": d % len(shape), "end": d % len(shape) + 1}) for d in dims]
    count = graph.add(
        "ReduceProd", graph.cast(graph.add("Concat", *lengths, attrs={"axis": 0}), dtype), attrs={"keepdims": 0}
    )
    found = graph.add("Div", total, graph.add("Sub", count, graph.scalar(_number(op, "correction", 1.0), dtype)))
    graph.add("Sqrt" if root else "Identity", found, output=op.outputs[0])


def _one_hot(graph: Graph, op: Op) -> None:
    values = graph.ints(0, 1)
    classes = graph.ints(int(_number(op, "num_classes")))
    graph.add("OneHot", graph.value(op.inputs[0], op), classes, values, output=op.outputs[0])


def _scatter(graph: Graph, op: Op, *, reduction: str = "none") -> None:
    x, index, *source = (graph.value(name, op) for name in op.inputs)
    if not source:
        number = graph.scalar(_number(op, "value"), _dtype(graph, op))
        source = [graph.add("Expand", number, graph.add("Shape", index))]
    attrs: dict[str, Attr] = {"axis": int(_number(op, "dim")), "reduction": reduction}
    graph.add("ScatterElements", x, index, *source, attrs=attrs, output=op.outputs[0])


def _convolution(graph: Graph, op: Op) -> None:
    """Padding is the same before and behind."""
    rank = len(graph.blob(op.inputs[1]).shape) - 2
    padding = _ints(op, "padding", (0,) * rank)
    attrs: dict[str, Attr] = {
        "strides": _ints(op, "stride", (1,) * rank), "pads": (*padding, *padding), "dilations": _ints(op, "dilation", (1,) * rank),
        "group": int(_number(op, "groups", 1)),
    }  # fmt: skip
    transposed = bool(op.attrs.get("transposed", False))
    if transposed:
        attrs["output_padding"] = _ints(op, "output_padding", (0,) * rank)
    inputs = tuple(graph.value(name, op) for name in op.inputs)
    graph.add("ConvTranspose" if transposed else "Conv", *inputs, attrs=attrs, output=op.outputs[0])


def _pool(graph: Graph, op: Op, *, type: str, rank: int) -> None:
    """One size may stand for all dimensions."""

    def each(name: str, default: Sequence[int]) -> tuple[int, ...]:
        found = _ints(op, name, default)
        return found * rank if len(found) == 1 else found

    size, padding = each("kernel_size", ()), each("padding", (0,))
    attrs: dict[str, Attr] = {
        "kernel_shape": size, "strides": each("stride", size), "pads": (*padding, *padding), "ceil_mode": int(bool(op.attrs.get("ceil_mode", False))),
    }  # fmt: skip
    x = graph.value(op.inputs[0], op)
    if type != "MaxPool":
        attrs["count_include_pad"] = int(bool(op.attrs.get("count_include_pad", True)))
        graph.add(type, x, attrs=attrs, output=op.outputs[0])
        return
    places = graph.fresh("places")  # in the whole tensor, where PyTorch has those in an image
    graph.add_many(type, (x,), (op.outputs[0], places), attrs={**attrs, "dilations": each("dilation", (1,))})
    image = graph.add("ReduceProd", graph.add("Shape", x, attrs={"start": -rank}), attrs={"keepdims": 0})
    graph.add("Mod", places, image, output=op.outputs[1])


_GATES = {"Gru": ("GRU", (1, 0, 2)), "Lstm": ("LSTM", (0, 3, 1, 2)), "Rnn": ("RNN", (0,)), "RnnRelu": ("RNN", (0,))}


def _recurrent(graph: Graph, op: Op) -> None:
    """Layer by layer; ONNX wants the steps first, gates in another order, and the weights of both directions as one."""
    states = 2 if op.type == "Lstm" else 1
    x, *others = (graph.value(name, op) for name in op.inputs)
    initial, weights = others[:states], others[states:]
    directions, per_cell = (2 if op.attrs["bidirectional"] else 1), (4 if op.attrs["has_biases"] else 2)
    if op.attrs["batch_first"]:
        x = graph.add("Transpose", x, attrs={"perm": (1, 0, 2)})
    last: list[list[str]] = [[] for _ in range(states)]
    for layer in range(int(_number(op, "num_layers"))):
        at = graph.ints(*range(layer * directions, (layer + 1) * directions))
        begin = [graph.add("Gather", state, at, attrs={"axis": 0}) for state in initial]
        cells = [weights[(layer * directions + d) * per_cell :][:per_cell] for d in range(directions)]
        x, *ends = _layer(graph, op, x, begin, cells)
        for kept, end in zip(last, ends, strict=True):
            kept.append(end)
    order = {"perm": (1, 0, 2)} if op.attrs["batch_first"] else {"perm": (0, 1, 2)}
    graph.add("Transpose", x, attrs=order, output=op.outputs[0])
    for kept, output in zip(last, op.outputs[1:], strict=True):
        graph.add("Concat", *kept, attrs={"axis": 0}, output=output)


def _layer(graph: Graph, op: Op, x: str, begin: Sequence[str], cells: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """x[T,B,I] -> y[T,B,directions * H], and the last states [directions,B,H]."""
    type, order = _GATES[op.type]
    width = graph.blob(op.outputs[1]).shape[-1]
    assert not isinstance(width, BatchDim)
    rows = graph.ints(*(gate * width + i for gate in order for i in range(width)))
    lead = graph.ints(0)

    def stacked(place: int) -> str:
        parts = [
            graph.add("Unsqueeze", graph.add("Gather", cell[place], rows, attrs={"axis": 0}), lead) for cell in cells
        ]
        return graph.add("Concat", *parts, attrs={"axis": 0})

    inputs = [x, stacked(0), stacked(1)]
    inputs.append(graph.add("Concat", stacked(2), stacked(3), attrs={"axis": 1}) if len(cells[0]) == 4 else "")
    attrs: dict[str, Attr] = {"hidden_size": width, "direction": "bidirectional" if len(cells) == 2 else "forward"}
    if op.type == "Gru":
        attrs["linear_before_reset"] = 1
    if op.type == "RnnRelu":
        attrs["activations"] = "Relu"
    names = [graph.fresh(part) for part in ("steps", "last", "cell")[: 1 + len(begin)]]
    graph.add_many(type, (*inputs, "", *begin), names, attrs=attrs)
    joined = graph.add("Transpose", names[0], attrs={"perm": (0, 2, 1, 3)})  # [T,D,B,H] -> [T,B,D,H]
    return graph.add("Reshape", joined, graph.ints(0, 0, len(cells) * width)), *names[1:]


def _batch_normalization(graph: Graph, op: Op) -> None:
    x, scale, bias, mean, variance = (graph.value(name, op) for name in op.inputs)
    least = graph.add("Max", variance, graph.scalar(0.0, graph.blob(op.inputs[4]).dtype))
    attrs = {"epsilon": float(_number(op, "epsilon"))}
    graph.add("BatchNormalization", x, scale, bias, mean, least, attrs=attrs, output=op.outputs[0])


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
    **{name: partial(_any_or_all, type="ReduceMax") for name in ("Any", "AnyAlong")},
    **{name: partial(_any_or_all, type="ReduceMin") for name in ("All", "AllAlong")},
    "MaxAlong": partial(_extreme, values="ReduceMax", places="ArgMax"),
    "MinAlong": partial(_extreme, values="ReduceMin", places="ArgMin"),
    "LargestK": _largest,
    **dict.fromkeys(
        ("Sort", "SortStable"), partial(_sorted, indices_alone=False)
    ),  # of equal values TopK takes those of lower places first
    "ArgSort": partial(_sorted, indices_alone=True),
    "Norm": _norm,
    "Variance": partial(_variance, root=False),
    "Deviation": partial(_variance, root=True),
    "OneHot": _one_hot,
    "Scatter": _scatter,
    "ScatterValue": _scatter,
    "ScatterAdd": partial(_scatter, reduction="add"),
    "Convolution": _convolution,
    "FastConvolution": _convolution,
    "MaxPool2d": partial(_pool, type="MaxPool", rank=2),
    "AvgPool1d": partial(_pool, type="AveragePool", rank=1),
    "AvgPool2d": partial(_pool, type="AveragePool", rank=2),
    **dict.fromkeys(("Gru", "Lstm", "Rnn"), _recurrent),
    "BatchNormalization": _batch_normalization,
}

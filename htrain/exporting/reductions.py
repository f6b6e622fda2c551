"""Sums, norms, extremes and orders along dimensions in ONNX."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from htrain.exporting.attributes import ints, number
from htrain.exporting.graph import Graph
from htrain.exporting.native import no_form
from htrain.net.net import Attr, Op


def _any_or_all(graph: Graph, op: Op, *, type: str) -> None:
    """Of numbers, those that are not 0 count as true."""
    truth = graph.cast(graph.cast(graph.value(op.inputs[0], op), "bool"), "int64")
    rank = len(graph.blob(op.inputs[0]).shape)
    axes = graph.ints(int(number(op, "dim"))) if "dim" in op.attrs else graph.ints(*range(rank))
    keep = {"keepdims": int(bool(op.attrs.get("keepdim", False)))}
    graph.cast(graph.add(type, truth, axes, attrs=keep), "bool", op.outputs[0])


def _extreme(graph: Graph, op: Op, *, values: str, places: str) -> None:
    x, axis = graph.value(op.inputs[0], op), int(number(op, "dim"))
    keep = int(bool(op.attrs.get("keepdim", False)))
    graph.add(values, x, graph.ints(axis), attrs={"keepdims": keep}, output=op.outputs[0])
    graph.add(places, x, attrs={"axis": axis, "keepdims": keep}, output=op.outputs[1])


def _largest(graph: Graph, op: Op) -> None:
    x, attrs = graph.value(op.inputs[0], op), _order(op, largest=bool(op.attrs.get("largest", True)))
    graph.add_many("TopK", (x, graph.ints(int(number(op, "k")))), op.outputs, attrs=attrs)


def _ranked(graph: Graph, op: Op) -> None:
    """The k-th smallest along a dimension, and where it is."""
    _kth(graph, op, graph.ints(int(number(op, "k"))))


def _median(graph: Graph, op: Op) -> None:
    """The lower one, where two are in the middle."""
    size = graph.blob(op.inputs[0]).shape[int(number(op, "dim"))]
    if not isinstance(size, int):
        raise no_form(op, [graph.blob(op.inputs[0])])
    _kth(graph, op, graph.ints((size + 1) // 2))


def _kth(graph: Graph, op: Op, k: str) -> None:
    x, axis = graph.value(op.inputs[0], op), int(number(op, "dim", -1))
    up_to = [graph.fresh("values"), graph.fresh("places")]
    graph.add_many("TopK", (x, k), up_to, attrs=_order(op, largest=False))
    last = graph.scalar(-1, "int64") if not op.attrs.get("keepdim", False) else graph.ints(-1)
    for found, output in zip(up_to, op.outputs, strict=True):
        graph.add("Gather", found, last, attrs={"axis": axis}, output=output)


def _least(graph: Graph, op: Op) -> None:
    if "dim" not in op.attrs:
        raise no_form(op, [graph.blob(op.inputs[0])])
    attrs = {"axis": int(number(op, "dim")), "keepdims": int(bool(op.attrs.get("keepdim", False)))}
    graph.add("ArgMin", graph.value(op.inputs[0], op), attrs=attrs, output=op.outputs[0])


def _below(graph: Graph, op: Op, *, x: int, bounds: int) -> None:
    """How many of the bounds are below each number; on the right, those count that equal it."""
    if len(graph.blob(op.inputs[bounds]).shape) != 1 or len(op.inputs) > 2:
        raise no_form(op, [graph.blob(name) for name in op.inputs])
    right = bool(op.attrs.get("right", False)) or op.attrs.get("side", "left") == "right"
    wide = [graph.cast(graph.value(op.inputs[place], op), "float64") for place in (x, bounds)]
    each = graph.add("Unsqueeze", wide[0], graph.ints(-1))
    counts = graph.cast(graph.add("GreaterOrEqual" if right else "Greater", each, wide[1]), "int64")
    total = graph.add("ReduceSum", counts, graph.ints(-1), attrs={"keepdims": 0})
    graph.cast(total, graph.blob(op.outputs[0]).dtype, op.outputs[0])


def _sorted(graph: Graph, op: Op, *, indices_alone: bool) -> None:
    x, axis = graph.value(op.inputs[0], op), int(number(op, "dim", -1))
    rank = len(graph.blob(op.inputs[0]).shape)
    size = graph.add("Shape", x, attrs={"start": axis % rank, "end": axis % rank + 1})
    outputs = (graph.fresh("sorted"), op.outputs[0]) if indices_alone else op.outputs
    attrs = _order(op, largest=bool(op.attrs.get("descending", False)))
    graph.add_many("TopK", (x, size), outputs, attrs=attrs)


def _order(op: Op, *, largest: bool) -> dict[str, Attr]:
    return {"axis": int(number(op, "dim", -1)), "largest": int(largest), "sorted": 1}


def _norm(graph: Graph, op: Op) -> None:
    rank = len(graph.blob(op.inputs[0]).shape)
    dims, keep = ints(op, "dim", range(rank)), bool(op.attrs.get("keepdim", False))
    add_norm(graph, graph.value(op.inputs[0], op), number(op, "ord", 2.0), dims, keepdims=keep, output=op.outputs[0])


def add_norm(graph: Graph, x: str, power: float, dims: Sequence[int], *, keepdims: bool, output: str) -> None:
    """The norm of x along `dims`: that of infinity is the largest of the absolute values, that of 0 counts those that are not 0; ONNX has those of the first
    and the second power."""
    axes, attrs = graph.ints(*dims), {"keepdims": int(keepdims)}
    add = partial(graph.add, attrs=attrs, output=output)
    if power in (1, 2):
        add(f"ReduceL{int(power)}", x, axes)
    elif math.isinf(power):
        add("ReduceMax" if power > 0 else "ReduceMin", graph.add("Abs", x), axes)
    elif not power:
        zero = graph.add("CastLike", graph.scalar(0.0, "float32"), x)
        counted = graph.add("CastLike", graph.add("Not", graph.add("Equal", x, zero)), x)
        add("ReduceSum", counted, axes)
    else:
        by, back = (graph.add("CastLike", graph.scalar(p, "float32"), x) for p in (power, 1 / power))
        total = graph.add("ReduceSum", graph.add("Pow", graph.add("Abs", x), by), axes, attrs=attrs)
        graph.add("Pow", total, back, output=output)


def _variance(graph: Graph, op: Op, *, root: bool) -> None:
    """The sum of squares by their number less the correction."""
    x, dtype = graph.value(op.inputs[0], op), graph.blob(op.inputs[0]).dtype
    shape = graph.blob(op.inputs[0]).shape
    dims = ints(op, "dim", range(len(shape)))
    axes, attrs = graph.ints(*dims), {"keepdims": int(bool(op.attrs.get("keepdim", False)))}
    away = graph.add("Sub", x, graph.add("ReduceMean", x, axes, attrs={"keepdims": 1}))
    total = graph.add("ReduceSum", graph.add("Mul", away, away), axes, attrs=attrs)
    lengths = [graph.add("Shape", x, attrs={"start": d % len(shape), "end": d % len(shape) + 1}) for d in dims]
    count = graph.add(
        "ReduceProd", graph.cast(graph.add("Concat", *lengths, attrs={"axis": 0}), dtype), attrs={"keepdims": 0}
    )
    found = graph.add("Div", total, graph.add("Sub", count, graph.scalar(number(op, "correction", 1.0), dtype)))
    graph.add("Sqrt" if root else "Identity", found, output=op.outputs[0])


RULES: Mapping[str, Callable[[Graph, Op], None]] = {
    **{name: partial(_any_or_all, type="ReduceMax") for name in ("Any", "AnyAlong")},
    **{name: partial(_any_or_all, type="ReduceMin") for name in ("All", "AllAlong")},
    "MaxAlong": partial(_extreme, values="ReduceMax", places="ArgMax"),
    "MinAlong": partial(_extreme, values="ReduceMin", places="ArgMin"),
    "ArgMin": _least,
    "LargestK": _largest,
    **dict.fromkeys(
        ("Sort", "SortStable"), partial(_sorted, indices_alone=False)
    ),  # of equal values TopK takes those of lower places first
    "ArgSort": partial(_sorted, indices_alone=True),
    "KthValue": _ranked,
    "Median": _median,
    "Bucketize": partial(_below, x=0, bounds=1),
    "SearchSorted": partial(_below, x=1, bounds=0),
    "Norm": _norm,
    "Variance": partial(_variance, root=False),
    "Deviation": partial(_variance, root=True),
}

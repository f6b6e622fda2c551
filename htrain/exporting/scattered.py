"""Values written to, or reduced at, places that a tensor names, in ONNX."""

import math
from collections.abc import Callable, Mapping
from functools import partial

from htrain.exporting.attributes import number
from htrain.exporting.graph import Graph
from htrain.exporting.native import no_form
from htrain.net.net import Attr, Op


def _scatter(graph: Graph, op: Op, *, reduction: str = "none") -> None:
    x, index, source = _scattered(graph, op)
    attrs: dict[str, Attr] = {"axis": int(number(op, "dim")), "reduction": reduction}
    graph.add("ScatterElements", x, index, source, attrs=attrs, output=op.outputs[0])


def _scattered(graph: Graph, op: Op) -> tuple[str, str, str]:
    """What is written into, the places, and a value for each of them: of more values than places the first are taken."""
    x, index, *source = (graph.value(name, op) for name in op.inputs)
    if not source:
        value = graph.scalar(number(op, "value"), graph.blob(op.inputs[0]).dtype)
        return x, index, graph.add("Expand", value, graph.add("Shape", index))
    shapes = [graph.blob(name).shape for name in op.inputs[1:]]
    if shapes[0] == shapes[1]:
        return x, index, source[0]
    first = graph.ints(*[0] * len(shapes[0]))
    return x, index, graph.add("Slice", source[0], first, graph.add("Shape", index))


_SCATTERED = {
    "sum": ("add", 0.0),
    "mean": ("add", 0.0),
    "prod": ("mul", 1.0),
    "amax": ("max", -math.inf),
    "amin": ("min", math.inf),
}


def _scatter_reduce(graph: Graph, op: Op) -> None:
    """Where what was there does not count, it gives way first to a number that changes nothing."""
    reduction, neutral = _SCATTERED[str(op.attrs["reduce"])]
    dtype = graph.blob(op.inputs[0]).dtype
    if "float" not in dtype:
        raise no_form(op, [graph.blob(name) for name in op.inputs])
    x, index, source = _scattered(graph, op)
    keeps, axis = bool(op.attrs.get("include_self", True)), int(number(op, "dim"))

    def reduced(begin: str, values: str, instead: float, output: str = "") -> str:
        if not keeps:
            empty = graph.add("Expand", graph.scalar(instead, dtype), graph.add("Shape", index))
            begin = graph.add("ScatterElements", begin, index, empty, attrs={"axis": axis})
        attrs: dict[str, Attr] = {"axis": axis, "reduction": reduction}
        return graph.add("ScatterElements", begin, index, values, attrs=attrs, output=output)

    if op.attrs["reduce"] != "mean":
        reduced(x, source, neutral, op.outputs[0])
        return
    one = graph.scalar(1.0, dtype)
    there, more = (graph.add("Expand", one, graph.add("Shape", value)) for value in (x, index))
    graph.add("Div", reduced(x, source, 0.0), reduced(there, more, 0.0), output=op.outputs[0])


RULES: Mapping[str, Callable[[Graph, Op], None]] = {
    "Scatter": _scatter,
    "ScatterValue": _scatter,
    "ScatterAdd": partial(_scatter, reduction="add"),
    "ScatterReduce": _scatter_reduce,
}

"""FCs and products of pairs in ONNX, where it has no op of the same meaning."""

from collections.abc import Callable, Mapping
from functools import partial

from htrain.exporting.graph import Graph
from htrain.net.net import Op


def _linear(graph: Graph, op: Op, x: str, w: str, *bias: str, output: str = "") -> str:
    """y[..,N] = x[..,K] @ w[N,K].T + b[N]."""
    if len(graph.blob(op.inputs[0]).shape) == 2:
        return graph.add("Gemm", x, w, *bias, attrs={"transB": 1}, output=output)
    product = ("MatMul", x, graph.add("Transpose", w, attrs={"perm": (1, 0)}))
    return graph.add("Add", graph.add(*product), *bias, output=output) if bias else graph.add(*product, output=output)


def _fc(graph: Graph, op: Op) -> None:
    _linear(graph, op, *(graph.value(name, op) for name in op.inputs), output=op.outputs[0])


def _fc_relu(graph: Graph, op: Op) -> None:
    graph.add("Relu", _linear(graph, op, *(graph.value(name, op) for name in op.inputs)), output=op.outputs[0])


def _with_bias(graph: Graph, op: Op, product: str) -> None:
    bias = [graph.value(name, op) for name in op.inputs[2:]]
    graph.add("Add" if bias else "Identity", product, *bias, output=op.outputs[0])


def _fc_bfloat16(graph: Graph, op: Op) -> None:
    """Operands and products are rounded to bfloat16."""
    x, w = (graph.rounded(graph.value(name, op)) for name in op.inputs[:2])
    _with_bias(graph, op, graph.rounded(_linear(graph, op, x, w)))


def _fc_int8(graph: Graph, op: Op) -> None:
    """Operands are whole numbers of -127 to 127, whose products double precision sums without an error."""
    (x, x_step), (w, w_step) = (_whole_numbers(graph, graph.value(name, op)) for name in op.inputs[:2])
    product = graph.cast(graph.add("MatMul", x, graph.add("Transpose", w, attrs={"perm": (1, 0)})), "float32")
    steps = graph.add("Reshape", w_step, graph.ints(1, -1))
    _with_bias(graph, op, graph.add("Mul", graph.add("Mul", product, x_step), steps))


def _whole_numbers(graph: Graph, x: str) -> tuple[str, str]:
    """x[..,K] as a multiple, float64 without fractions, of step[..,1]."""
    most = graph.add("ReduceMax", graph.add("Abs", x), graph.ints(-1), attrs={"keepdims": 1})
    step = graph.add("Div", most, graph.scalar(127.0, "float32"))
    positive = graph.add("Greater", step, graph.scalar(0.0, "float32"))
    inverse = graph.add("Where", positive, graph.add("Reciprocal", step), step)
    return graph.cast(graph.add("Round", graph.add("Mul", x, inverse)), "float64"), step


def _pairwise_dots(graph: Graph, op: Op) -> None:
    """All products of pairs of features[B,n,D], of which those at positions[P] are taken, behind the first features."""
    features, positions = (graph.value(name, op) for name in op.inputs)
    _, count, width = graph.blob(op.inputs[0]).shape
    kept = op.attrs.get("kept", 0)
    assert isinstance(count, int)
    assert isinstance(width, int)
    assert isinstance(kept, int)
    product = graph.add("MatMul", features, graph.add("Transpose", features, attrs={"perm": (0, 2, 1)}))
    flat = graph.add("Reshape", product, graph.ints(0, count * count))  # 0 is the batch, as it is
    taken = partial(graph.add, "Gather", flat, positions, attrs={"axis": 1})
    if not kept:
        taken(output=op.outputs[0])
        return
    first = graph.add("Slice", features, graph.ints(0), graph.ints(kept), graph.ints(1))
    first = graph.add("Reshape", first, graph.ints(0, kept * width))
    graph.add("Concat", first, taken(), attrs={"axis": 1}, output=op.outputs[0])


RULES: Mapping[str, Callable[[Graph, Op], None]] = {
    "FC": _fc,
    "FastFC": _fc,
    "FCRelu": _fc_relu,
    "FCBfloat16": _fc_bfloat16,
    "FCInt8": _fc_int8,
    "PairwiseDots": _pairwise_dots,
}

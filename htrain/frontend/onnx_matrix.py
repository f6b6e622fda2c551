"""ONNX's matrix products as ops of htrain: a product with a stored weight is an FC, with its bias where one follows."""

from collections.abc import Callable, Mapping

import onnx_ir as ir

from htrain.frontend.onnx_graph import Graph
from htrain.frontend.onnx_operator import Operator
from htrain.frontend.onnx_weights import Stored

Handler = Callable[[Graph, Operator], None]


def _gemm(graph: Graph, node: Operator) -> None:
    """alpha * A' @ B' + beta * C."""
    x = graph.blob(node, 0)
    if node.attributes.get_int("transA", 0):
        x = graph.step(node, "Transpose", (x,), {"perm": (1, 0)})
    alpha, beta = node.attributes.get_float("alpha", 1.0), node.attributes.get_float("beta", 1.0)
    weight = _weight(graph, node.inputs[1])
    transposed = bool(node.attributes.get_int("transB", 0))
    as_fc = weight is not None and (weight.transposed or transposed)
    if as_fc and alpha == 1.0 and beta == 1.0 and _is_bias(graph, graph.operand(node, 2), weight):
        graph.emit(node, "FC", (x, graph.blob(node, 1), graph.blob(node, 2)))
        return
    y = _product(graph, node, x, as_fc=as_fc, transposed=transposed)
    if alpha != 1.0:
        y = graph.step(node, "Mul", (y, graph.scalar(node, alpha, y)))
    if graph.operand(node, 2) is not None:
        c = graph.blob(node, 2)
        c = c if beta == 1.0 else graph.step(node, "Mul", (c, graph.scalar(node, beta, c)))
        y = graph.step(node, "Add", (y, c))
    graph.alias(node, y)


def _product(graph: Graph, node: Operator, x: str, *, as_fc: bool, transposed: bool) -> str:
    w = graph.blob(node, 1)
    if as_fc:
        return graph.step(node, "FC", (x, w))
    if transposed:
        w = graph.step(node, "Transpose", (w,), {"perm": (1, 0)})
    return graph.step(node, "MatMul", (x, w))


def _matmul(graph: Graph, node: Operator) -> None:
    """x[..., K] @ w[K,N] is an FC of x as a matrix; with the bias that is added right after, if it is a vector of N."""
    weight, matrix = _matrix(graph, node)
    x = graph.blob(node, 0)
    if weight is None or matrix is None or graph.rank(x) < 2:
        graph.emit(node, "MatMul", (x, graph.blob(node, 1)))
        return
    add, bias = _bias_added_after(graph, node, weight)
    operands = [graph.blob_of(node, matrix)]
    if add is not None and bias is not None:
        operands.append(graph.blob_of(add, bias))
        graph.done.add(add)
    shape = graph.shape(x)
    if len(shape) != 2:
        x = graph.step(node, "Reshape", (x,), {"shape": (-1, weight.parameter.shape[1])})
    y = graph.step(node, "FC", (x, *operands))
    graph.alias(add or node, graph.reshape(node, y, (*shape[:-1], weight.parameter.shape[0])))


def _matrix(graph: Graph, node: Operator) -> tuple[Stored | None, ir.Value | None]:
    """The stored w[N,K] that x[..,K] is multiplied with transposed: kept so for it, or transposed by a node of its own."""
    value = graph.operand(node, 1)
    weight = _weight(graph, value)
    if weight is not None:
        return (weight, value) if weight.transposed else (None, None)
    transpose = value.producer() if value is not None else None
    if (
        transpose is None
        or transpose.op_type != "Transpose"
        or tuple(transpose.attributes.get_ints("perm", ())) != (1, 0)
    ):
        return None, None
    weight = _weight(graph, transpose.inputs[0])
    return (weight, transpose.inputs[0]) if weight is not None and not weight.transposed else (None, None)


def _weight(graph: Graph, value: ir.Value | None) -> Stored | None:
    """The stored matrix that an operand is; None for anything else."""
    stored = graph.stored.get(str(value.name)) if value is not None else None
    matrix = stored is not None and stored.parameter.kind == "weight" and len(stored.parameter.shape) == 2
    return stored if matrix else None


def _is_bias(graph: Graph, value: ir.Value | None, weight: Stored | None) -> bool:
    """Whether `value` is a stored vector with an element for each column of the product with `weight`, kept as w[N,K]."""
    stored = graph.stored.get(str(value.name)) if value is not None else None
    return stored is not None and weight is not None and stored.parameter.shape == weight.parameter.shape[:1]


def _bias_added_after(graph: Graph, node: Operator, weight: Stored) -> tuple[ir.Node | None, ir.Value | None]:
    """The Add that alone reads the product, and the bias that it adds."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add" or node.outputs[0].is_graph_output():
        return None, None
    add = uses[0].node
    bias = add.inputs[1 - uses[0].idx]
    return (add, bias) if _is_bias(graph, bias, weight) else (None, None)


def _einsum(graph: Graph, node: Operator) -> None:
    equation = node.attributes["equation"].as_string().replace(" ", "")
    graph.emit(node, "Einsum", graph.blobs(node), {"equation": equation})


def _attention(graph: Graph, node: Operator) -> None:
    """softmax(q @ k.T * scale + mask) @ v for q, k, v[B,heads,length,D]; `mask` is added, or says which keys to look at. Who may look at none gets zeros."""
    q, k, v = (graph.blob(node, i) for i in range(3))
    width = graph.shape(q)[-1]
    causal, capped = node.attributes.get_int("is_causal", 0), node.attributes.get_float("softcap", 0.0)
    if causal or capped or graph.rank(q) != 4 or graph.shape(q)[1] != graph.shape(k)[1] or not isinstance(width, int):
        raise graph.refusal(node, "is causal, capped, grouped or not of four dimensions: export with opset 20")
    scaled = graph.step(node, "Mul", (q, graph.scalar(node, node.attributes.get_float("scale", width**-0.5), q)))
    scores = graph.step(node, "MatMul", (scaled, graph.step(node, "Transpose", (k,), {"perm": (0, 1, 3, 2)})))
    if graph.operand(node, 3) is None:
        weights = graph.step(node, "Softmax", (scores,), {"axis": -1})
    else:
        weights = _masked(graph, node, scores, graph.blob(node, 3))
    graph.alias(node, graph.step(node, "MatMul", (weights, v)))


def _masked(graph: Graph, node: Operator, scores: str, mask: str) -> str:
    """The weights of attention under a mask; zeros where a row of scores is -inf alone: its softmax is no number, nor are its gradients."""
    nothing = graph.scalar(node, float("-inf"), scores)
    if graph.builder.blob(mask).dtype == "bool":
        masked = graph.step(node, "Where", (mask, scores, nothing))
    else:
        masked = graph.step(node, "Add", (scores, mask))
    most = graph.step(node, "ReduceMax", (masked,), {"axes": (-1,), "keepdims": True})
    sees = graph.step(node, "Greater", (most, nothing))
    weights = graph.step(node, "Softmax", (graph.step(node, "Where", (sees, masked, scores)),), {"axis": -1})
    return graph.step(node, "Where", (sees, weights, graph.scalar(node, 0.0, scores)))


HANDLERS: Mapping[str, Handler] = {"Gemm": _gemm, "MatMul": _matmul, "Einsum": _einsum, "Attention": _attention}

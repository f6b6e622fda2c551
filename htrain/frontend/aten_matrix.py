"""ATen ops that multiply matrices and reduce axes, and what is made of them: norms, softmax, attention."""


import torch
from torch import fx

from htrain.frontend.aten_forms import Handler, Node, argument, axes_of, refuse
from htrain.frontend.translation import Translation, dtype_name
from htrain.net import BatchDim


def _linear(t: Translation, node: Node) -> None:
    """FC has a matrix for x: other ranks are flattened around it."""
    x, weight = node.args[0], t.blob(node.args[1])
    bias = argument(node, 2, "bias", None)
    assert isinstance(x, fx.Node)
    name, shape = t.blob(x), t.shape(x)
    rest = (t.blob(bias),) if bias is not None else ()
    if len(shape) == 2:
        t.add(node, "FC", (name, weight, *rest))
        return
    flat = t.step(node, "Reshape", (name,), {"shape": (-1, x.meta["val"].shape[-1])})
    product = t.step(node, "FC", (flat, weight, *rest))
    t.add(node, "Reshape", (product,), {"shape": t.open_shape(node)})


def _matmul(t: Translation, node: Node) -> None:
    t.add(node, "MatMul", (t.blob(node.args[0]), t.blob(node.args[1])))


def _add_matmul(t: Translation, node: Node) -> None:
    """addmm and baddbmm: bias + a @ b."""
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        raise refuse(t, node, "alpha and beta other than 1")
    product = t.step(node, "MatMul", (t.blob(node.args[1]), t.blob(node.args[2])))
    t.add(node, "Add", (product, t.blob(node.args[0])))


def _einsum(t: Translation, node: Node) -> None:
    equation, operands = node.args[0], node.args[1]
    t.add(node, "Einsum", [t.blob(x) for x in operands], {"equation": str(equation).replace(" ", "")})


def _reduce(type: str, axes_at: int, keep_at: int) -> Handler:
    def handle(t: Translation, node: Node) -> None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        axes = axes_of(node, axes_at)
        if any(isinstance(t.shape(source)[a], BatchDim) for a in axes):
            raise refuse(t, node, "it reduces over the batch: examples must not depend on each other")
        name = t.blob(source)
        value = node.meta["val"]
        dtype = (value[0] if isinstance(value, tuple) else value).dtype
        if source.meta["val"].dtype != dtype:
            name = t.step(node, "Cast", (name,), {"to": dtype_name(dtype)})
        result = t.step(
            node, type, (name,), {"axes": axes, "keepdims": bool(argument(node, keep_at, "keepdim", False))}
        )
        t.names[node] = result
        t.parts[node] = (result,)

    return handle


def _norm(t: Translation, node: Node) -> None:
    if argument(node, 1, "ord", 2) != 2:
        raise refuse(t, node, "a norm other than the 2-norm")
    _reduce("ReduceL2", 2, 3)(t, node)


def _variance(t: Translation, node: Node) -> None:
    unbiased = (
        node.kwargs.get("correction", 1)
        if str(node.target).endswith("correction")
        else int(bool(argument(node, 2, "unbiased", True)))
    )
    if unbiased:
        raise refuse(t, node, "an unbiased variance: use correction=0")
    _reduce("ReduceVariance", 1, 3)(t, node)


def _softmax(type: str) -> Handler:
    def handle(t: Translation, node: Node) -> None:
        rank = len(node.meta["val"].shape)
        axis = int(node.args[1]) % rank
        if isinstance(t.shape(node)[axis], BatchDim):
            raise refuse(t, node, "it normalises over the batch")
        t.add(node, type, (t.blob(node.args[0]),), {"axis": axis})

    return handle


def _axis_op(type: str) -> Handler:
    return lambda t, node: t.add(
        node, type, (t.blob(node.args[0]),), {"axis": int(node.args[1]) % len(node.meta["val"].shape)}
    )


def _layer_norm(t: Translation, node: Node) -> None:
    dims = len(node.args[1])
    scale = [t.blob(p) for p in (argument(node, 2, "weight", None), argument(node, 3, "bias", None)) if p is not None]
    epsilon = float(argument(node, 4, "eps", 1e-5))
    t.add(node, "LayerNormalization", (t.blob(node.args[0]), *scale), {"axis": -dims, "epsilon": epsilon})


def _attention(t: Translation, node: Node) -> None:
    """softmax(q @ k.T * scale + mask) @ v; a bool mask keeps what is True."""
    q, k, v = node.args[:3]
    mask = argument(node, 3, "attn_mask", None)
    if argument(node, 4, "dropout_p", 0.0) or argument(node, 5, "is_causal", False) or node.kwargs.get("enable_gqa"):
        raise refuse(t, node, "dropout_p, is_causal or enable_gqa")
    assert isinstance(q, fx.Node)
    assert isinstance(k, fx.Node)
    width = q.meta["val"].shape[-1]
    scale = node.kwargs.get("scale") or width**-0.5
    rank = len(k.meta["val"].shape)
    turned = t.step(node, "Transpose", (t.blob(k),), {"perm": (*range(rank - 2), rank - 1, rank - 2)})
    scores = t.step(node, "MatMul", (t.blob(q), turned))
    scores = t.step(node, "Mul", (scores, t.blob(float(scale), like=q.meta["val"])))
    if isinstance(mask, fx.Node) and mask.meta["val"].dtype == torch.bool:
        scores = t.step(node, "Where", (t.blob(mask), scores, t.blob(float("-inf"), like=q.meta["val"])))
    elif mask is not None:
        scores = t.step(node, "Add", (scores, t.blob(mask)))
    weights = t.step(node, "Softmax", (scores,), {"axis": rank - 1})
    t.add(node, "MatMul", (weights, t.blob(v)))


MATRIX: dict[str, Handler] = {
    **dict.fromkeys(("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default"), _matmul),
    **dict.fromkeys(("addmm.default", "baddbmm.default"), _add_matmul),
    **dict.fromkeys(("softmax.int", "_softmax.default"), _softmax("Softmax")),
    **dict.fromkeys(("log_softmax.int", "_log_softmax.default"), _softmax("LogSoftmax")),
    **dict.fromkeys(("sum.default", "sum.dim_IntList"), _reduce("ReduceSum", 1, 2)),
    **dict.fromkeys(("mean.default", "mean.dim"), _reduce("ReduceMean", 1, 2)),
    **dict.fromkeys(("amax.default", "max.dim", "max.default"), _reduce("ReduceMax", 1, 2)),
    **dict.fromkeys(("amin.default", "min.dim", "min.default"), _reduce("ReduceMin", 1, 2)),
    **dict.fromkeys(("prod.dim_int", "prod.default"), _reduce("ReduceProd", 1, 2)),
    **dict.fromkeys(("var.correction", "var.dim"), _variance),
    "logsumexp.default": _reduce("ReduceLogSumExp", 1, 2),
    "linalg_vector_norm.default": _norm,
    "linear.default": _linear,
    "einsum.default": _einsum,
    "cumsum.default": _axis_op("CumSum"),
    "layer_norm.default": _layer_norm,
    "scaled_dot_product_attention.default": _attention,
}  # fmt: skip

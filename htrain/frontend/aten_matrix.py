"""ATen ops that multiply matrices and reduce axes, and what is made of them: norms, softmax, attention."""

from functools import partial

import torch
from torch import fx

from htrain.frontend.aten_forms import Call, Handler, argument, axes_of, in_its_dtype, mixes_batch, refuse
from htrain.frontend.aten_torch import TORCH
from htrain.frontend.aten_training import dropped
from htrain.frontend.translation import Translation, dtype_name
from htrain.net.net import Attr


def _linear(t: Translation, call: Call) -> None:
    """FC has a matrix for x: other ranks are flattened around it."""
    x, weight = call.args[0], t.blob(call.args[1])
    bias = argument(call, 2, "bias", None)
    assert isinstance(x, fx.Node)
    name, shape = t.blob(x), t.shape(x)
    rest = (_bias(t, call, bias),) if bias is not None else ()
    if len(shape) == 2:
        t.add(call.node, "FC", (name, weight, *rest))
        return
    flat = t.step(call.node, "Reshape", (name,), {"shape": (-1, x.meta["val"].shape[-1])})
    product = t.step(call.node, "FC", (flat, weight, *rest))
    t.add(call.node, "Reshape", (product,), {"shape": t.open_shape(call.node)})


def _bias(t: Translation, call: Call, bias: fx.Node) -> str:
    """A number for each output: one for all of them is broadcast, which FC's gradient would not sum."""
    return t.broadcast(call.node, t.blob(bias), t.shape(call.args[1])[:1])


def _matmul(t: Translation, call: Call) -> None:
    t.add(call.node, "MatMul", (t.blob(call.args[0]), t.blob(call.args[1])))


def _add_matmul(t: Translation, call: Call) -> None:
    """addmm and baddbmm: beta * bias + alpha * a @ b."""
    like, product = call.meta["val"], t.step(call.node, "MatMul", (t.blob(call.args[1]), t.blob(call.args[2])))
    bias = t.blob(call.args[0])
    alpha, beta = call.argument("alpha"), call.argument("beta")
    if alpha != 1:
        product = t.step(call.node, "Mul", (product, t.blob(alpha, like=like)))
    if beta != 1:
        bias = t.step(call.node, "Mul", (bias, t.blob(beta, like=like)))
    t.add(call.node, "Add", (product, bias))


def _einsum(t: Translation, call: Call) -> None:
    equation, operands = call.args[0], call.args[1]
    t.add(call.node, "Einsum", [t.blob(x) for x in operands], {"equation": str(equation).replace(" ", "")})


def _reduce(type: str, axes_at: int, keep_at: int) -> Handler:
    def handle(t: Translation, call: Call) -> None:
        source = call.args[0]
        assert isinstance(source, fx.Node)
        axes = axes_of(call, axes_at)
        mixes_batch(t, call, axes)
        name = t.blob(source)
        value = call.meta["val"]
        dtype = (value[0] if isinstance(value, tuple) else value).dtype
        if source.meta["val"].dtype != dtype:
            name = t.step(call.node, "Cast", (name,), {"to": dtype_name(dtype)})
        result = t.step(
            call.node, type, (name,), {"axes": axes, "keepdims": bool(argument(call, keep_at, "keepdim", False))}
        )
        t.names[call.node] = result
        t.parts[call.node] = (result,)

    return handle


def _any_of(type: str) -> Handler:
    """Over one axis after the other, from behind."""

    def handle(t: Translation, call: Call) -> None:
        axes, keep = axes_of(call, 1), bool(argument(call, 2, "keepdim", False))
        mixes_batch(t, call, axes)
        name = t.blob(call.args[0])
        for axis in reversed(axes):
            name = t.step(call.node, type, (name,), {"dim": axis, "keepdim": keep})
        t.names[call.node] = name

    return handle


def _norm(t: Translation, call: Call) -> None:
    if argument(call, 1, "ord", 2) == 2:
        _reduce("ReduceL2", 2, 3)(t, call)
    else:
        TORCH["linalg_vector_norm.default"](t, call)


def _variance(t: Translation, call: Call) -> None:
    unbiased = (
        call.kwargs.get("correction", 1)
        if str(call.target).endswith("correction")
        else int(bool(argument(call, 2, "unbiased", True)))
    )
    if not unbiased:
        _reduce("ReduceVariance", 1, 3)(t, call)
        return
    axes = axes_of(call, 1)
    mixes_batch(t, call, axes)
    attrs: dict[str, Attr] = {
        "dim": axes,
        "correction": float(unbiased),
        "keepdim": bool(argument(call, 3, "keepdim", False)),
    }
    t.add(call.node, "Variance", (t.blob(call.args[0]),), attrs)


def _spread_and_mean(t: Translation, call: Call, type: str) -> None:
    """The variance, or its root, beside the mean. The root is one op: where all values are equal its gradient is 0, that of a root of 0 is no number."""
    axes, given = axes_of(call, 1), call.kwargs.get("correction")
    mixes_batch(t, call, axes)
    keep, correction = bool(argument(call, 3, "keepdim", False)), 1.0 if given is None else float(given)
    name = t.blob(call.args[0])
    spread = t.step(call.node, type, (name,), {"dim": axes, "correction": correction, "keepdim": keep})
    t.parts[call.node] = (spread, t.step(call.node, "ReduceMean", (name,), {"axes": axes, "keepdims": keep}))


def _arg_max(t: Translation, call: Call) -> None:
    """Of all values where no axis is given, as if they were one row."""
    source, axis = call.args[0], argument(call, 1, "dim", None)
    assert isinstance(source, fx.Node)
    if axis is None:
        raise refuse(t, call, "the place among the values of all examples: give it an axis")
    axes = axes_of(call, 1)
    mixes_batch(t, call, axes)
    t.add(
        call.node, "ArgMax", (t.blob(source),), {"axis": axes[0], "keepdims": bool(argument(call, 2, "keepdim", False))}
    )


def _extreme(type: str, name: str) -> Handler:
    """The largest or smallest along an axis, with their places, which take the gradient: where several are equal, amax shares it among them, and this does not.
    Integers have none."""

    def handle(t: Translation, call: Call) -> None:
        source = call.args[0]
        assert isinstance(source, fx.Node)
        indices = [user for user in call.node.users if user.args[1:2] == (1,) and user.users]
        has_gradient = source.meta["val"].is_floating_point()
        (TORCH[name] if indices or has_gradient else _reduce(type, 1, 2))(t, call)

    return handle


def _softmax(type: str) -> Handler:
    def handle(t: Translation, call: Call) -> None:
        rank = len(call.meta["val"].shape)
        if not rank:  # of one number
            one = t.step(call.node, "Reshape", (in_its_dtype(t, call, call.args[0]),), {"shape": (1,)})
            call.told_by_shape()
            t.add(call.node, "Reshape", (t.step(call.node, type, (one,), {"axis": 0}),), {"shape": ()})
            return
        axis = int(call.args[1]) % rank
        mixes_batch(t, call, (axis,))
        t.add(call.node, type, (in_its_dtype(t, call, call.args[0]),), {"axis": axis})

    return handle


def _axis_op(type: str) -> Handler:
    return lambda t, call: t.add(
        call.node, type, (t.blob(call.args[0]),), {"axis": int(call.args[1]) % len(call.meta["val"].shape)}
    )


def _layer_norm(t: Translation, call: Call) -> None:
    dims = len(call.args[1])
    weight, bias = argument(call, 2, "weight", None), argument(call, 3, "bias", None)
    scale = [t.blob(p) for p in (weight, bias) if p is not None]
    if weight is None and bias is not None:  # whose place is the second
        scale.insert(0, t.constant(torch.ones(call.args[1]), module=""))
    epsilon = float(argument(call, 4, "eps", 1e-5))
    t.add(call.node, "LayerNormalization", (t.blob(call.args[0]), *scale), {"axis": -dims, "epsilon": epsilon})


def _attention(t: Translation, call: Call) -> None:
    """softmax(q @ k.T * scale + mask) @ v; a bool mask keeps what is True, a causal one what was before.

    As in torch, what sees nothing, as its row of the mask is all False or -inf, gets zeros.
    """
    q, k, v = call.args[:3]
    assert isinstance(q, fx.Node)
    assert isinstance(k, fx.Node)
    width = q.meta["val"].shape[-1]
    given = call.kwargs.get("scale")
    scale = width**-0.5 if given is None else given
    rank = len(k.meta["val"].shape)
    keys, values = (_for_each_query(t, call, node) for node in (k, v))
    transposed = t.step(call.node, "Transpose", (keys,), {"perm": (*range(rank - 2), rank - 1, rank - 2)})
    scores = t.step(call.node, "MatMul", (t.blob(q), transposed))
    scores = t.step(call.node, "Mul", (scores, t.blob(float(scale), like=q.meta["val"])))
    scores, seeing = _masked(t, call, scores)
    last = max(len(q.meta["val"].shape), rank) - 1  # keys that all examples share have fewer dimensions than queries
    weights = t.step(call.node, "Softmax", (scores,), {"axis": last})
    if seeing:
        weights = t.step(call.node, "Where", (seeing, weights, t.blob(0.0, like=q.meta["val"])))
    p = float(argument(call, 4, "dropout_p", 0.0))
    weights = dropped(t, call, weights, p) if p else weights
    t.add(call.node, "MatMul", (weights, values))


def _for_each_query(t: Translation, call: Call, node: fx.Node) -> str:
    """The heads of keys or values, each as often as there are heads of queries for it (enable_gqa)."""
    if not argument(call, 7, "enable_gqa", False):
        return t.blob(node)
    heads, given = (each.meta["val"].shape[-3] for each in (call.args[0], node))
    if heads == given:
        return t.blob(node)
    attrs: dict[str, Attr] = {"repeats": heads // given, "dim": len(node.meta["val"].shape) - 3}
    return t.step(call.node, "RepeatInterleave", (t.blob(node),), attrs)


def _masked(t: Translation, call: Call, scores: str) -> tuple[str, str]:
    """The scores of attention under its mask, and the blob that says which rows see anything; "" where all do.

    A row that sees nothing keeps its scores, for a softmax over -inf alone is no number, nor are its gradients.
    """
    q, k = call.args[:2]
    mask, like = argument(call, 3, "attn_mask", None), q.meta["val"]
    if mask is None and not argument(call, 5, "is_causal", False):
        return scores, ""
    hidden = t.blob(float("-inf"), like=like)
    if mask is None:
        steps = [node.meta["val"].shape[-2] for node in (q, k)]
        if not all(isinstance(count, int) for count in steps):
            raise refuse(t, call, "a causal mask over the batch")
        before = t.constant(torch.ones(*steps, dtype=torch.bool).tril(), module=t.module_of(call.node))
        return t.step(call.node, "Where", (before, scores, hidden)), ""
    is_bool, value = mask.meta["val"].dtype == torch.bool, t.static.get(mask)
    if value is not None and bool((value if is_bool else value != -torch.inf).any(-1).all()):
        return _seen(t, call, scores, t.blob(mask), is_bool), ""
    seen = t.blob(mask) if is_bool else t.step(call.node, "Greater", (t.blob(mask), hidden))
    seeing = t.step(call.node, "AnyAlong", (seen,), {"dim": len(mask.meta["val"].shape) - 1, "keepdim": True})
    masked = _seen(t, call, scores, t.blob(mask), is_bool)
    return t.step(call.node, "Where", (seeing, masked, scores)), seeing


def _seen(t: Translation, call: Call, scores: str, mask: str, is_bool: bool) -> str:
    if not is_bool:
        return t.step(call.node, "Add", (scores, mask))
    return t.step(call.node, "Where", (mask, scores, t.blob(float("-inf"), like=call.args[0].meta["val"])))


MATRIX: dict[str, Handler] = {
    **dict.fromkeys(("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default"), _matmul),
    **dict.fromkeys(("addmm.default", "baddbmm.default"), _add_matmul),
    **dict.fromkeys(("softmax.int", "_softmax.default"), _softmax("Softmax")),
    **dict.fromkeys(("log_softmax.int", "_log_softmax.default"), _softmax("LogSoftmax")),
    **dict.fromkeys(("sum.default", "sum.dim_IntList"), _reduce("ReduceSum", 1, 2)),
    **dict.fromkeys(("mean.default", "mean.dim"), _reduce("ReduceMean", 1, 2)),
    **dict.fromkeys(("amax.default", "max.default"), _reduce("ReduceMax", 1, 2)),
    **dict.fromkeys(("amin.default", "min.default"), _reduce("ReduceMin", 1, 2)),
    "argmax.default": _arg_max,
    "max.dim": _extreme("ReduceMax", "max.dim"),
    "min.dim": _extreme("ReduceMin", "min.dim"),
    **dict.fromkeys(("prod.dim_int", "prod.default"), _reduce("ReduceProd", 1, 2)),
    **dict.fromkeys(("var.correction", "var.dim"), _variance),
    "var_mean.correction": partial(_spread_and_mean, type="Variance"),
    "std_mean.correction": partial(_spread_and_mean, type="Deviation"),
    "any.dims": _any_of("AnyAlong"),
    "all.dims": _any_of("AllAlong"),
    "logsumexp.default": _reduce("ReduceLogSumExp", 1, 2),
    "linalg_vector_norm.default": _norm,
    "linear.default": _linear,
    "einsum.default": _einsum,
    "cumsum.default": _axis_op("CumSum"),
    "layer_norm.default": _layer_norm,
    "scaled_dot_product_attention.default": _attention,
}  # fmt: skip

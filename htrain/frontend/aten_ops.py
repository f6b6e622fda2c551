"""ATen ops -> ops of the net. `HANDLERS` maps the name of an exported op to what writes it; names that share a form share a row."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from htrain.errors import ModelError
from htrain.frontend.translation import Translation, dtype_name
from htrain.net import Attr, BatchDim

Node = Any  # an fx.Node; the types of its arguments are as wide as Python
Handler = Callable[[Translation, Node], object]

IGNORED = frozenset(
    {
        "aten.sym_size.int",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range_for_size.default",
        "aten._assert_async.msg",
    }
)


def _refuse(t: Translation, node: Node, why: str) -> ModelError:
    return ModelError(f"{node.target} in module '{t.module_of(node)}' cannot be compiled: {why}")


def _unary(type: str) -> Handler:
    return lambda t, node: t.add(node, type, (t.blob(node.args[0]),))


def _argument(node: Node, position: int, name: str, default: Any) -> Any:
    """An argument that may be given by place, by name, or not at all."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def _tensor_of(node: Node) -> torch.Tensor:
    """The first tensor among the operands: a number beside it takes its dtype."""
    return next(a.meta["val"] for a in node.args if isinstance(a, fx.Node) and isinstance(a.meta["val"], torch.Tensor))


def _binary(type: str) -> Handler:
    def handle(t: Translation, node: Node) -> None:
        like = _tensor_of(node)
        left, right = t.blob(node.args[0], like=like), t.blob(node.args[1], like=like)
        alpha = node.kwargs.get("alpha", 1)
        if alpha != 1:
            right = t.step(node, "Mul", (right, t.blob(alpha, like=like)))
        t.add(node, type, (left, right))

    return handle


def _reversed_sub(t: Translation, node: Node) -> None:
    like = _tensor_of(node)
    t.add(node, "Sub", (t.blob(node.args[1], like=like), t.blob(node.args[0])))


def _divide(t: Translation, node: Node) -> None:
    like, mode = _tensor_of(node), node.kwargs.get("rounding_mode")
    operands = (t.blob(node.args[0], like=like), t.blob(node.args[1], like=like))
    if mode not in (None, "floor"):
        raise _refuse(t, node, f"rounding mode '{mode}'")
    t.add(node, "FloorDiv" if mode else "Div", operands)


def _power(t: Translation, node: Node) -> None:
    """A square is a product, as in torch: a general power is some ten times slower, and rounds otherwise."""
    square = node.args[1] == 2
    t.add(
        node,
        "Mul" if square else "Pow",
        (t.blob(node.args[0]), t.blob(node.args[0] if square else node.args[1], like=_tensor_of(node))),
    )


def _alias(t: Translation, node: Node) -> None:
    t.alias(node, node.args[0])


def _reshape(t: Translation, node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if t.shape(source) == t.shape(node):
        t.alias(node, source)
    else:
        t.add(node, "Reshape", (t.blob(source),), {"shape": t.open_shape(node)})


def _permute(t: Translation, node: Node) -> None:
    rank = len(node.meta["val"].shape)
    t.add(node, "Transpose", (t.blob(node.args[0]),), {"perm": tuple(int(d) % rank for d in node.args[1])})


def _transpose(t: Translation, node: Node) -> None:
    rank = len(node.meta["val"].shape)
    a, b = (int(d) % rank for d in (node.args[1:3] or (0, 1)))
    perm = list(range(rank))
    perm[a], perm[b] = b, a
    t.add(node, "Transpose", (t.blob(node.args[0]),), {"perm": tuple(perm)})


def _expand(t: Translation, node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if t.shape(source) == t.shape(node):
        t.alias(node, source)
    else:
        t.add(node, "BroadcastTo", (t.blob(source),), {"shape": t.batch_shape(t.shape(node))})


def _repeat(t: Translation, node: Node) -> None:
    source, repeats = node.args[0], list(node.args[1])
    assert isinstance(source, fx.Node)
    shape = t.shape(source)
    name = t.blob(source)
    if len(repeats) > len(shape):
        padded = (1,) * (len(repeats) - len(shape)) + tuple(d if isinstance(d, int) else -1 for d in shape)
        name = t.step(node, "Reshape", (name,), {"shape": padded})
    for axis, count in enumerate(repeats):
        if not isinstance(count, int):
            raise _refuse(t, node, "a repeat by the batch size; use expand")
        if count != 1:
            name = t.step(node, "Concat", (name,) * count, {"axis": axis})
    t.names[node] = name


def _concat(t: Translation, node: Node) -> None:
    parts = [p for p in node.args[0] if tuple(p.meta["val"].shape) != (0,)]
    axis = _argument(node, 1, "dim", 0) % len(node.meta["val"].shape)
    if isinstance(t.shape(node)[axis], BatchDim):
        raise _refuse(t, node, "it joins batches: examples must not depend on each other")
    t.add(node, "Concat", [t.blob(p) for p in parts], {"axis": axis})


def _stack(t: Translation, node: Node) -> None:
    axis = _argument(node, 1, "dim", 0) % len(node.meta["val"].shape)
    t.add(node, "Stack", [t.blob(p) for p in node.args[0]], {"axis": axis})


def _unbind(t: Translation, node: Node) -> None:
    source = node.args[0]
    axis = _argument(node, 1, "dim", 0) % len(source.meta["val"].shape)
    if isinstance(t.shape(source)[axis], BatchDim):
        raise _refuse(t, node, "it splits the batch")
    t.parts[node] = t.builder.add("Unstack", (t.blob(source),), attrs={"axis": axis}, module=t.module_of(node))


def _split(t: Translation, node: Node) -> None:
    source = node.args[0]
    axis = _argument(node, 2, "dim", 0) % len(source.meta["val"].shape)
    widths = [part.shape[axis] for part in node.meta["val"]]
    if not all(isinstance(width, int) for width in widths):
        raise _refuse(t, node, "it splits the batch")
    attrs: dict[str, Attr] = {"axis": axis, "split": tuple(widths)}
    t.parts[node] = t.builder.add("Split", (t.blob(source),), attrs=attrs, module=t.module_of(node))


def _get_item(t: Translation, node: Node) -> None:
    source, index = node.args
    assert isinstance(source, fx.Node)
    parts = t.parts[source]
    if int(index) >= len(parts):
        raise _refuse(t, source, f"its output {index} has no counterpart (of max, only the values)")
    t.names[node] = parts[int(index)]


def _slice(t: Translation, node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if t.shape(source) == t.shape(node):
        t.alias(node, source)
        return
    rank = len(source.meta["val"].shape)
    axis, start = _argument(node, 1, "dim", 0) % rank, _argument(node, 2, "start", 0) or 0
    end, step = _argument(node, 3, "end", None), _argument(node, 4, "step", 1)
    if isinstance(t.shape(source)[axis], BatchDim) or not all(isinstance(v, int) for v in (start, step)):
        raise _refuse(t, node, "it cuts the batch")
    end = end if isinstance(end, int) else 1 << 40
    t.add(node, "Slice", (t.blob(source),), {"axis": axis, "start": start, "end": min(end, 1 << 40), "step": step})


def _select(t: Translation, node: Node) -> None:
    source, dim, index = node.args
    assert isinstance(source, fx.Node)
    axis = int(dim) % len(source.meta["val"].shape)
    size = t.shape(source)[axis]
    if isinstance(size, BatchDim) or not isinstance(index, int):
        raise _refuse(t, node, "it picks an example of the batch")
    t.add(node, "Select", (t.blob(source),), {"axis": axis, "index": index % size})


def _index(t: Translation, node: Node) -> None:
    """x[:, i, j] with constant index tensors over adjacent dimensions, as in DLRM's lower triangle; or x[:, i] with one."""
    source, indices = node.args[0], list(node.args[1])
    assert isinstance(source, fx.Node)
    places = [d for d, index in enumerate(indices) if index is not None]
    if len(places) == 1:
        t.add(node, "Gather", (t.blob(source), t.blob(indices[places[0]])), {"axis": places[0]})
        return
    shape = t.shape(source)
    sizes = shape[places[0] : places[-1] + 1]
    if (
        places != list(range(places[0], places[-1] + 1))
        or any(indices[d] not in t.static for d in places)
        or any(isinstance(s, BatchDim) for s in sizes)
    ):
        raise _refuse(t, node, "several index tensors must be constants over adjacent dimensions other than the batch")
    flat = torch.zeros((), dtype=torch.int64)
    total = 1
    for d in places:
        size = shape[d]
        assert isinstance(size, int)
        flat = flat * size + t.static[indices[d]] % size
        total *= size
    merged = tuple(d if isinstance(d, int) else -1 for d in (*shape[: places[0]], total, *shape[places[-1] + 1 :]))
    source_name = t.step(node, "Reshape", (t.blob(source),), {"shape": merged})
    t.add(node, "Gather", (source_name, t.constant(flat, module=t.module_of(node))), {"axis": places[0]})


def _gather(t: Translation, node: Node) -> None:
    rank = len(node.meta["val"].shape)
    t.add(node, "GatherElements", (t.blob(node.args[0]), t.blob(node.args[2])), {"axis": int(node.args[1]) % rank})


def _index_select(t: Translation, node: Node) -> None:
    rank = len(node.meta["val"].shape)
    t.add(node, "Gather", (t.blob(node.args[0]), t.blob(node.args[2])), {"axis": int(node.args[1]) % rank})


def _embedding(t: Translation, node: Node) -> None:
    weight, ids = t.blob(node.args[0]), t.blob(node.args[1])
    padding = int(_argument(node, 2, "padding_idx", -1))
    if weight in t.tables:
        t.add(node, "Embedding", (weight, ids), {"padding_idx": padding})
    else:
        t.add(node, "Gather", (weight, ids), {"axis": 0})


def _embedding_bag(t: Translation, node: Node) -> None:
    weight, ids, offsets, weights, mode, padding, closed = node.args
    name = t.blob(weight)
    if name not in t.tables:
        raise _refuse(t, node, f"'{name}' is also used outside of lookups, or its ids depend on no input")
    inputs = [name, t.blob(ids)]
    if offsets is not None:
        starts = t.blob(offsets)
        if closed:
            raise _refuse(t, node, "include_last_offset: give the starts of the bags only")
        inputs.append(starts)
    if weights is not None:
        inputs.append(t.blob(weights))
    t.add(
        node, "EmbeddingBag", inputs, {"mode": str(mode), "padding_idx": int(padding), "weighted": weights is not None}
    )


def _linear(t: Translation, node: Node) -> None:
    """FC has a matrix for x: other ranks are flattened around it."""
    x, weight = node.args[0], t.blob(node.args[1])
    bias = _argument(node, 2, "bias", None)
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
        raise _refuse(t, node, "alpha and beta other than 1")
    product = t.step(node, "MatMul", (t.blob(node.args[1]), t.blob(node.args[2])))
    t.add(node, "Add", (product, t.blob(node.args[0])))


def _einsum(t: Translation, node: Node) -> None:
    equation, operands = node.args[0], node.args[1]
    t.add(node, "Einsum", [t.blob(x) for x in operands], {"equation": str(equation).replace(" ", "")})


def _axes(node: Node, position: int) -> tuple[int, ...]:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    rank = len(source.meta["val"].shape)
    given = _argument(node, position, "dim", None)
    dims: Sequence[int] = [given] if isinstance(given, int) else (given or range(rank))
    return tuple(sorted(d % rank for d in dims))


def _reduce(type: str, axes_at: int, keep_at: int) -> Handler:
    def handle(t: Translation, node: Node) -> None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        axes = _axes(node, axes_at)
        if any(isinstance(t.shape(source)[a], BatchDim) for a in axes):
            raise _refuse(t, node, "it reduces over the batch: examples must not depend on each other")
        name = t.blob(source)
        value = node.meta["val"]
        dtype = (value[0] if isinstance(value, tuple) else value).dtype
        if source.meta["val"].dtype != dtype:
            name = t.step(node, "Cast", (name,), {"to": dtype_name(dtype)})
        result = t.step(
            node, type, (name,), {"axes": axes, "keepdims": bool(_argument(node, keep_at, "keepdim", False))}
        )
        t.names[node] = result
        t.parts[node] = (result,)

    return handle


def _norm(t: Translation, node: Node) -> None:
    if _argument(node, 1, "ord", 2) != 2:
        raise _refuse(t, node, "a norm other than the 2-norm")
    _reduce("ReduceL2", 2, 3)(t, node)


def _variance(t: Translation, node: Node) -> None:
    unbiased = (
        node.kwargs.get("correction", 1)
        if str(node.target).endswith("correction")
        else int(bool(_argument(node, 2, "unbiased", True)))
    )
    if unbiased:
        raise _refuse(t, node, "an unbiased variance: use correction=0")
    _reduce("ReduceVariance", 1, 3)(t, node)


def _softmax(type: str) -> Handler:
    def handle(t: Translation, node: Node) -> None:
        rank = len(node.meta["val"].shape)
        axis = int(node.args[1]) % rank
        if isinstance(t.shape(node)[axis], BatchDim):
            raise _refuse(t, node, "it normalises over the batch")
        t.add(node, type, (t.blob(node.args[0]),), {"axis": axis})

    return handle


def _axis_op(type: str) -> Handler:
    return lambda t, node: t.add(
        node, type, (t.blob(node.args[0]),), {"axis": int(node.args[1]) % len(node.meta["val"].shape)}
    )


def _layer_norm(t: Translation, node: Node) -> None:
    dims = len(node.args[1])
    scale = [t.blob(p) for p in (_argument(node, 2, "weight", None), _argument(node, 3, "bias", None)) if p is not None]
    epsilon = float(_argument(node, 4, "eps", 1e-5))
    t.add(node, "LayerNormalization", (t.blob(node.args[0]), *scale), {"axis": -dims, "epsilon": epsilon})


def _cast(t: Translation, node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    to = node.meta["val"].dtype
    if source.meta["val"].dtype == to:
        t.alias(node, source)
    else:
        t.add(node, "Cast", (t.blob(source),), {"to": dtype_name(to)})


def _where(t: Translation, node: Node) -> None:
    like = node.meta["val"]
    t.add(node, "Where", (t.blob(node.args[0]), t.blob(node.args[1], like=like), t.blob(node.args[2], like=like)))


def _masked_fill(t: Translation, node: Node) -> None:
    x, mask, value = node.args
    t.add(node, "Where", (t.blob(mask), t.blob(value, like=node.meta["val"]), t.blob(x)))


def _clamp(t: Translation, node: Node) -> None:
    low, high = _argument(node, 1, "min", None), _argument(node, 2, "max", None)
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        raise _refuse(t, node, "bounds that are tensors")
    attrs = {"min": float("-inf") if low is None else float(low), "max": float("inf") if high is None else float(high)}
    t.add(node, "Clip", (t.blob(node.args[0]),), attrs)


def _gelu(t: Translation, node: Node) -> None:
    t.add(node, "Gelu", (t.blob(node.args[0]),), {"approximate": str(node.kwargs.get("approximate", "none"))})


def _with_alpha(type: str, default: float) -> Handler:
    def handle(t: Translation, node: Node) -> None:
        if len(node.args) > 2 and any(a != 1 for a in node.args[2:]):
            raise _refuse(t, node, "scales other than 1")
        t.add(node, type, (t.blob(node.args[0]),), {"alpha": float(_argument(node, 1, "alpha", default))})

    return handle


def _softplus(t: Translation, node: Node) -> None:
    if _argument(node, 1, "beta", 1) != 1:
        raise _refuse(t, node, "a beta other than 1")
    t.add(node, "Softplus", (t.blob(node.args[0]),))


def _prelu(t: Translation, node: Node) -> None:
    x = node.args[0]
    assert isinstance(x, fx.Node)
    assert isinstance(node.args[1], fx.Node)
    slopes = node.args[1].meta["val"].numel()
    if slopes > 1 and len(x.meta["val"].shape) != 2:
        raise _refuse(t, node, "a slope per channel of an input that is no matrix")
    t.add(node, "PRelu", (t.blob(x), t.blob(node.args[1])))


def _dropout(t: Translation, node: Node) -> None:
    if node.args[2] and node.args[1]:
        raise _refuse(t, node, "dropout while training: set p=0, or call model.eval() before compiling")
    t.alias(node, node.args[0])


def _fill(t: Translation, node: Node) -> None:
    """full, zeros, ones and their *_like: constants of a batch-dependent shape."""
    name = str(node.target)
    value = 0.0 if "zeros" in name else 1.0 if "ones" in name else node.args[1]
    if not isinstance(value, int | float):
        raise _refuse(t, node, "a fill with a computed value")
    attrs: dict[str, Attr] = {
        "shape": t.batch_shape(t.shape(node)),
        "value": float(value),
        "dtype": dtype_name(node.meta["val"].dtype),
    }
    t.add(node, "Fill", (), attrs)


def _triangle(type: str) -> Handler:
    return lambda t, node: t.add(
        node, type, (t.blob(node.args[0]),), {"diagonal": int(_argument(node, 1, "diagonal", 0))}
    )


def _flip(t: Translation, node: Node) -> None:
    t.add(node, "Flip", (t.blob(node.args[0]),), {"axes": tuple(node.args[1])})


def _pad(t: Translation, node: Node) -> None:
    t.add(
        node,
        "Pad",
        (t.blob(node.args[0]),),
        {"pads": tuple(node.args[1]), "value": float(_argument(node, 2, "value", 0.0))},
    )


def _attention(t: Translation, node: Node) -> None:
    """softmax(q @ k.T * scale + mask) @ v; a bool mask keeps what is True."""
    q, k, v = node.args[:3]
    mask = _argument(node, 3, "attn_mask", None)
    if _argument(node, 4, "dropout_p", 0.0) or _argument(node, 5, "is_causal", False) or node.kwargs.get("enable_gqa"):
        raise _refuse(t, node, "dropout_p, is_causal or enable_gqa")
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


_UNARY = {
    "abs": "Abs", "ceil": "Ceil", "cos": "Cos", "erf": "Erf", "exp": "Exp", "floor": "Floor", "hardsigmoid": "HardSigmoid", "hardswish": "HardSwish",
    "isnan": "IsNaN", "log": "Log", "log1p": "Log1p", "logical_not": "Not", "bitwise_not": "Not", "mish": "Mish", "neg": "Neg", "reciprocal": "Reciprocal",
    "relu": "Relu", "round": "Round", "rsqrt": "Rsqrt", "sigmoid": "Sigmoid", "sign": "Sign", "silu": "Swish", "sin": "Sin", "sqrt": "Sqrt", "tanh": "Tanh",
    "detach": "Detach",
}  # fmt: skip
_BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "pow": "Pow", "maximum": "Max", "minimum": "Min", "eq": "Equal", "ne": "NotEqual", "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater", "ge": "GreaterOrEqual",
    "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "bitwise_and": "And", "bitwise_or": "Or",
    "remainder": "Mod", "floor_divide": "FloorDiv",
}  # fmt: skip
_OVERLOADS = ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar")
_SAME = ("alias", "clone", "contiguous", "lift_fresh_copy", "detach_")
_VIEWS = ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int", "unsqueeze.default",
          "squeeze.default", "squeeze.dim", "squeeze.dims", "view_copy.default")  # fmt: skip
_FORMS: dict[str, Handler] = {
    **{f"{name}.default": _alias for name in _SAME},
    **dict.fromkeys(_VIEWS, _reshape),
    **dict.fromkeys(("div.Tensor", "div.Tensor_mode", "div.Scalar"), _divide),
    **dict.fromkeys(("rsub.Scalar", "rsub.Tensor"), _reversed_sub),
    **dict.fromkeys(("masked_fill.Scalar", "masked_fill.Tensor"), _masked_fill),
    **dict.fromkeys(("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar"), _where),
    **dict.fromkeys(("transpose.int", "t.default", "swapaxes.default"), _transpose),
    **dict.fromkeys(("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default"), _matmul),
    **dict.fromkeys(("addmm.default", "baddbmm.default"), _add_matmul),
    **dict.fromkeys(("split.Tensor", "split_with_sizes.default", "chunk.default"), _split),
    **dict.fromkeys(("_to_copy.default", "to.dtype", "to.device"), _cast),
    **dict.fromkeys(("clamp.default", "clamp_min.default"), _clamp),
    **dict.fromkeys(("full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones.default", "ones_like.default",
                     "new_zeros.default", "new_ones.default"), _fill),
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
    "pow.Tensor_Scalar": _power,
    "permute.default": _permute,
    "expand.default": _expand,
    "repeat.default": _repeat,
    "cat.default": _concat,
    "stack.default": _stack,
    "unbind.int": _unbind,
    "slice.Tensor": _slice,
    "select.int": _select,
    "index.Tensor": _index,
    "index_select.default": _index_select,
    "gather.default": _gather,
    "embedding.default": _embedding,
    "linear.default": _linear,
    "einsum.default": _einsum,
    "cumsum.default": _axis_op("CumSum"),
    "layer_norm.default": _layer_norm,
    "gelu.default": _gelu,
    "leaky_relu.default": _with_alpha("LeakyRelu", 0.01),
    "elu.default": _with_alpha("Elu", 1.0),
    "softplus.default": _softplus,
    "prelu.default": _prelu,
    "_prelu_kernel.default": _prelu,
    "dropout.default": _dropout,
    "tril.default": _triangle("Tril"),
    "triu.default": _triangle("Triu"),
    "flip.default": _flip,
    "constant_pad_nd.default": _pad,
    "scaled_dot_product_attention.default": _attention,
}  # fmt: skip
HANDLERS: dict[str, Handler] = {
    **{f"aten.{name}.{overload}": _unary(type) for name, type in _UNARY.items() for overload in _OVERLOADS[:1]},
    **{f"aten.{name}.{overload}": _binary(type) for name, type in _BINARY.items() for overload in _OVERLOADS},
    **{f"aten.{name}": handler for name, handler in _FORMS.items()},
    "htrain.embedding_bag.default": _embedding_bag,
    "<built-in function getitem>": _get_item,
}

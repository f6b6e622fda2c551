"""ATen ops -> ops of the net. `HANDLERS` maps the name of an exported op to what writes it; names that share a form share a row."""

from torch import fx

from htrain.frontend.aten_forms import Handler, Node, argument, refuse, tensor_of
from htrain.frontend.aten_matrix import MATRIX
from htrain.frontend.aten_shapes import SHAPES, get_item
from htrain.frontend.translation import Translation, dtype_name
from htrain.net import Attr

IGNORED = frozenset(
    {
        "aten.sym_size.int",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range_for_size.default",
        "aten._assert_async.msg",
    }
)


def _unary(type: str) -> Handler:
    return lambda t, node: t.add(node, type, (t.blob(node.args[0]),))


def _binary(type: str) -> Handler:
    def handle(t: Translation, node: Node) -> None:
        like = tensor_of(node)
        left, right = t.blob(node.args[0], like=like), t.blob(node.args[1], like=like)
        alpha = node.kwargs.get("alpha", 1)
        if alpha != 1:
            right = t.step(node, "Mul", (right, t.blob(alpha, like=like)))
        t.add(node, type, (left, right))

    return handle


def _reversed_sub(t: Translation, node: Node) -> None:
    like = tensor_of(node)
    t.add(node, "Sub", (t.blob(node.args[1], like=like), t.blob(node.args[0])))


def _divide(t: Translation, node: Node) -> None:
    like, mode = tensor_of(node), node.kwargs.get("rounding_mode")
    operands = (t.blob(node.args[0], like=like), t.blob(node.args[1], like=like))
    if mode not in (None, "floor"):
        raise refuse(t, node, f"rounding mode '{mode}'")
    t.add(node, "FloorDiv" if mode else "Div", operands)


def _power(t: Translation, node: Node) -> None:
    """A square is a product, as in torch: a general power is some ten times slower, and rounds otherwise."""
    square = node.args[1] == 2
    t.add(
        node,
        "Mul" if square else "Pow",
        (t.blob(node.args[0]), t.blob(node.args[0] if square else node.args[1], like=tensor_of(node))),
    )


def _embedding(t: Translation, node: Node) -> None:
    weight, ids = t.blob(node.args[0]), t.blob(node.args[1])
    padding = int(argument(node, 2, "padding_idx", -1))
    if weight in t.tables:
        t.add(node, "Embedding", (weight, ids), {"padding_idx": padding})
    else:
        t.add(node, "Gather", (weight, ids), {"axis": 0})


def _embedding_bag(t: Translation, node: Node) -> None:
    weight, ids, offsets, weights, mode, padding, closed = node.args
    name = t.blob(weight)
    if name not in t.tables:
        raise refuse(t, node, f"'{name}' is also used outside of lookups, or its ids depend on no input")
    inputs = [name, t.blob(ids)]
    if offsets is not None:
        starts = t.blob(offsets)
        if closed:
            raise refuse(t, node, "include_last_offset: give the starts of the bags only")
        inputs.append(starts)
    if weights is not None:
        inputs.append(t.blob(weights))
    t.add(
        node, "EmbeddingBag", inputs, {"mode": str(mode), "padding_idx": int(padding), "weighted": weights is not None}
    )


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
    low, high = argument(node, 1, "min", None), argument(node, 2, "max", None)
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        raise refuse(t, node, "bounds that are tensors")
    attrs = {"min": float("-inf") if low is None else float(low), "max": float("inf") if high is None else float(high)}
    t.add(node, "Clip", (t.blob(node.args[0]),), attrs)


def _gelu(t: Translation, node: Node) -> None:
    t.add(node, "Gelu", (t.blob(node.args[0]),), {"approximate": str(node.kwargs.get("approximate", "none"))})


def _with_alpha(type: str, default: float) -> Handler:
    def handle(t: Translation, node: Node) -> None:
        if len(node.args) > 2 and any(a != 1 for a in node.args[2:]):
            raise refuse(t, node, "scales other than 1")
        t.add(node, type, (t.blob(node.args[0]),), {"alpha": float(argument(node, 1, "alpha", default))})

    return handle


def _softplus(t: Translation, node: Node) -> None:
    if argument(node, 1, "beta", 1) != 1:
        raise refuse(t, node, "a beta other than 1")
    t.add(node, "Softplus", (t.blob(node.args[0]),))


def _prelu(t: Translation, node: Node) -> None:
    x = node.args[0]
    assert isinstance(x, fx.Node)
    assert isinstance(node.args[1], fx.Node)
    slopes = node.args[1].meta["val"].numel()
    if slopes > 1 and len(x.meta["val"].shape) != 2:
        raise refuse(t, node, "a slope per channel of an input that is no matrix")
    t.add(node, "PRelu", (t.blob(x), t.blob(node.args[1])))


def _dropout(t: Translation, node: Node) -> None:
    if node.args[2] and node.args[1]:
        raise refuse(t, node, "dropout while training: set p=0, or call model.eval() before compiling")
    t.alias(node, node.args[0])


def _fill(t: Translation, node: Node) -> None:
    """full, zeros, ones and their *_like: constants of a batch-dependent shape."""
    name = str(node.target)
    value = 0.0 if "zeros" in name else 1.0 if "ones" in name else node.args[1]
    if not isinstance(value, int | float):
        raise refuse(t, node, "a fill with a computed value")
    attrs: dict[str, Attr] = {
        "shape": t.batch_shape(t.shape(node)),
        "value": float(value),
        "dtype": dtype_name(node.meta["val"].dtype),
    }
    t.add(node, "Fill", (), attrs)


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
_FORMS: dict[str, Handler] = {
    **dict.fromkeys(("div.Tensor", "div.Tensor_mode", "div.Scalar"), _divide),
    **dict.fromkeys(("rsub.Scalar", "rsub.Tensor"), _reversed_sub),
    **dict.fromkeys(("masked_fill.Scalar", "masked_fill.Tensor"), _masked_fill),
    **dict.fromkeys(("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar"), _where),
    **dict.fromkeys(("_to_copy.default", "to.dtype", "to.device"), _cast),
    **dict.fromkeys(("clamp.default", "clamp_min.default"), _clamp),
    **dict.fromkeys(("full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones.default", "ones_like.default",
                     "new_zeros.default", "new_ones.default"), _fill),
    "pow.Tensor_Scalar": _power,
    "embedding.default": _embedding,
    "gelu.default": _gelu,
    "leaky_relu.default": _with_alpha("LeakyRelu", 0.01),
    "elu.default": _with_alpha("Elu", 1.0),
    "softplus.default": _softplus,
    "prelu.default": _prelu,
    "_prelu_kernel.default": _prelu,
    "dropout.default": _dropout,
}  # fmt: skip
HANDLERS: dict[str, Handler] = {
    **{f"aten.{name}.{overload}": _unary(type) for name, type in _UNARY.items() for overload in _OVERLOADS[:1]},
    **{f"aten.{name}.{overload}": _binary(type) for name, type in _BINARY.items() for overload in _OVERLOADS},
    **{f"aten.{name}": handler for name, handler in {**_FORMS, **SHAPES, **MATRIX}.items()},
    "htrain.embedding_bag.default": _embedding_bag,
    "<built-in function getitem>": get_item,
}

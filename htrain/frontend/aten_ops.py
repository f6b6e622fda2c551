"""ATen ops -> ops of the net.

An op of htrain with the same operands and attributes says so itself (`OpDef.aten`). `HANDLERS` has these by their names without overloads, and what takes
code by the full name of the exported op: another order, other attributes, several ops.
"""

import torch
from torch import fx

from htrain.errors import ModelError
from htrain.frontend.aten_bags import BAGS
from htrain.frontend.aten_draws import WHOLE_DRAWS
from htrain.frontend.aten_forms import Call, Handler, argument, in_its_dtype, refuse
from htrain.frontend.aten_fourier import FOURIER, OF_COMPLEX
from htrain.frontend.aten_index import INDEX
from htrain.frontend.aten_matrix import MATRIX
from htrain.frontend.aten_numbers import NUMBERS
from htrain.frontend.aten_shapes import SHAPES, get_item
from htrain.frontend.aten_torch import TORCH, WHOLE
from htrain.frontend.aten_training import GHOST, TRAINING
from htrain.frontend.custom_functions import ARRIVING
from htrain.frontend.translation import Translation, dtype_name
from htrain.frontend.unwritten import UNWRITTEN
from htrain.net.net import Op
from htrain.onnx_format.schemas import check_attributes
from htrain.ops import OPS, OpDef
from htrain.ops.attributes import declared_attributes
from htrain.ops.padding import without_padding_gradient
from htrain.ops.user_ops import TARGET, attributes_from, require_elementwise

_COUNTS = "how many it finds depends on the values of a batch: keep all places, and give some of them no weight by torch.where"
CURES = {
    "aten.embedding_renorm.default": "an Embedding with max_norm changes its rows as it reads them: build it without",
    **dict.fromkeys(
        ("aten.unique_dim.default", "aten.unique_consecutive.default", "aten.repeat_interleave.Tensor"), _COUNTS
    ),
    "aten.bincount.default": "write it as F.one_hot(ids, num_classes).sum(0)",
}
ARGUMENT_CURES = {"scale_grad_by_freq": "gradients would depend on how often an id comes in a batch: build it without"}
IGNORED = frozenset(
    {
        "aten.sym_size.int",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range_for_size.default",
        "aten._assert_async.msg",
    }
)


def _same(definition: OpDef) -> Handler:
    """The op that `definition` says it stands for (`OpDef.aten`)."""
    kinds = declared_attributes(definition)

    def handle(t: Translation, call: Call) -> None:
        inputs = [t.blob(operand, like=call.tensor) for operand in call.operands()]
        attributes = {name: kind(call.argument(name)) for name, kind in kinds.items()}
        t.add(call.node, definition.type, inputs, attributes)

    return handle


def _bitwise(name: str) -> Handler:
    """Of integers bit by bit, as hashes of ids have it; of bools it is the logical op."""
    logical, bitwise = _same(OPS[name]), _same(OPS[f"Bitwise{name}"])
    return lambda t, call: (logical if call.meta["val"].dtype == torch.bool else bitwise)(t, call)


def _shifted(type: str) -> Handler:
    """Integers by a number of bits: times a power of 2, or divided by it and rounded down."""

    def handle(t: Translation, call: Call) -> None:
        source, bits = call.args
        most = 8 * call.meta["val"].element_size() - 2  # the largest power of 2 that the dtype holds
        if not isinstance(bits, int) or not 0 <= bits <= most:
            raise refuse(t, call, f"a shift by other than 0 to {most} bits, the same for all")
        t.add(call.node, type, (t.blob(source), t.blob(1 << bits, like=call.meta["val"])))

    return handle


def _with_alpha(type: str) -> Handler:
    """x op alpha * y."""

    def handle(t: Translation, call: Call) -> None:
        like = call.tensor
        left, right = t.blob(call.args[0], like=like), t.blob(call.args[1], like=like)
        alpha = call.kwargs.get("alpha", 1)
        if alpha != 1:
            right = t.step(call.node, "Mul", (right, t.blob(alpha, like=like)))
        t.add(call.node, type, (left, right))

    return handle


def _reversed_sub(t: Translation, call: Call) -> None:
    like, alpha, x = call.tensor, argument(call, 2, "alpha", 1), t.blob(call.args[0])
    if alpha != 1:
        x = t.step(call.node, "Mul", (x, t.blob(alpha, like=like)))
    t.add(call.node, "Sub", (t.blob(call.args[1], like=like), x))


def _divide(t: Translation, call: Call) -> None:
    """Rounded down, towards zero, or not at all."""
    like, mode = call.tensor, call.kwargs.get("rounding_mode")
    x, y = (t.blob(call.args[place], like=like) for place in (0, 1))
    if mode != "trunc":
        t.add(call.node, "FloorDiv" if mode else "Div", (x, y))
    elif call.meta["val"].is_floating_point():
        t.add(call.node, "Trunc", (t.step(call.node, "Div", (x, y)),))
    else:  # without what is left over it divides without a rest: floats do not hold all integers
        whole = t.step(call.node, "Sub", (x, t.step(call.node, "Fmod", (x, y))))
        t.add(call.node, "FloorDiv", (whole, y))


def _power(t: Translation, call: Call) -> None:
    """A square is a product, as in torch: a general power is some ten times slower, and rounds otherwise."""
    square = call.args[1] == 2 and call.tensor.dtype == call.meta["val"].dtype
    t.add(
        call.node,
        "Mul" if square else "Pow",
        (t.blob(call.args[0]), t.blob(call.args[0] if square else call.args[1], like=call.tensor)),
    )


def _square(t: Translation, call: Call) -> None:
    x = t.blob(call.args[0])
    t.add(call.node, "Mul", (x, x))


def _embedding(t: Translation, call: Call) -> None:
    weight, ids = t.blob(call.args[0]), t.blob(call.args[1])
    padding = int(argument(call, 2, "padding_idx", -1))
    if weight in t.tables:
        t.add(call.node, "Embedding", (weight, ids), {"padding_idx": padding})
    elif padding < 0:
        t.add(call.node, "Gather", (weight, ids), {"axis": 0})
    else:  # the padding row is read, and takes no gradient from here
        rows = t.step(call.node, "Gather", (weight, ids), {"axis": 0})
        t.names[call.node] = without_padding_gradient(t.builder, rows, ids, padding, module=t.module_of(call.node))


def _cast(t: Translation, call: Call) -> None:
    source = call.args[0]
    assert isinstance(source, fx.Node)
    to = call.meta["val"].dtype
    if source.meta["val"].dtype == to:
        t.alias(call.node, source)
    else:
        t.add(call.node, "Cast", (t.blob(source),), {"to": dtype_name(to)})


def _where(t: Translation, call: Call) -> None:
    like = call.meta["val"]
    t.add(call.node, "Where", (t.blob(call.args[0]), t.blob(call.args[1], like=like), t.blob(call.args[2], like=like)))


def _masked_fill(t: Translation, call: Call) -> None:
    x, mask, value = call.args
    if call.meta["val"].dtype == torch.bool and not isinstance(value, fx.Node):
        value = bool(value)  # what is filled stays a mask, by whatever number
    t.add(call.node, "Where", (t.blob(mask), t.blob(value, like=call.meta["val"]), t.blob(x)))


def _clamp(t: Translation, call: Call) -> None:
    low, high = argument(call, 1, "min", None), argument(call, 2, "max", None)
    of_batch = isinstance(low, fx.Node) or isinstance(high, fx.Node)
    if of_batch or not call.meta["val"].is_floating_point():  # floats do not hold all integers
        _clamp_by_tensors(t, call)
        return
    attrs = {"min": float("-inf") if low is None else float(low), "max": float("inf") if high is None else float(high)}
    t.add(call.node, "Clip", (in_its_dtype(t, call, call.args[0]),), attrs)


def _clamp_by_tensors(t: Translation, call: Call) -> None:
    """At a bound the gradient is the value's, as torch has it; Max and Min would share it."""
    name, like = t.blob(call.args[0]), call.meta["val"]
    has_gradient = like.is_floating_point()
    for position, keyword, beyond, type in ((1, "min", "Less", "Max"), (2, "max", "Greater", "Min")):
        bound = argument(call, position, keyword, None)
        if bound is None:
            continue
        limit = t.blob(bound, like=like)
        if has_gradient:
            name = t.step(call.node, "Where", (t.step(call.node, beyond, (name, limit)), limit, name))
        else:
            name = t.step(call.node, type, (name, limit))
    t.names[call.node] = name


def _leaky_relu(t: Translation, call: Call) -> None:
    t.add(call.node, "LeakyRelu", (t.blob(call.args[0]),), {"alpha": float(argument(call, 1, "negative_slope", 0.01))})


def _prelu(t: Translation, call: Call) -> None:
    """A slope for each channel, the second dimension, or one for all."""
    x, slope = call.args
    assert isinstance(x, fx.Node)
    assert isinstance(slope, fx.Node)
    name, behind, slopes = t.blob(slope), len(x.meta["val"].shape) - 2, slope.meta["val"].numel()
    if slopes > 1 and behind > 0:
        name = t.step(call.node, "Reshape", (name,), {"shape": (slopes, *[1] * behind)})
    t.add(call.node, "PRelu", (t.blob(x), name))


def _fill(t: Translation, call: Call) -> None:
    """full, zeros, ones and their *_like: constants of a batch-dependent shape, or a number that depends on the batch."""
    name, like = str(call.target), call.meta["val"]
    value = 0.0 if "zero" in name else 1.0 if "ones" in name else call.args[1]
    call.told_by_shape()
    if isinstance(value, fx.Node):
        number = t.blob(value, like=like)
        t.names[call.node] = t.spread(call.node, number)
    else:
        t.names[call.node] = t.filled(call.node, float(value), dtype_name(like.dtype))


def _number(t: Translation, call: Call) -> None:
    """A number that depends on the batch as a tensor."""
    t.names[call.node] = t.blob(call.args[0], like=call.meta["val"])


def _bounded_rows(t: Translation, call: Call) -> None:
    """Rows of a table within a norm: what is read in another way has no row that a step could find bounded."""
    rows, max_norm = call.args
    table = t.names.get(rows.args[0], "") if str(rows.target) == "aten.embedding.default" else ""
    if table not in t.tables:
        raise refuse(
            t,
            call,
            "an embedding with max_norm that is no table, as its ids depend on no input, or its weight is read otherwise",
        )
    t.add(call.node, "BoundRows", (t.blob(rows),), {"max_norm": float(max_norm)})


def _arriving_gradient(t: Translation, call: Call) -> None:
    """The gradient that comes to an autograd.Function: of a backward() that is linear in it, the forward pass needs its shape alone."""
    call.told_by_shape()

    def refused() -> str:
        raise ModelError(
            f"forward() uses the {call.args[1]}, whose backward() is not linear in the gradient that it takes, as a clamp of it: htrain knows linear ones; "
            f"for limits on gradients there is --dense-clip"
        )

    t.when_read[call.node] = refused


def _user_op(t: Translation, call: Call) -> None:
    """An op of the user's own: its outputs are taken apart by the ops that follow."""
    tensors, type, text = call.args
    attributes = attributes_from(text)
    check_attributes(Op(type, (), (), attributes), f"{type} in {t.where(call.node)}")
    inputs = [t.blob(tensor) for tensor in tensors]
    require_elementwise(type, [t.builder.blob(name) for name in inputs], attributes)
    t.parts[call.node] = t.builder.add(type, inputs, attrs=attributes, module=t.module_of(call.node))


_FORMS: dict[str, Handler] = {
    **dict.fromkeys(("add.Tensor", "add.Scalar"), _with_alpha("Add")),
    **dict.fromkeys(("sub.Tensor", "sub.Scalar"), _with_alpha("Sub")),
    **dict.fromkeys(("div.Tensor", "div.Tensor_mode", "div.Scalar"), _divide),
    **dict.fromkeys(("rsub.Scalar", "rsub.Tensor"), _reversed_sub),
    **dict.fromkeys(("masked_fill.Scalar", "masked_fill.Tensor"), _masked_fill),
    **dict.fromkeys(("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar"), _where),
    **dict.fromkeys(("_to_copy.default", "to.dtype", "to.device"), _cast),
    **dict.fromkeys(("clamp.default", "clamp_min.default"), _clamp),
    **dict.fromkeys(("full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones.default", "ones_like.default",
                     "new_zeros.default", "new_ones.default", "zero.default", "fill.Scalar"), _fill),
    **dict.fromkeys(("clamp.Tensor", "clamp_min.Tensor"), _clamp_by_tensors),
    "scalar_tensor.default": _number,
    **{f"bitwise_{name.lower()}.{form}": _bitwise(name) for name in ("And", "Or", "Xor") for form in ("Tensor", "Scalar", "Scalar_Tensor")},
    "bitwise_not.default": _bitwise("Not"),
    **dict.fromkeys(("__rshift__.Scalar", "bitwise_right_shift.Tensor_Scalar"), _shifted("FloorDiv")),
    **dict.fromkeys(("__lshift__.Scalar", "bitwise_left_shift.Tensor_Scalar"), _shifted("Mul")),
    "fmod.Scalar": TORCH["fmod.Tensor"],
    "pow.Tensor_Scalar": _power,
    "square.default": _square,
    "embedding.default": _embedding,
    "leaky_relu.default": _leaky_relu,
    "prelu.default": _prelu,
    "_prelu_kernel.default": _prelu,
}  # fmt: skip
HANDLERS: dict[str, Handler] = {
    **{f"aten.{name}": _same(definition) for definition in OPS.values() for name in definition.aten},
    **{
        f"aten.{name}": handler
        for name, handler in {
            **TORCH,
            **_FORMS,
            **NUMBERS,
            **SHAPES,
            **INDEX,
            **MATRIX,
            **TRAINING,
            **WHOLE_DRAWS,
            **FOURIER,
        }.items()
    },
    **UNWRITTEN,
    **BAGS,
    **GHOST,
    "htrain.bounded_rows.default": _bounded_rows,
    **WHOLE,
    "<built-in function getitem>": get_item,
    ARRIVING: _arriving_gradient,
    TARGET: _user_op,
}


def handler_of(target: str, *, of_complex: bool = False) -> Handler | None:
    """What translates an exported op of this name: its own handler, or else that of all overloads; None for an op that htrain does not know,
    or does not know of complex numbers, where its result has these.
    """
    if of_complex:
        return OF_COMPLEX.get(target)
    return HANDLERS.get(target) or HANDLERS.get(target.rpartition(".")[0])

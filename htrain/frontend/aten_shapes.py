"""ATen ops that arrange, cut and join elements."""

from torch import fx

from htrain.frontend.aten_forms import Call, Handler, argument, refuse
from htrain.frontend.aten_parts import assign, cut
from htrain.frontend.translation import Translation, dtype_name
from htrain.net.net import Attr, BatchDim


def _alias(t: Translation, call: Call) -> None:
    t.alias(call.node, call.args[0])


def _reshape(t: Translation, call: Call) -> None:
    call.told_by_shape()
    source = call.args[0]
    assert isinstance(source, fx.Node)
    if t.shape(source) == t.shape(call.node):
        t.alias(call.node, source)
    else:
        t.add(call.node, "Reshape", (t.blob(source),), {"shape": t.open_shape(call.node)})


def _permute(t: Translation, call: Call) -> None:
    rank = len(call.meta["val"].shape)
    t.add(call.node, "Transpose", (t.blob(call.args[0]),), {"perm": tuple(int(d) % rank for d in call.args[1])})


def _transpose(t: Translation, call: Call) -> None:
    rank = len(call.meta["val"].shape)
    a, b = (int(d) % rank for d in (call.args[1:3] or (0, 1)))
    perm = list(range(rank))
    perm[a], perm[b] = b, a
    t.add(call.node, "Transpose", (t.blob(call.args[0]),), {"perm": tuple(perm)})


def _expand(t: Translation, call: Call) -> None:
    call.told_by_shape()
    source = call.args[0]
    assert isinstance(source, fx.Node)
    if t.shape(source) == t.shape(call.node):
        t.alias(call.node, source)
    else:
        t.names[call.node] = t.spread(call.node, t.blob(source))


def _repeat(t: Translation, call: Call) -> None:
    source, repeats = call.args[0], list(call.args[1])
    assert isinstance(source, fx.Node)
    shape = t.shape(source)
    if not all(isinstance(count, int) for count in repeats):
        _repeat_for_batch(t, call, source, len(repeats) - len(shape))
        return
    name = t.blob(source)
    if len(repeats) > len(shape):
        padded = (1,) * (len(repeats) - len(shape)) + tuple(d if isinstance(d, int) else -1 for d in shape)
        name = t.step(call.node, "Reshape", (name,), {"shape": padded})
    for axis, count in enumerate(repeats):
        if count != 1:
            name = t.step(call.node, "Concat", (name,) * count, {"axis": axis})
    t.names[call.node] = name


def _repeat_for_batch(t: Translation, call: Call, source: fx.Node, new: int) -> None:
    """What comes once comes for each example. Raises ModelError where what is repeated is more than one."""
    sizes = (1,) * new + tuple(t.shape(source))
    wanted = t.shape(call.node)
    if any(a not in (1, b) for a, b in zip(sizes, wanted, strict=True)):
        raise refuse(t, call, "it repeats more than one thing for each example of the batch: use expand and reshape")
    name = t.blob(source)
    if new:
        name = t.step(call.node, "Reshape", (name,), {"shape": tuple(d if isinstance(d, int) else -1 for d in sizes)})
    t.names[call.node] = t.spread(call.node, name)


def _range(t: Translation, call: Call) -> None:
    """start, start + step, ... for each example of the batch: what is constant has been computed before."""
    start, step = (0, 1) if len(call.args) == 1 else (call.args[0], argument(call, 2, "step", 1))
    if isinstance(start, float) or isinstance(step, float):
        raise refuse(t, call, "a range that depends on the batch must go from a whole number by whole ones")
    call.told_by_shape()
    count = t.step(call.node, "CumSum", (t.filled(call.node, 1.0, "int64"),), {"axis": 0})
    name = t.step(call.node, "Sub", (count, t.blob(1)))
    for type, number, neutral in (("Mul", step, 1), ("Add", start, 0)):
        name = name if number == neutral else t.step(call.node, type, (name, t.blob(number)))
    dtype = dtype_name(call.meta["val"].dtype)
    t.names[call.node] = name if dtype == "int64" else t.step(call.node, "Cast", (name,), {"to": dtype})


def _copy(t: Translation, call: Call) -> None:
    """What an assignment to all of a tensor leaves: the source, in the shape and the dtype of what was there."""
    to, source = call.args
    assert isinstance(to, fx.Node)
    name, dtype = t.blob(source), dtype_name(call.meta["val"].dtype)
    if t.builder.blob(name).dtype != dtype:
        name = t.step(call.node, "Cast", (name,), {"to": dtype})
    if t.builder.blob(name).shape != t.shape(call.node):
        name = t.spread(call.node, name)
    t.names[call.node] = name


def _concat(t: Translation, call: Call) -> None:
    parts = [p for p in call.args[0] if t.shape(p) != (0,)]
    axis = argument(call, 1, "dim", 0) % len(call.meta["val"].shape)
    t.shape(call.node)  # a batch and something else are no multiple of it
    t.add(call.node, "Concat", [t.blob(p) for p in parts], {"axis": axis})


def _stack(t: Translation, call: Call) -> None:
    axis = argument(call, 1, "dim", 0) % len(call.meta["val"].shape)
    t.add(call.node, "Stack", [t.blob(p) for p in call.args[0]], {"axis": axis})


def _unbind(t: Translation, call: Call) -> None:
    source = call.args[0]
    axis = argument(call, 1, "dim", 0) % len(source.meta["val"].shape)
    if isinstance(t.shape(source)[axis], BatchDim):
        raise refuse(t, call, "it splits the batch")
    t.parts[call.node] = t.builder.add(
        "Unstack", (t.blob(source),), attrs={"axis": axis}, module=t.module_of(call.node)
    )


def _split(t: Translation, call: Call) -> None:
    call.told_by_shape()
    source = call.args[0]
    axis = argument(call, 2, "dim", 0) % len(source.meta["val"].shape)
    widths = [part.shape[axis] for part in call.meta["val"]]
    if not all(isinstance(width, int) for width in widths):
        raise refuse(t, call, "it splits the batch")
    attrs: dict[str, Attr] = {"axis": axis, "split": tuple(widths)}
    t.parts[call.node] = t.builder.add("Split", (t.blob(source),), attrs=attrs, module=t.module_of(call.node))


def get_item(t: Translation, call: Call) -> None:
    """Output `index` of a node with several. Raises ModelError for one that the net does not compute."""
    source, index = call.args
    assert isinstance(source, fx.Node)
    parts = t.parts[source]
    if int(index) >= len(parts):
        if not call.node.users:
            return
        raise refuse(t, Call(source), f"its output {index} has no counterpart (of max, only the values)")
    t.names[call.node] = parts[int(index)]


def _slice(t: Translation, call: Call) -> None:
    source = call.args[0]
    assert isinstance(source, fx.Node)
    if t.shape(source) == t.shape(call.node):
        call.told_by_shape()
        t.alias(call.node, source)
        return
    rank = len(source.meta["val"].shape)
    axis, start = argument(call, 1, "dim", 0) % rank, argument(call, 2, "start", 0) or 0
    end, step = argument(call, 3, "end", None), argument(call, 4, "step", 1)
    if isinstance(t.shape(source)[axis], BatchDim):
        cut(t, call)
        return
    if not all(isinstance(v, int) for v in (start, step)):
        raise refuse(t, call, "its bounds depend on the batch")
    end = end if isinstance(end, int) else 1 << 40
    t.add(call.node, "Slice", (t.blob(source),), {"axis": axis, "start": start, "end": min(end, 1 << 40), "step": step})


def _select(t: Translation, call: Call) -> None:
    source, dim, index = call.args
    assert isinstance(source, fx.Node)
    axis = int(dim) % len(source.meta["val"].shape)
    size = t.shape(source)[axis]
    if isinstance(size, BatchDim) or not isinstance(index, int):
        raise refuse(t, call, "it picks an example of the batch")
    t.add(call.node, "Select", (t.blob(source),), {"axis": axis, "index": index % size})


def _triangle(type: str) -> Handler:
    return lambda t, call: t.add(
        call.node, type, (t.blob(call.args[0]),), {"diagonal": int(argument(call, 1, "diagonal", 0))}
    )


def _flip(t: Translation, call: Call) -> None:
    t.add(call.node, "Flip", (t.blob(call.args[0]),), {"axes": tuple(call.args[1])})


def _pad(t: Translation, call: Call) -> None:
    t.add(
        call.node,
        "Pad",
        (t.blob(call.args[0]),),
        {"pads": tuple(call.args[1]), "value": float(argument(call, 2, "value", 0.0))},
    )


_SAME = ("alias", "clone", "contiguous", "lift_fresh_copy")
_VIEWS = ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int", "unsqueeze.default",
          "squeeze.default", "squeeze.dim", "squeeze.dims", "view_copy.default")  # fmt: skip
SHAPES: dict[str, Handler] = {
    **{f"{name}.default": _alias for name in _SAME},
    **dict.fromkeys(_VIEWS, _reshape),
    **dict.fromkeys(("transpose.int", "t.default", "swapaxes.default"), _transpose),
    **dict.fromkeys(("split.Tensor", "split_with_sizes.default", "chunk.default"), _split),
    "permute.default": _permute,
    "expand.default": _expand,
    "repeat.default": _repeat,
    **dict.fromkeys(("arange.default", "arange.start", "arange.start_step"), _range),
    "copy.default": _copy,
    "cat.default": _concat,
    "stack.default": _stack,
    "unbind.int": _unbind,
    "slice.Tensor": _slice,
    "slice_scatter.default": assign,
    "select.int": _select,
    "tril.default": _triangle("Tril"),
    "triu.default": _triangle("Triu"),
    "flip.default": _flip,
    "constant_pad_nd.default": _pad,
}  # fmt: skip

"""ATen ops that arrange, pick and join elements."""


import torch
from torch import fx

from htrain.frontend.aten_forms import Handler, Node, argument, refuse
from htrain.frontend.translation import Translation
from htrain.net import Attr, BatchDim


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
            raise refuse(t, node, "a repeat by the batch size; use expand")
        if count != 1:
            name = t.step(node, "Concat", (name,) * count, {"axis": axis})
    t.names[node] = name


def _concat(t: Translation, node: Node) -> None:
    parts = [p for p in node.args[0] if tuple(p.meta["val"].shape) != (0,)]
    axis = argument(node, 1, "dim", 0) % len(node.meta["val"].shape)
    if isinstance(t.shape(node)[axis], BatchDim):
        raise refuse(t, node, "it joins batches: examples must not depend on each other")
    t.add(node, "Concat", [t.blob(p) for p in parts], {"axis": axis})


def _stack(t: Translation, node: Node) -> None:
    axis = argument(node, 1, "dim", 0) % len(node.meta["val"].shape)
    t.add(node, "Stack", [t.blob(p) for p in node.args[0]], {"axis": axis})


def _unbind(t: Translation, node: Node) -> None:
    source = node.args[0]
    axis = argument(node, 1, "dim", 0) % len(source.meta["val"].shape)
    if isinstance(t.shape(source)[axis], BatchDim):
        raise refuse(t, node, "it splits the batch")
    t.parts[node] = t.builder.add("Unstack", (t.blob(source),), attrs={"axis": axis}, module=t.module_of(node))


def _split(t: Translation, node: Node) -> None:
    source = node.args[0]
    axis = argument(node, 2, "dim", 0) % len(source.meta["val"].shape)
    widths = [part.shape[axis] for part in node.meta["val"]]
    if not all(isinstance(width, int) for width in widths):
        raise refuse(t, node, "it splits the batch")
    attrs: dict[str, Attr] = {"axis": axis, "split": tuple(widths)}
    t.parts[node] = t.builder.add("Split", (t.blob(source),), attrs=attrs, module=t.module_of(node))


def get_item(t: Translation, node: Node) -> None:
    source, index = node.args
    assert isinstance(source, fx.Node)
    parts = t.parts[source]
    if int(index) >= len(parts):
        raise refuse(t, source, f"its output {index} has no counterpart (of max, only the values)")
    t.names[node] = parts[int(index)]


def _slice(t: Translation, node: Node) -> None:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if t.shape(source) == t.shape(node):
        t.alias(node, source)
        return
    rank = len(source.meta["val"].shape)
    axis, start = argument(node, 1, "dim", 0) % rank, argument(node, 2, "start", 0) or 0
    end, step = argument(node, 3, "end", None), argument(node, 4, "step", 1)
    if isinstance(t.shape(source)[axis], BatchDim) or not all(isinstance(v, int) for v in (start, step)):
        raise refuse(t, node, "it cuts the batch")
    end = end if isinstance(end, int) else 1 << 40
    t.add(node, "Slice", (t.blob(source),), {"axis": axis, "start": start, "end": min(end, 1 << 40), "step": step})


def _select(t: Translation, node: Node) -> None:
    source, dim, index = node.args
    assert isinstance(source, fx.Node)
    axis = int(dim) % len(source.meta["val"].shape)
    size = t.shape(source)[axis]
    if isinstance(size, BatchDim) or not isinstance(index, int):
        raise refuse(t, node, "it picks an example of the batch")
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
        raise refuse(t, node, "several index tensors must be constants over adjacent dimensions other than the batch")
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


def _triangle(type: str) -> Handler:
    return lambda t, node: t.add(
        node, type, (t.blob(node.args[0]),), {"diagonal": int(argument(node, 1, "diagonal", 0))}
    )


def _flip(t: Translation, node: Node) -> None:
    t.add(node, "Flip", (t.blob(node.args[0]),), {"axes": tuple(node.args[1])})


def _pad(t: Translation, node: Node) -> None:
    t.add(
        node,
        "Pad",
        (t.blob(node.args[0]),),
        {"pads": tuple(node.args[1]), "value": float(argument(node, 2, "value", 0.0))},
    )


_SAME = ("alias", "clone", "contiguous", "lift_fresh_copy", "detach_")
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
    "cat.default": _concat,
    "stack.default": _stack,
    "unbind.int": _unbind,
    "slice.Tensor": _slice,
    "select.int": _select,
    "index.Tensor": _index,
    "index_select.default": _index_select,
    "gather.default": _gather,
    "tril.default": _triangle("Tril"),
    "triu.default": _triangle("Triu"),
    "flip.default": _flip,
    "constant_pad_nd.default": _pad,
}  # fmt: skip

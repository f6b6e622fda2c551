"""ONNX ops that move elements, as ops of htrain."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from htrain.frontend.onnx_graph import PROBES, Graph, concrete
from htrain.frontend.onnx_operator import Operator
from htrain.net.net import BatchDim, Dim, Shape

Handler = Callable[[Graph, Operator], None]
_REPEATS = 1024  # each is an input of a Concat


def _reshape(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    wanted = _probed(graph, node, 1, "shape")
    zero_is_zero = bool(node.attributes.get_int("allowzero", 0))
    if graph.fixed_batch:
        full = _resolved(wanted[0], concrete(graph.shape(x), graph.fixed_batch), zero_is_zero=zero_is_zero)
        opened = _with_batch(full, graph.shape(x), graph.fixed_batch)
        if opened is not None:
            graph.alias(node, graph.reshape(node, x, opened))
            return
    resolved = [
        _resolved(target, concrete(graph.shape(x), probe), zero_is_zero=zero_is_zero)
        for target, probe in zip(wanted, PROBES, strict=True)
    ]
    graph.alias(node, graph.reshape(node, x, graph.dims(node, *resolved)))


def _with_batch(sizes: Sequence[int], source: Shape, fixed_batch: int) -> Shape | None:
    """A shape that a file with a fixed batch size gives in numbers, with the batch put back; None when it is not found.

    It is the dimension whose examples lie as far apart in memory as those of `source`, the tensor that is reshaped. In a
    dimension of k * B, the batch may be the outer factor or the inner one. Of several such dimensions, one of B alone is
    likelier than a multiple, and one before which as much stands as before; check_examples_apart notices a wrong guess.
    """
    at = [axis for axis, dim in enumerate(source) if isinstance(dim, BatchDim)]
    if len(at) != 1:
        return None
    found, rest = source[at[0]], int(np.prod(concrete(source[at[0] + 1 :], 1)))
    assert isinstance(found, BatchDim)
    candidates = []
    for axis, size in enumerate(sizes):
        per_example, inner = size // fixed_batch, int(np.prod(sizes[axis + 1 :]))
        strides = {inner, per_example * inner} & {rest, found.per_example * rest}
        if size and size % fixed_batch == 0 and strides:
            moved = len(sizes) >= len(source) and np.prod(sizes[:axis]) != np.prod(concrete(source[: at[0]], 1))
            candidates.append((per_example != 1, per_example != found.per_example, bool(moved), axis))
    if not candidates:
        return None
    axis = min(candidates)[-1]
    return (*sizes[:axis], BatchDim(sizes[axis] // fixed_batch), *sizes[axis + 1 :])


def _probed(graph: Graph, node: Operator, index: int, attribute: str) -> tuple[list[int], list[int]]:
    """A list of ints that may depend on the batch size, at both probes."""
    value = graph.operand(node, index)
    known = graph.known.get(str(value.name)) if value is not None else None
    if known is None:
        constant = graph.ints(node, index, attribute)
        if constant is None:
            raise graph.refusal(node, f"has no {attribute}")
        return list(constant), list(constant)
    small, large = ([int(v) for v in np.ravel(array)] for array in known.arrays)
    return small, large


def _resolved(target: Sequence[int], shape: Sequence[int], *, zero_is_zero: bool) -> list[int]:
    """ONNX's 0 (this dimension of the input) and -1 (what is left) filled in."""
    sizes = [shape[i] if size == 0 and not zero_is_zero and i < len(shape) else size for i, size in enumerate(target)]
    if -1 in sizes:
        rest = int(np.prod([size for size in sizes if size != -1]))
        sizes[sizes.index(-1)] = int(np.prod(shape)) // rest if rest else 0
    return sizes


def _flatten(graph: Graph, node: Operator) -> None:
    x, axis = graph.blob(node, 0), node.attributes.get_int("axis", 1)
    shape = graph.shape(x)
    axis = axis % len(shape) if axis < 0 else axis
    graph.alias(node, graph.reshape(node, x, (_product(shape[:axis]), _product(shape[axis:]))))


def _product(shape: Shape) -> Dim:
    size, per_example, batched = 1, 1, False
    for dim in shape:
        size *= dim if isinstance(dim, int) else 1
        batched, per_example = (
            (True, per_example * dim.per_example) if isinstance(dim, BatchDim) else (batched, per_example)
        )
    return BatchDim(size * per_example) if batched else size


def _squeeze(graph: Graph, node: Operator) -> None:
    x, axes = graph.blob(node, 0), graph.ints(node, 1, "axes")
    shape = graph.shape(x)
    gone = {i for i, dim in enumerate(shape) if dim == 1} if axes is None else {axis % len(shape) for axis in axes}
    if any(shape[i] != 1 for i in gone):
        raise graph.refusal(node, f"squeezes a dimension of [{', '.join(map(str, shape))}] that is not 1")
    graph.alias(node, graph.reshape(node, x, tuple(dim for i, dim in enumerate(shape) if i not in gone)))


def _unsqueeze(graph: Graph, node: Operator) -> None:
    x, axes = graph.blob(node, 0), graph.ints(node, 1, "axes") or ()
    rank = graph.rank(x) + len(axes)
    places = {axis % rank for axis in axes}
    if len(places) < len(axes):
        raise graph.refusal(node, f"inserts a dimension twice, axes {list(axes)}")
    rest = iter(graph.shape(x))
    graph.alias(node, graph.reshape(node, x, tuple(1 if i in places else next(rest) for i in range(rank))))


def _transpose(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    perm = node.attributes.get_ints("perm", tuple(reversed(range(graph.rank(x)))))
    graph.emit(node, "Transpose", (x,), {"perm": tuple(perm)})


def _expand(graph: Graph, node: Operator) -> None:
    """A file with a fixed batch size gives it as the first size."""
    small, large = _probed(graph, node, 1, "shape")
    if graph.fixed_batch and small and small[0] == graph.fixed_batch:
        small, large = ([probe, *small[1:]] for probe in PROBES)
    _broadcast(graph, node, graph.blob(node, 0), (small, large))


def _broadcast(graph: Graph, node: Operator, x: str, targets: Sequence[Sequence[int]]) -> None:
    shapes = [concrete(graph.shape(x), probe) for probe in PROBES]
    try:
        wanted = [np.broadcast_shapes(shape, tuple(target)) for shape, target in zip(shapes, targets, strict=True)]
    except ValueError as error:
        raise graph.refusal(node, f"cannot broadcast [{', '.join(map(str, graph.shape(x)))}]") from error
    shape = graph.dims(node, *wanted)
    if shape == graph.shape(x):
        graph.alias(node, x)
        return
    graph.emit(node, "BroadcastTo", (x,), {"shape": tuple(d if isinstance(d, int) else -d.per_example for d in shape)})


def _tile(graph: Graph, node: Operator) -> None:
    x = graph.blob(node, 0)
    small, large = _probed(graph, node, 1, "repeats")
    if all(dim == 1 or repeats == 1 for dim, repeats in zip(graph.shape(x), small, strict=True)):
        _broadcast(graph, node, x, (small, large))
        return
    if small != large or max(small) > _REPEATS:
        raise graph.refusal(node, f"repeats a dimension that is not 1 more than {_REPEATS} times, or once per example")
    for axis, repeats in enumerate(small):
        x = x if repeats == 1 else graph.step(node, "Concat", (x,) * repeats, {"axis": axis})
    graph.alias(node, x)


def _concat(graph: Graph, node: Operator) -> None:
    graph.emit(node, "Concat", graph.blobs(node), {"axis": node.attributes["axis"].as_int()})


def _split(graph: Graph, node: Operator) -> None:
    x, axis = graph.blob(node, 0), node.attributes.get_int("axis", 0)
    split, size = graph.ints(node, 1, "split"), graph.shape(x)[axis]
    if not isinstance(size, int):
        raise graph.refusal(node, "splits the batch")
    if node.attributes.get_int("num_outputs", len(node.outputs)) != len(node.outputs):
        raise graph.refusal(node, "names another number of outputs than num_outputs")
    if split is None:
        part = -(-size // len(node.outputs))
        split = tuple(min(part, size - i * part) for i in range(len(node.outputs)))
    graph.emit(node, "Split", (x,), {"axis": axis, "split": split})


def _slice(graph: Graph, node: Operator) -> None:
    """One Slice for each axis; slicing the whole batch is no op."""
    x = graph.blob(node, 0)
    starts, ends = _probed(graph, node, 1, "starts"), _probed(graph, node, 2, "ends")
    axes = graph.ints(node, 3, "axes") or tuple(range(len(starts[0])))
    steps = graph.ints(node, 4, "steps") or (1,) * len(axes)
    for i, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        x = _slice_axis(
            graph, node, x, axis=axis % graph.rank(x), bounds=[(starts[p][i], ends[p][i]) for p in range(2)], step=step
        )
    graph.alias(node, x)


def _slice_axis(graph: Graph, node: Operator, x: str, axis: int, bounds: Sequence[tuple[int, int]], step: int) -> str:
    sizes = [concrete(graph.shape(x), probe)[axis] for probe in PROBES]
    small, large = (range(size)[start:end:step] for size, (start, end) in zip(sizes, bounds, strict=True))
    if (small, large) == tuple(range(size) for size in sizes):
        return x
    if sizes[0] != sizes[1] or small != large:
        raise graph.refusal(node, "takes a part of the batch")
    if step > 0:
        attrs = {"axis": axis, "start": small.start, "end": max(small.stop, small.start), "step": step}
        return graph.step(node, "Slice", (x,), attrs)
    flipped = graph.step(node, "Flip", (x,), {"axes": (axis,)})
    last = sizes[0] - 1
    attrs = {"axis": axis, "start": last - small.start, "end": last - small.stop, "step": -step}
    return graph.step(node, "Slice", (flipped,), attrs)


def _top_k(graph: Graph, node: Operator) -> None:
    """The first of all in their order, and where they are: of equal ones those of lower places, which PyTorch's topk does not promise."""
    x, k, axis = graph.blob(node, 0), graph.ints(node, 1, "k"), node.attributes.get_int("axis", -1)
    assert k is not None
    if not axis % graph.rank(x):
        raise graph.refusal(node, "takes the largest of a batch")
    node.attributes.without_effect("sorted")
    order = {"stable": True, "dim": axis, "descending": bool(node.attributes.get_int("largest", 1))}
    found = graph.builder.add("SortStable", (x,), attrs=order, module=graph.module_of(node))
    first = {"axis": axis, "start": 0, "end": k[0], "step": 1}
    for value, name in zip(node.outputs, found, strict=True):
        graph.names[str(value.name)] = graph.step(node, "Slice", (name,), first)


def _pad(graph: Graph, node: Operator) -> None:
    """ONNX: all befores, then all afters; torch: (before, after) pairs from the last dimension on."""
    x, pads = graph.blob(node, 0), graph.ints(node, 1, "pads") or ()
    if node.attributes.get_string("mode", "constant") != "constant":
        raise graph.refusal(node, "pads with other values than a constant")
    axes = graph.ints(node, 3, "axes") or tuple(range(graph.rank(x)))
    pairs = {axis % graph.rank(x): (pads[i], pads[len(axes) + i]) for i, axis in enumerate(axes)}
    flat = tuple(size for axis in reversed(range(graph.rank(x))) for size in pairs.get(axis, (0, 0)))
    value = graph.array(node, 2)
    fill = node.attributes.get_float("value", 0.0) if value is None else float(value.item())
    graph.emit(node, "Pad", (x,), {"pads": flat, "value": fill})


def _triangle(graph: Graph, node: Operator) -> None:
    diagonal = (graph.ints(node, 1, "k") or (0,))[0]
    type = "Triu" if node.attributes.get_int("upper", 1) else "Tril"
    graph.emit(node, type, (graph.blob(node, 0),), {"diagonal": diagonal})


def _one_hot(graph: Graph, node: Operator) -> None:
    """Equal to the range of `depth`, along a new last dimension; -1 stands for the last class."""
    indices, depth, values = graph.blob(node, 0), graph.array(node, 1), graph.array(node, 2)
    if depth is None or values is None or node.attributes.get_int("axis", -1) not in (-1, graph.rank(indices)):
        raise graph.refusal(node, "adds a dimension that is not the last, or not of a constant size")
    if not 0 < depth.item() < 1 << 24:
        raise graph.refusal(node, f"has {depth.item()} classes, which is no size for a dense tensor")
    dtype = graph.builder.blob(indices).dtype
    if not dtype.startswith("uint"):
        negative = graph.step(node, "Less", (indices, graph.scalar(node, 0, indices)))
        from_end = graph.step(node, "Add", (indices, graph.scalar(node, int(depth.item()), indices)))
        indices = graph.step(node, "Where", (negative, from_end, indices))
    column = graph.reshape(node, indices, (*graph.shape(indices), 1))
    hit = graph.step(node, "Equal", (column, graph.constant(node, np.arange(int(depth.item()), dtype=dtype))))
    graph.emit(node, "Where", (hit, graph.constant(node, values[1]), graph.constant(node, values[0])))


HANDLERS: Mapping[str, Handler] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "TopK": _top_k,
    "Trilu": _triangle,
    "OneHot": _one_hot,
}

"""Ops of PyTorch that take values from places which their shapes say, in ONNX: a Gather by constant places."""

from collections.abc import Callable, Mapping, Sequence

import torch

from htrain.exporting.attributes import ints, number
from htrain.exporting.graph import Graph
from htrain.exporting.native import no_form
from htrain.net.net import Op


def _size(graph: Graph, op: Op, axis: int) -> int:
    """The size of a dimension of the first input. Raises ModelError where it is the batch."""
    size = graph.blob(op.inputs[0]).shape[axis]
    if not isinstance(size, int):
        raise no_form(op, [graph.blob(name) for name in op.inputs])
    return size


def _taken(graph: Graph, x: str, places: Sequence[int], axis: int, output: str = "") -> str:
    return graph.add("Gather", x, graph.ints(*places), attrs={"axis": axis}, output=output)


def _roll(graph: Graph, op: Op) -> None:
    shifts, dims = ints(op, "shifts"), ints(op, "dims")
    if not dims:
        raise no_form(op, [graph.blob(name) for name in op.inputs])
    x = graph.value(op.inputs[0], op)
    for done, (shift, axis) in enumerate(zip(shifts, dims, strict=True), 1):
        size = _size(graph, op, axis)
        places = [(place - shift) % size for place in range(size)]
        x = _taken(graph, x, places, axis, op.outputs[0] if done == len(dims) else "")


def _repeat(graph: Graph, op: Op) -> None:
    if "dim" not in op.attrs:
        raise no_form(op, [graph.blob(name) for name in op.inputs])
    axis, times = int(number(op, "dim")), int(number(op, "repeats"))
    places = [place for place in range(_size(graph, op, axis)) for _ in range(times)]
    _taken(graph, graph.value(op.inputs[0], op), places, axis, op.outputs[0])


def _unfold(graph: Graph, op: Op) -> None:
    """Windows, of which the places are the last dimension."""
    rank = len(graph.blob(op.inputs[0]).shape)
    axis = int(number(op, "dimension")) % rank
    length, width, step = _size(graph, op, axis), int(number(op, "size")), int(number(op, "step"))
    windows = torch.arange(length).unfold(0, width, step)
    found = graph.add("Gather", graph.value(op.inputs[0], op), graph.constant(windows), attrs={"axis": axis})
    order = [d for d in range(rank + 1) if d != axis + 1] + [axis + 1]
    graph.add("Transpose", found, attrs={"perm": tuple(order)}, output=op.outputs[0])


def _written(graph: Graph, op: Op, part: str, places: Sequence[int], axis: int) -> None:
    """The first input with the values of `part` at places along a dimension: both joined, and each taken from where it is."""
    size = _size(graph, op, axis)
    where = {place: size + nth for nth, place in enumerate(places)}
    joined = graph.add("Concat", graph.value(op.inputs[0], op), part, attrs={"axis": axis})
    _taken(graph, joined, [where.get(place, place) for place in range(size)], axis, op.outputs[0])


def _slice_scatter(graph: Graph, op: Op) -> None:
    axis = int(number(op, "dim"))
    size = _size(graph, op, axis)
    start, end = (int(number(op, name, default)) for name, default in (("start", 0), ("end", size)))
    places = range(size)[start : end : int(number(op, "step", 1))]
    _written(graph, op, graph.value(op.inputs[1], op), places, axis)


def _select_scatter(graph: Graph, op: Op) -> None:
    axis = int(number(op, "dim"))
    part = graph.add("Unsqueeze", graph.value(op.inputs[1], op), graph.ints(axis))
    _written(graph, op, part, [int(number(op, "index")) % _size(graph, op, axis)], axis)


def _diagonal(graph: Graph, op: Op) -> None:
    """Of the two dimensions, made one at the end."""
    rank = len(graph.blob(op.inputs[0]).shape)
    first, second = (int(number(op, name, default)) % rank for name, default in (("dim1", 0), ("dim2", 1)))
    rows, columns = _size(graph, op, first), _size(graph, op, second)
    places = torch.arange(rows * columns).view(rows, columns).diagonal(int(number(op, "offset")))
    order = [d for d in range(rank) if d not in (first, second)] + [first, second]
    x = graph.add("Transpose", graph.value(op.inputs[0], op), attrs={"perm": tuple(order)})
    flat = graph.add("Reshape", x, graph.ints(*[0] * (rank - 2), rows * columns))
    _taken(graph, flat, places.tolist(), rank - 2, op.outputs[0])


def _diagonal_scatter(graph: Graph, op: Op) -> None:
    """The two dimensions are made one at the end for it, and two again where they were."""
    rank = len(graph.blob(op.inputs[0]).shape)
    first, second = (int(number(op, name, default)) % rank for name, default in (("dim1", 0), ("dim2", 1)))
    rows, columns = _size(graph, op, first), _size(graph, op, second)
    size = rows * columns
    places = torch.arange(size).view(rows, columns).diagonal(int(number(op, "offset"))).tolist()
    where = {place: size + nth for nth, place in enumerate(places)}
    order = [d for d in range(rank) if d not in (first, second)] + [first, second]
    x = graph.add("Transpose", graph.value(op.inputs[0], op), attrs={"perm": tuple(order)})
    flat = graph.add("Reshape", x, graph.ints(*[0] * (rank - 2), size))
    joined = graph.add("Concat", flat, graph.value(op.inputs[1], op), attrs={"axis": rank - 2})
    indices = graph.ints(*(where.get(place, place) for place in range(size)))
    taken = graph.add("Gather", joined, indices, attrs={"axis": rank - 2})
    square = graph.add("Reshape", taken, graph.ints(*[0] * (rank - 2), rows, columns))
    back = tuple(order.index(d) for d in range(rank))
    graph.add("Transpose", square, attrs={"perm": back}, output=op.outputs[0])


RULES: Mapping[str, Callable[[Graph, Op], None]] = {
    "Roll": _roll,
    "RepeatInterleave": _repeat,
    "Unfold": _unfold,
    "SliceScatter": _slice_scatter,
    "SelectScatter": _select_scatter,
    "Diagonal": _diagonal,
    "DiagonalScatter": _diagonal_scatter,
}

"""ONNX's ScatterElements and ScatterND: what is written to, or added at, places within each example, or that are the same for all."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from htrain.frontend.onnx_graph import PROBES, Graph, Known
from htrain.frontend.onnx_operator import Operator
from htrain.net.net import Attr, BatchDim, Dim, Shape

_REDUCED = {"mul": "prod", "max": "amax", "min": "amin"}
_MODULE = "give htrain the PyTorch module itself, which compiles with it"


def _scatter_elements(graph: Graph, node: Operator) -> None:
    x, axis = _numbers(graph, node, 0), node.attributes.get_int("axis", 0)
    axis %= graph.rank(x)
    size = graph.shape(x)[axis]
    if not isinstance(size, int):
        raise graph.refusal(node, f"scatters along the batch: {_MODULE}")
    _scatter(graph, node, (x, _places(graph, node, size), _numbers(graph, node, 2)), axis)


def _scatter_nd(graph: Graph, node: Operator) -> None:
    """By places that are the same for all examples: within each, or in dimensions that come before the batch."""
    x, places = _numbers(graph, node, 0), graph.operand(node, 1)
    shape, known = graph.shape(x), graph.known.get(str(places.name)) if places is not None else None
    array, own = (None, False) if known is None else _alike(known)
    if array is None or (own and shape[0] != BatchDim()):
        raise graph.refusal(node, f"scatters to places that examples or the batch change: {_MODULE}")
    first, past = int(own), int(own) + array.shape[-1]
    sizes = [dim for dim in shape[first:past] if isinstance(dim, int)]
    if len(sizes) < past - first:
        raise graph.refusal(node, f"scatters along the batch: {_MODULE}")
    flat = _flat(array, sizes)
    if len(np.unique(flat)) < len(flat) and node.attributes.get_string("reduction", "none") == "none":
        raise graph.refusal(node, "writes to one place twice: which number stays is not said")
    before, kept = shape[:first], shape[past:]
    column = graph.constant(node, flat.reshape(*(1 for _ in before), -1, *(1 for _ in kept)))
    index = graph.step(node, "BroadcastTo", (column,), {"shape": _batch_shape((*before, len(flat), *kept))})
    values = graph.reshape(node, _numbers(graph, node, 2), (*before, len(flat), *kept))
    merged = graph.reshape(node, x, (*before, int(np.prod(sizes)), *kept))
    graph.alias(node, graph.reshape(node, _scattered(graph, node, (merged, index, values), first), shape))


def _alike(known: Known) -> tuple[NDArray[Any] | None, bool]:
    """The places of all examples, or of each within itself; None where they differ from one to another."""
    if known.constant:
        return known.arrays[0], False
    for array, probe in zip(known.arrays, PROBES, strict=True):
        within = array[..., 1:]
        if array.ndim < 2 or len(array) != probe or not within.shape[-1] or not (within == within[:1]).all():
            return None, False
        if not (np.moveaxis(array[..., 0], 0, -1) == np.arange(probe)).all():
            return None, False
    small, large = (array[0, ..., 1:] for array in known.arrays)
    return (small, True) if np.array_equal(small, large) else (None, False)


def _flat(places: NDArray[Any], sizes: Sequence[int]) -> NDArray[np.int64]:
    """Places[..,D] in dimensions of so many sizes as places in row-major order, those below 0 from the end."""
    columns = [places[..., k].reshape(-1) for k in range(len(sizes))]
    columns = [np.where(each < 0, each + size, each) for each, size in zip(columns, sizes, strict=True)]
    return np.asarray(np.ravel_multi_index(columns, sizes)).astype(np.int64)


def _batch_shape(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else -dim.per_example for dim in shape)


def _scatter(graph: Graph, node: Operator, inputs: tuple[str, str, str], axis: int) -> None:
    x, index, values = inputs
    wanted: Shape = graph.shape(index)
    if graph.shape(values) != wanted:
        raise graph.refusal(node, "has another number of values than of places")
    graph.alias(node, _scattered(graph, node, (x, index, values), axis))


def _scattered(graph: Graph, node: Operator, inputs: tuple[str, str, str], axis: int) -> str:
    reduction = node.attributes.get_string("reduction", "none")
    attrs: dict[str, Attr] = {"dim": axis}
    if reduction in ("none", "add"):
        return graph.step(node, "Scatter" if reduction == "none" else "ScatterAdd", inputs, attrs)
    if reduction not in _REDUCED:
        raise graph.refusal(node, f"has reduction = {reduction}, which htrain does not know")
    return graph.step(node, "ScatterReduce", inputs, {**attrs, "reduce": _REDUCED[reduction], "include_self": True})


def _numbers(graph: Graph, node: Operator, index: int) -> str:
    """What is written to, or there. Raises ModelError for stored numbers of which the file does not say whether they are trained."""
    value = graph.operand(node, index)
    known = graph.known.get(str(value.name)) if value is not None else None
    stored = value is not None and value.is_initializer() and known is not None and known.arrays[0].dtype.kind == "f"
    if stored and value is not None and known is not None and len(np.unique(known.arrays[0])) > 1:
        raise graph.refusal(
            node, f"input {index} ('{value.name}') holds numbers that may be a weight's: give htrain the PyTorch module"
        )
    return graph.blob(node, index)


def _places(graph: Graph, node: Operator, size: int) -> str:
    """Places from 0 on: those below count from the end."""
    value = graph.operand(node, 1)
    known = graph.known.get(str(value.name)) if value is not None else None
    if known is not None and known.constant:
        array = known.arrays[0]
        return graph.constant(node, np.where(array < 0, array + size, array).astype(np.int64))
    name = graph.blob(node, 1)
    if graph.builder.blob(name).dtype != "int64":
        name = graph.step(node, "Cast", (name,), {"to": "int64"})
    below = graph.step(node, "Less", (name, graph.scalar(node, 0, name)))
    from_end = graph.step(node, "Add", (name, graph.scalar(node, size, name)))
    return graph.step(node, "Where", (below, from_end, name))


HANDLERS: Mapping[str, Callable[[Graph, Operator], None]] = {
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}

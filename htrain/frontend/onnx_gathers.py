"""ONNX's Gather, GatherElements and GatherND as ops of htrain: lookups, and places within each example or of all alike."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from htrain.frontend.onnx_graph import PROBES, Graph, Known
from htrain.frontend.onnx_operator import Operator
from htrain.frontend.onnx_program import padding_of
from htrain.net.net import BatchDim
from htrain.ops.padding import without_padding_gradient


def _gather(graph: Graph, node: Operator) -> None:
    """Gather from a table is a lookup, at one constant position a Select, and else a Gather. A padding row gets no gradient, if the file tells of it."""
    axis = node.attributes.get_int("axis", 0)
    table, index = graph.operand(node, 0), graph.operand(node, 1)
    stored = graph.stored.get(str(table.name)) if table is not None else None
    x = graph.blob(node, 0)
    if stored is not None and stored.parameter.kind == "table":
        graph.emit(node, "Embedding", (x, _ids(graph, node)), {"padding_idx": padding_of(node)})
        return
    known = graph.known.get(str(index.name)) if index is not None else None
    if known is not None and known.constant and known.arrays[0].ndim == 0:
        graph.emit(node, "Select", (x,), {"axis": axis, "index": int(known.arrays[0])})
        return
    indices, padding = _indices(graph, node, x, axis), padding_of(node)
    if padding < 0:
        graph.emit(node, "Gather", (x, indices), {"axis": axis})
        return
    rows = graph.step(node, "Gather", (x, indices), {"axis": axis})
    graph.alias(node, without_padding_gradient(graph.builder, rows, indices, padding, module=graph.module_of(node)))


def _ids(graph: Graph, node: Operator) -> str:
    return _as_int64(graph, node, graph.blob(node, 1))


def _as_int64(graph: Graph, node: Operator, ids: str) -> str:
    return ids if graph.builder.blob(ids).dtype == "int64" else graph.step(node, "Cast", (ids,), {"to": "int64"})


def _indices(graph: Graph, node: Operator, x: str, axis: int) -> str:
    """Indices from 0 on: constant ones may count from the end."""
    index = graph.operand(node, 1)
    known = graph.known.get(str(index.name)) if index is not None else None
    size = graph.shape(x)[axis]
    if known is None or not known.constant or not isinstance(size, int):
        return _ids(graph, node)
    return graph.constant(node, np.where(known.arrays[0] < 0, known.arrays[0] + size, known.arrays[0]).astype(np.int64))


def _gather_elements(graph: Graph, node: Operator) -> None:
    x, axis = graph.blob(node, 0), node.attributes.get_int("axis", 0)
    graph.emit(node, "GatherElements", (x, _indices(graph, node, x, axis)), {"axis": axis})


def _gather_nd(graph: Graph, node: Operator) -> None:
    """A Gather from the leading dimensions as one; or within each example, where the first index is that of the example itself."""
    x, batched = graph.blob(node, 0), node.attributes.get_int("batch_dims", 0)
    places, shape, table = _places(graph, node), graph.shape(x), graph.operand(node, 0)
    stored = graph.stored.get(str(table.name)) if table is not None else None
    if stored is not None and stored.parameter.kind == "table" and isinstance(places[0], str):
        graph.emit(node, "Embedding", (x, _as_int64(graph, node, places[0])), {"padding_idx": -1})
        return
    if batched not in (0, 1) or len(places) + batched > len(shape):
        raise graph.refusal(node, "gathers along the batch")
    own = not batched and _is_own_example(places[0])
    first = int(own or batched == 1)
    places = places[int(own) :]
    sizes = [dim for dim in shape[first : first + len(places)] if isinstance(dim, int)]
    if len(sizes) < len(places) or (first and shape[0] != BatchDim()):
        raise graph.refusal(node, "gathers along the batch")
    if not places:
        graph.alias(node, x)
        return
    kept = shape[first + len(places) :]
    merged = graph.reshape(node, x, (*shape[:first], int(np.prod(sizes)), *kept))
    flat = _flat(graph, node, places, sizes)
    if not first:
        graph.emit(node, "Gather", (merged, flat), {"axis": 0})
        return
    of_index = graph.shape(flat)
    if not of_index or of_index[0] != BatchDim():
        raise graph.refusal(node, "gathers along the batch")
    count = int(np.prod([dim for dim in of_index[1:] if isinstance(dim, int)]))
    place = graph.reshape(node, flat, (BatchDim(), count, *(1 for _ in kept)))
    if kept:
        wide = (-1, count, *(dim for dim in kept if isinstance(dim, int)))
        place = graph.step(node, "BroadcastTo", (place,), {"shape": wide})
    picked = graph.step(node, "GatherElements", (merged, place), {"axis": 1})
    graph.alias(node, graph.reshape(node, picked, (*of_index, *kept)))


def parts_of_places(nodes: Collection[ir.Node]) -> set[ir.Node]:
    """The nodes that join places for GatherND alone, which reads the parts themselves: one may be the number of each example, which is no value of a net."""
    readers = {value for node in nodes if node.op_type == "GatherND" for value in node.inputs[1:2]}
    return {node for node in nodes if node.outputs[0] in readers and _joins(node)}


def _joins(node: ir.Node) -> bool:
    """Whether a node joins single columns along a last dimension, which Unsqueeze has made, for GatherND and nobody else."""
    if node.op_type != "Concat" or any(
        use.node.op_type != "GatherND" or use.idx != 1 for use in node.outputs[0].uses()
    ):
        return False
    makers = [value.producer() for value in node.inputs if value is not None]
    return all(maker is not None and maker.op_type == "Unsqueeze" for maker in makers)


def _places(graph: Graph, node: Operator) -> list[str | Known]:
    """The places in each dimension: known ones, or blobs."""
    value = graph.operand(node, 1)
    assert value is not None
    maker = value.producer()
    if maker is not None and maker in graph.done and _joins(maker):
        return [_without_last(graph, node, each) for each in maker.inputs if each is not None]
    known = graph.known.get(str(value.name))
    if known is not None:
        return [Known(tuple(array[..., k] for array in known.arrays)) for k in range(known.arrays[0].shape[-1])]  # type: ignore[arg-type]
    joined = graph.blob_of(node, value)
    depth = graph.shape(joined)[-1]
    if not isinstance(depth, int):
        raise graph.refusal(node, "gathers along the batch")
    return [graph.step(node, "Select", (joined,), {"axis": -1, "index": k}) for k in range(depth)]


def _without_last(graph: Graph, node: Operator, column: ir.Value) -> str | Known:
    """One column[..,1] of places, without its last dimension."""
    known = graph.known.get(str(column.name))
    if known is not None:
        return Known(tuple(array[..., 0] for array in known.arrays))  # type: ignore[arg-type]
    name = graph.blob_of(node, column)
    return graph.reshape(node, name, graph.shape(name)[:-1])


def _is_own_example(places: str | Known) -> bool:
    """Whether places are 0, 1, 2, ... along the batch, the same for all that is behind it."""
    if isinstance(places, str) or places.constant:
        return False
    return all(
        array.ndim >= 1 and len(array) == probe and bool(np.all(np.moveaxis(array, 0, -1) == np.arange(probe)))
        for array, probe in zip(places.arrays, PROBES, strict=True)
    )


def _flat(graph: Graph, node: Operator, places: Sequence[str | Known], sizes: Sequence[int]) -> str:
    """Places in row-major order, those below 0 from the end; one that is beyond its dimension is beyond all."""
    if all(isinstance(each, Known) and each.constant for each in places):
        arrays = [each.arrays[0] for each in places if isinstance(each, Known)]
        positive = [np.where(a < 0, a + size, a) for a, size in zip(arrays, sizes, strict=True)]
        return graph.constant(node, np.asarray(np.ravel_multi_index(positive, sizes)).astype(np.int64))
    parts = [_from_start(graph, node, each, size) for each, size in zip(places, sizes, strict=True)]
    flat = parts[0]
    for part, size in zip(parts[1:], sizes[1:], strict=True):
        rows = graph.step(node, "Mul", (flat, graph.scalar(node, size, flat)))
        flat = graph.step(node, "Add", (rows, part))
    if len(parts) == 1:
        return flat
    for part, size in zip(parts, sizes, strict=True):
        inside = graph.step(node, "Mod", (part, graph.scalar(node, size, part)))
        beyond = graph.step(node, "NotEqual", (part, inside))
        flat = graph.step(node, "Where", (beyond, graph.scalar(node, int(np.prod(sizes)), flat), flat))
    return flat


def _from_start(graph: Graph, node: Operator, places: str | Known, size: int) -> str:
    if isinstance(places, Known):
        if not places.constant:
            raise graph.refusal(node, "gathers by places that depend on the batch size")
        return graph.constant(
            node, np.where(places.arrays[0] < 0, places.arrays[0] + size, places.arrays[0]).astype(np.int64)
        )
    name = _as_int64(graph, node, places)
    from_end = graph.step(node, "Add", (name, graph.scalar(node, size, name)))
    negative = graph.step(node, "Less", (name, graph.scalar(node, 0, name)))
    return graph.step(node, "Where", (negative, from_end, name))


HANDLERS: Mapping[str, Callable[[Graph, Operator], None]] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
}

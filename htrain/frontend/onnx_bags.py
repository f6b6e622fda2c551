"""Bags as exporters write nn.EmbeddingBag: an ONNX Loop over the bags, which pools the rows that have been looked up for all of them.

There are many such loops, by mode, padding and exporter. So a loop is known by what it computes: it is run on a few drawn rows, and is a bag where it gives
their sums, means or maxima, bag by bag, for each of some draws. All bags are equally long, as those of ids[B,W] are.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from htrain.frontend.onnx_graph import PROBES, Graph, Known
from htrain.frontend.onnx_operator import Operator
from htrain.net.net import Attr, BatchDim, Dim

_EXAMPLES = 3  # of the batch that a loop is tried on
_DRAWS = 2
_MOST_PADDINGS = 12  # of the whole numbers in a loop, which of them is the padding
_OF_ROWS = 2  # dimensions
_CURE = "htrain knows Loop as PyTorch exports nn.EmbeddingBag of ids[B,W]: express it by other ops, or give htrain the PyTorch module"
Array = NDArray[Any]


@dataclass(frozen=True)
class _Bags:
    """`rows`[n x width, d], times `weights`[n x width] if there are some, are pooled, `width` at a time and `per_example` times in an example. Those whose
    `ids`[n x width] are `padding` are left out."""

    rows: ir.Value
    weights: ir.Value | None
    width: int
    per_example: int
    mode: str
    ids: ir.Value | None = None
    padding: int = -1


def sequences(nodes: Collection[ir.Node]) -> set[ir.Node]:
    """The nodes that begin the list of a loop's results, or join it, for the loop's handler alone."""
    loops = {node for node in nodes if node.op_type == "Loop"}
    begun = {v.producer() for loop in loops for v in loop.inputs if v is not None and _is_empty_list(v, loops)}
    return {node for node in begun if node is not None} | {
        node for node in nodes if node.op_type == "ConcatFromSequence" and node.inputs[0].producer() in loops
    }


def _is_empty_list(value: ir.Value, loops: Collection[ir.Node]) -> bool:
    maker = value.producer()
    return maker is not None and maker.op_type == "SequenceEmpty" and all(use.node in loops for use in value.uses())


def hoist_lookups(graph: ir.Graph) -> None:
    """Lookups that a loop does bag by bag, as the older exporter writes them, are done for all bags before it: a slice of the rows is the rows of a slice."""
    for loop in [node for node in graph if node.op_type == "Loop"]:
        body = loop.attributes["body"].as_graph()
        for lookup in [node for node in body if node.op_type == "Gather" and _axis(node) == 0]:
            _hoist(graph, loop, body, lookup)


def _axis(node: ir.Node) -> int:
    return node.attributes["axis"].as_int() if "axis" in node.attributes else 0


def _hoist(graph: ir.Graph, loop: ir.Node, body: ir.Graph, lookup: ir.Node) -> None:
    table, ids = lookup.inputs
    part = ids.producer() if ids is not None else None
    if table is None or part is None or part.op_type != "Slice" or part.graph is not body or not table.is_initializer():
        return
    whole, *where = part.inputs
    if whole is None or whole.graph is not graph:
        return
    name = f"{lookup.outputs[0].name}_of_all"
    rows = ir.node("Gather", [table, whole], name=lookup.name, metadata_props=dict(lookup.metadata_props))
    rows.outputs[0].name = name
    graph.insert_before(loop, rows)
    some = ir.node("Slice", [rows.outputs[0], *where])
    some.outputs[0].name = f"{name}_some"
    body.insert_before(lookup, some)
    ir.convenience.replace_all_uses_with(lookup.outputs[0], some.outputs[0])
    body.remove(lookup, safe=True)
    if not part.outputs[0].uses():
        body.remove(part, safe=True)


# -- what a loop computes


def _loop(graph: Graph, node: Operator) -> None:
    for index in range(len(node.inputs)):
        node.take(index)
    loop, last = node.node, _last(node.node)
    node.attributes.without_effect("body")  # which is run
    found = _bags_of(graph, loop, last) if last is not None else None
    if last is None or found is None:
        raise graph.refusal(node, _CURE)
    graph.names[str(_result(last).name)] = _pooled(graph, node, found)


def _last(loop: ir.Node) -> ir.Node | None:
    """The only node that reads anything of a loop, where it joins the pooled rows of all bags; the loop itself where it has only one output, of them all."""
    if len(loop.outputs) == 1:
        return loop
    readers = [use.node for value in loop.outputs for use in value.uses()]
    if len(readers) != 1 or readers[0].op_type != "ConcatFromSequence":
        return None
    attributes = readers[0].attributes
    return readers[0] if attributes["axis"].as_int() == 0 and "new_axis" not in attributes else None


def _result(last: ir.Node) -> ir.Value:
    return last.outputs[0]


def _bags_of(graph: Graph, loop: ir.Node, last: ir.Node) -> _Bags | None:
    read = list(dict.fromkeys((*_captured(loop), *(v for v in loop.inputs if v is not None and not _is_list(v)))))
    known = {value: held for value in read if (held := graph.known.get(str(value.name)))}
    names = {
        value: graph.names[str(value.name)] for value in read if value not in known and str(value.name) in graph.names
    }
    unknown = {value: graph.builder.blob(name) for value, name in names.items()}
    bags = next((found for held in known.values() if (found := _equal_bags(held))), None)
    if bags is None or len(known) + len(unknown) < len(read):
        return None
    small = {str(value.name): array for value, held in known.items() if (array := _at(held)) is not None}
    if len(small) < len(known):
        return None
    length = BatchDim(bags[0] * bags[1])
    rows = [value for value, blob in unknown.items() if blob.dtype.startswith("float") and len(blob.shape) == _OF_ROWS]
    weights = [value for value, blob in unknown.items() if blob.dtype.startswith("float") and len(blob.shape) == 1]
    ids = [value for value, blob in unknown.items() if blob.dtype.startswith("int") and len(blob.shape) == 1]
    if len(rows) != 1 or len(rows) + len(weights) + len(ids) < len(unknown) or max(len(weights), len(ids)) > 1:
        return None
    if any(unknown[value].shape[0] != length for value in (*rows, *weights, *ids)):
        return None
    elements = unknown[rows[0]].shape[1]
    if not isinstance(elements, int):
        return None
    parts = _Parts(rows[0], weights[0] if weights else None, ids[0] if ids else None)
    dtype = unknown[rows[0]].dtype
    return _Trial(graph.opset, (loop, last), small, parts, sizes=(*bags, elements), dtype=dtype).bags()


def _captured(node: ir.Node) -> Iterator[ir.Value]:
    """The values that the bodies of a node read and do not make."""
    for attribute in node.attributes.values():
        if attribute.type != ir.AttributeType.GRAPH:
            continue
        body = attribute.as_graph()
        made = {*body.inputs, *body.initializers.values(), *(value for inner in body for value in inner.outputs)}
        read = [v for inner in body for v in (*inner.inputs, *_captured(inner))] + list(body.outputs)
        yield from (value for value in read if value is not None and value not in made)


def _is_list(value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and maker.op_type == "SequenceEmpty"


def _equal_bags(known: Known) -> tuple[int, int] | None:
    """How long all bags are, and how many an example has, where this is where they begin and the last one ends."""
    found = set()
    for array, probe in zip(known.arrays, PROBES, strict=True):
        count = array.size - 1
        if array.ndim != 1 or count <= 0 or count % probe or array.dtype.kind not in "iu":
            return None
        width = int(array[1] - array[0])
        if width <= 0 or not np.array_equal(array, width * np.arange(count + 1)):
            return None
        found.add((width, count // probe))
    return found.pop() if len(found) == 1 else None


def _at(known: Known) -> Array | None:
    """What a value that no example changes is for a few of them; None for one that the batch changes in another way than sizes and ranges."""
    if known.constant:
        return known.arrays[0]
    small, large = known.arrays
    if small.size == 1 and large.size == 1:
        each, rest = divmod(int(small.reshape(-1)[0]), PROBES[0])
        return None if rest or each * PROBES[1] != int(large.reshape(-1)[0]) else small * 0 + each * _EXAMPLES
    each, rest = divmod(small.size, PROBES[0])
    if small.ndim != 1 or rest > 1 or each * PROBES[1] + rest != large.size:
        return None
    step = small[1] - small[0]
    both = all(np.array_equal(a, a[0] + step * np.arange(a.size)) for a in (small, large))
    return (small[0] + step * np.arange(each * _EXAMPLES + rest)).astype(small.dtype) if both else None


@dataclass(frozen=True)
class _Parts:
    """What a loop reads that examples change."""

    rows: ir.Value
    weights: ir.Value | None
    ids: ir.Value | None


class _Trial:
    """A loop, and what joins its results, run on drawn rows. `given` is the rest of what they read, for so many examples.

    `sizes` are the width of a bag, the bags of an example, and the elements of a row.
    """

    def __init__(
        self,
        opset: int,
        nodes: tuple[ir.Node, ir.Node],
        given: Mapping[str, Array],
        parts: _Parts,
        *,
        sizes: tuple[int, int, int],
        dtype: str,
    ) -> None:
        self._parts, self._given, self._dtype = parts, given, dtype
        self._width, self._per_example, self._elements = sizes
        self._num_bags = self._per_example * _EXAMPLES
        self._draws = np.random.default_rng(0)
        self._numbers = _whole_numbers(nodes[0], given)
        self._looks_at_ids = parts.ids is not None and _looks_at(nodes[0], parts.ids)
        lists = [value.producer() for value in nodes[0].inputs if value is not None and _is_list(value)]
        run = [node for node in dict.fromkeys((*lists, *nodes)) if node is not None]
        read = [str(value.name) for value in (parts.rows, parts.weights, parts.ids) if value is not None]
        ends = ([*given, *read], [str(_result(nodes[1]).name)])
        inputs, outputs = (
            [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in names]
            for names in ends
        )
        whole = onnx.helper.make_graph([ir.to_proto(node) for node in run], "bags", inputs, outputs)
        imports = [onnx.helper.make_opsetid("", opset)]
        self._evaluator = ReferenceEvaluator(onnx.helper.make_model(whole, opset_imports=imports))

    def bags(self) -> _Bags | None:
        """What the loop is; None where it is no bag of these rows."""
        parts = self._parts
        for padding in self._numbers if self._looks_at_ids else (None,):
            modes = set(_POOLS)
            for _ in range(_DRAWS):
                modes = self._modes(modes, padding) if modes else modes
            if modes:  # of bags of one row, all
                padded = (parts.ids, padding) if padding is not None else (None, -1)
                mode = next(mode for mode in _POOLS if mode in modes)
                return _Bags(parts.rows, parts.weights, self._width, self._per_example, mode, *padded)
        return None

    def _modes(self, modes: Collection[str], padding: int | None) -> set[str]:
        """Those of some modes that give what the loop gives for one draw."""
        shape = (self._num_bags, self._width)
        rows = self._draws.standard_normal((*shape, self._elements)).astype(self._dtype)
        weights = self._draws.standard_normal(shape).astype(self._dtype)
        ids = self._ids(shape, padding)
        feeds = {**self._given, str(self._parts.rows.name): rows.reshape(-1, self._elements)}
        for value, drawn in ((self._parts.weights, weights), (self._parts.ids, ids)):
            if value is not None:
                feeds[str(value.name)] = drawn.reshape(-1)
        try:
            (found,) = self._evaluator.run(None, feeds)
        except Exception:  # the evaluator of a foreign file's loop may raise anything
            return set()
        weighted = rows if self._parts.weights is None else rows * weights[..., None]
        kept = np.ones(shape, bool) if padding is None else ids != padding
        wanted = {mode: _POOLS[mode](weighted, kept) for mode in modes}
        same = {mode for mode, pooled in wanted.items() if np.shape(found) == pooled.shape}
        return {mode for mode in same if np.allclose(found, wanted[mode], rtol=1e-4, atol=1e-5)}

    def _ids(self, shape: tuple[int, int], padding: int | None) -> Array:
        """Some that are padding, and some that are not; where there is none, no loop looks at them."""
        first = 0 if padding is None else padding
        ids = self._draws.integers(first, first + 3, size=shape)
        ids[0], ids[-1] = first, first + 1  # a bag of padding alone, and one without
        return ids


def _whole_numbers(loop: ir.Node, given: Mapping[str, Array]) -> list[int]:
    """The single whole numbers that a loop reads, of which one may be the padding: those first that something is compared with."""
    held = {name: array for name, array in given.items() if array.size == 1 and array.dtype.kind in "iu"}
    compared = [held[str(value.name)] for value in _compared_in(loop) if value.name in held]
    inner = [tensor.numpy() for tensor in _constants_in(loop)]
    inner = [array for array in inner if array.size == 1 and array.dtype.kind in "iu"]
    found = dict.fromkeys(int(array.reshape(-1)[0]) for array in (*compared, *inner, *held.values()))
    return [number for number in found if number >= 0][:_MOST_PADDINGS]


def _looks_at(node: ir.Node, value: ir.Value) -> bool:
    """Whether the bodies of a node read a value, and not its shape alone."""
    bodies = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    return any(
        (value in inner.inputs and inner.op_type not in ("Shape", "Size")) or _looks_at(inner, value)
        for body in bodies
        for inner in body
    )


def _compared_in(node: ir.Node) -> Iterator[ir.Value]:
    """What the bodies of a node compare for equality."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            for inner in attribute.as_graph():
                yield from (value for value in inner.inputs if value is not None and inner.op_type == "Equal")
                yield from _compared_in(inner)


def _constants_in(node: ir.Node) -> Iterator[ir.TensorProtocol]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            body = attribute.as_graph()
            yield from (value.const_value for value in body.initializers.values() if value.const_value is not None)
            for inner in body:
                yield from _constants_in(inner)
        elif attribute.type == ir.AttributeType.TENSOR:
            yield attribute.as_tensor()


def _sums(rows: Array, kept: Array) -> Array:
    return (rows * kept[..., None]).sum(1)


def _means(rows: Array, kept: Array) -> Array:
    return _sums(rows, kept) / np.maximum(kept.sum(1, keepdims=True), 1)


def _maxima(rows: Array, kept: Array) -> Array:
    largest = np.where(kept[..., None], rows, -np.inf).max(1)
    largest[~kept.any(1)] = 0
    return largest


_POOLS: Mapping[str, Callable[[Array, Array], Array]] = {"sum": _sums, "mean": _means, "max": _maxima}
_REDUCED = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax"}


# -- the net of it


def _pooled(graph: Graph, node: Operator, bags: _Bags) -> str:
    """The pooled rows [n,d]: an EmbeddingBag where the rows are a table's as they are, and else a sum, a mean or a maximum of them."""
    looked_up, weights = (bags.rows, bags.weights) if bags.weights is not None else _weighted(graph, bags.rows)
    if whole := _of_table(graph, node, bags, looked_up, weights):
        return whole
    shape: tuple[Dim, ...] = (BatchDim(bags.per_example), bags.width)
    flat = graph.names[str((bags.rows if weights is not None and bags.weights is None else looked_up).name)]
    rows = graph.reshape(node, flat, (*shape, *graph.shape(flat)[1:]))
    if bags.weights is not None:
        rows = graph.step(node, "Mul", (rows, graph.reshape(node, graph.blob_of(node, bags.weights), (*shape, 1))))
    attrs: dict[str, Attr] = {"axes": (1,), "keepdims": False}
    if bags.ids is None:
        return graph.step(node, _REDUCED[bags.mode], (rows,), attrs)
    ids = graph.reshape(node, graph.blob_of(node, bags.ids), (*shape, 1))
    kept = graph.step(node, "NotEqual", (ids, graph.scalar(node, bags.padding, ids)))
    least = float("-inf") if bags.mode == "max" else 0.0
    rows = graph.step(node, "Where", (kept, rows, graph.scalar(node, least, rows)))
    pooled = graph.step(node, "ReduceMax" if bags.mode == "max" else "ReduceSum", (rows,), attrs)
    if bags.mode == "sum":
        return pooled
    number = graph.step(node, "Cast", (kept,), {"to": graph.builder.blob(rows).dtype})
    number = graph.step(node, "ReduceSum", (number,), attrs)
    if bags.mode == "mean":
        return graph.step(node, "Div", (pooled, graph.step(node, "Max", (number, graph.scalar(node, 1, number)))))
    some = graph.step(node, "Greater", (number, graph.scalar(node, 0, number)))
    return graph.step(node, "Where", (some, pooled, graph.scalar(node, 0, pooled)))


def _of_table(graph: Graph, node: Operator, bags: _Bags, rows: ir.Value, weights: ir.Value | None) -> str:
    """The bag of a table by its ids and weights; empty where its rows are not a table's, or it pools in another way."""
    lookup = rows.producer()
    if lookup is None or lookup.op_type != "Gather" or lookup.domain or bags.mode == "max":
        return ""
    table, ids = lookup.inputs[:2]
    stored = graph.stored.get(str(table.name)) if table is not None else None
    if stored is None or stored.parameter.kind != "table" or ids is None or (weights and bags.mode != "sum"):
        return ""
    if bags.ids is not None and graph.blob_of(node, bags.ids) != graph.blob_of(node, ids):
        return ""
    assert table is not None
    inputs = [graph.blob_of(node, table), *(graph.blob_of(node, value) for value in (ids, weights) if value)]
    shape = (BatchDim(bags.per_example), bags.width)
    shaped = [inputs[0], *(graph.reshape(node, name, shape) for name in inputs[1:])]
    if graph.builder.blob(shaped[1]).dtype != "int64":
        shaped[1] = graph.step(node, "Cast", (shaped[1],), {"to": "int64"})
    attrs: dict[str, Attr] = {"mode": bags.mode, "padding_idx": bags.padding, "weighted": weights is not None}
    return graph.step(node, "EmbeddingBag", shaped, attrs)


def _weighted(graph: Graph, rows: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """The rows, and the numbers that they are times; None where these are ones, or it is not known that they are one for each row."""
    maker = rows.producer()
    if maker is None or maker.op_type != "Mul" or maker.domain:
        return rows, None
    first, second = maker.inputs
    if first is None or second is None:
        return rows, None
    known = graph.known.get(str(second.name))
    if known is not None and all((array == 1).all() for array in known.arrays):
        return first, None
    column = second.producer()
    if column is None or column.op_type != "Unsqueeze" or column.inputs[0] is None:
        return rows, None
    shape = graph.shape(graph.names[str(first.name)]) if str(first.name) in graph.names else ()
    own = str(column.inputs[0].name)
    return (
        (first, column.inputs[0]) if own in graph.names and graph.shape(graph.names[own]) == shape[:1] else (rows, None)
    )


HANDLERS: Mapping[str, Callable[[Graph, Operator], None]] = {"Loop": _loop}

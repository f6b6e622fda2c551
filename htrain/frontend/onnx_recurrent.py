"""ONNX's GRU, LSTM and RNN as PyTorch's layers of one level: these have the gates in another order, and the weights of each direction by themselves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from htrain.frontend.onnx_graph import Graph
from htrain.frontend.onnx_operator import Operator
from htrain.net.net import Attr, BatchDim

_ACTIVATIONS = {"GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh"), "RNN": ("tanh",)}
_GATES = {"GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1), "RNN": (0,)}  # PyTorch's, by their places in ONNX
_TYPES = {"GRU": "Gru", "LSTM": "Lstm", "RNN": "Rnn"}
_STEPS = 512  # that are written one by one, where PyTorch has no such cell


@dataclass(frozen=True)
class _Layer:
    """`begins` are the states[D,B,H] that the D directions begin with, `weights` of each direction those of PyTorch's layer; `lengths` is int64[B], or "" where
    all steps count."""

    type: str
    hidden_size: int
    begins: Sequence[str]
    weights: Sequence[Sequence[str]]
    lengths: str
    reset_after: bool


def _recurrent(graph: Graph, node: Operator) -> None:
    x, direction = graph.blob(node, 0), node.attributes.get_string("direction", "forward")
    batch_first = bool(node.attributes.get_int("layout", 0))
    num_directions = 2 if direction == "bidirectional" else 1
    layer = _layer(graph, node, num_directions, batch_first=batch_first)
    if direction != "reverse" and not layer.lengths and layer.reset_after:
        y, *ends = _layer_of_torch(graph, node, layer, x, directions=range(num_directions), batch_first=batch_first)
    else:
        x = x if batch_first else graph.step(node, "Transpose", (x,), {"perm": (1, 0, 2)})
        backward = {"forward": (False,), "reverse": (True,)}.get(direction, (False, True))
        found = [_directed(graph, node, layer, x, d=d, backward=back) for d, back in enumerate(backward)]
        y, *ends = (
            _joined(graph, node, parts, axis=2 if i == 0 else 0) for i, parts in enumerate(zip(*found, strict=True))
        )
        y = y if batch_first else graph.step(node, "Transpose", (y,), {"perm": (1, 0, 2)})
    results = [_as_onnx(graph, node, y, num_directions, batch_first=batch_first)]
    results += [graph.step(node, "Transpose", (end,), {"perm": (1, 0, 2)}) if batch_first else end for end in ends]
    graph.names.update(
        {str(value.name): name for value, name in zip(node.outputs, results, strict=False) if value.name}
    )


def _layer(graph: Graph, node: Operator, num_directions: int, *, batch_first: bool) -> _Layer:
    """What a node says about its layer. Raises ModelError for what PyTorch's layers have not."""
    hidden_size = graph.shape(graph.blob(node, 2))[-1]
    assert isinstance(hidden_size, int)
    if node.attributes.get_int("hidden_size", hidden_size) != hidden_size:
        raise graph.refusal(node, f"has a hidden_size that is not that of its weights, {hidden_size}")
    shape = graph.shape(graph.blob(node, 0))
    batch, num_steps = shape[:2] if batch_first else shape[1::-1]
    if batch != BatchDim() or not isinstance(num_steps, int):
        raise graph.refusal(node, "runs along the batch")
    states = range(5, 7 if node.op_type == "LSTM" else 6)
    return _Layer(
        _type(graph, node, num_directions),
        hidden_size,
        begins=[_begin(graph, node, i, (num_directions, hidden_size), batch_first=batch_first) for i in states],
        weights=_weights(graph, node, num_directions),
        lengths=_lengths(graph, node, num_steps),
        reset_after=node.op_type != "GRU" or bool(node.attributes.get_int("linear_before_reset", 0)),
    )


def _type(graph: Graph, node: Operator, num_directions: int) -> str:
    """The op of the net. Raises ModelError for activations that it has not."""
    usual = _ACTIVATIONS[node.op_type]
    given = node.attributes["activations"].as_strings() if "activations" in node.attributes else usual * num_directions
    found = tuple(name.lower() for name in given)
    if node.op_type == "RNN" and found == ("relu",) * num_directions:
        return "RnnRelu"
    if found != usual * num_directions:
        raise graph.refusal(node, f"has other activations than {', '.join(usual)}: {', '.join(given)}")
    return _TYPES[node.op_type]


def _begin(graph: Graph, node: Operator, index: int, size: tuple[int, int], *, batch_first: bool) -> str:
    """The state[D,B,H] that is input `index`, zeros where it is left out: a file with a fixed batch size has them in numbers."""
    value = graph.operand(node, index)
    known = graph.known.get(str(value.name)) if value is not None else None
    if value is None or (known is not None and not any(array.any() for array in known.arrays)):
        attrs: Mapping[str, Attr] = {"shape": (size[0], -1, size[1]), "value": 0.0, "dtype": _dtype(graph, node)}
        return graph.step(node, "Fill", (), attrs)
    state = graph.blob(node, index)
    return graph.step(node, "Transpose", (state,), {"perm": (1, 0, 2)}) if batch_first else state


def _dtype(graph: Graph, node: Operator) -> str:
    return graph.builder.blob(graph.blob(node, 0)).dtype


def _weights(graph: Graph, node: Operator, num_directions: int) -> list[list[str]]:
    """For each direction its weights[gates * H,I] and [gates * H,H] and, unless the file has none, both biases[gates * H]."""
    stacks = [graph.blob(node, 1), graph.blob(node, 2)]
    if graph.operand(node, 3) is not None:
        joined = graph.blob(node, 3)
        size = graph.shape(joined)[1]
        assert isinstance(size, int)
        stacks += _split(graph, node, joined, {"axis": 1, "split": (size // 2, size - size // 2)})
    return [
        [_reordered(graph, node, graph.step(node, "Select", (stack,), {"axis": 0, "index": d})) for stack in stacks]
        for d in range(num_directions)
    ]


def _reordered(graph: Graph, node: Operator, weight: str) -> str:
    """A weight whose gates are in PyTorch's order."""
    gates = _GATES[node.op_type]
    if len(gates) == 1:
        return weight
    size = graph.shape(weight)[0]
    assert isinstance(size, int)
    parts = _split(graph, node, weight, {"axis": 0, "split": (size // len(gates),) * len(gates)})
    return graph.step(node, "Concat", [parts[gate] for gate in gates], {"axis": 0})


def _split(graph: Graph, node: Operator, blob: str, attrs: Mapping[str, Attr]) -> Sequence[str]:
    return graph.builder.add("Split", (blob,), attrs=attrs, module=graph.module_of(node))


def _lengths(graph: Graph, node: Operator, num_steps: int) -> str:
    """int64[B], "" where all steps of all examples count."""
    value = graph.operand(node, 4)
    if value is None:
        return ""
    known = graph.known.get(str(value.name))
    if known is not None and all(np.all(array == num_steps) for array in known.arrays):
        return ""
    lengths = graph.blob(node, 4)
    return (
        lengths
        if graph.builder.blob(lengths).dtype == "int64"
        else graph.step(node, "Cast", (lengths,), {"to": "int64"})
    )


# -- what the net computes -------------------------------------------------------------------------------------------


def _layer_of_torch(
    graph: Graph, node: Operator, layer: _Layer, x: str, *, directions: range, batch_first: bool
) -> Sequence[str]:
    """y, with the directions beside each other in its last dimension, and the last states, as PyTorch's layer gives them."""
    weights = [weight for d in directions for weight in layer.weights[d]]
    begins = layer.begins
    if len(directions) < len(layer.weights):
        attrs = {"axis": 0, "start": directions.start, "end": directions.stop, "step": 1}
        begins = [graph.step(node, "Slice", (begin,), attrs) for begin in begins]
    settings: Mapping[str, Attr] = {
        "has_biases": len(layer.weights[0]) == 4,
        "num_layers": 1,
        "dropout": 0.0,
        "train": True,
        "bidirectional": len(directions) == 2,
        "batch_first": batch_first,
    }
    return graph.builder.add(layer.type, (x, *begins, *weights), attrs=settings, module=graph.module_of(node))


def _directed(graph: Graph, node: Operator, layer: _Layer, x: str, *, d: int, backward: bool) -> Sequence[str]:
    """y[B,T,H] of one direction, and the last states[1,B,H]."""
    order = _order(graph, node, layer, x) if layer.lengths else ""
    if backward:
        x = _reversed(graph, node, x, order)
    if layer.reset_after:
        y, *ends = _layer_of_torch(graph, node, layer, x, directions=range(d, d + 1), batch_first=True)
    else:
        y, *ends = _reset_first(graph, node, layer, x, d=d)
    if order:
        ends = _ends(graph, node, layer, y)
    if backward:
        y = _reversed(graph, node, y, order)
    return [_without_padding(graph, node, layer, y) if order else y, *ends]


def _order(graph: Graph, node: Operator, layer: _Layer, x: str) -> str:
    """The steps[B,T] of each example from its last one back; those behind its length come in any order."""
    num_steps = graph.shape(x)[1]
    assert isinstance(num_steps, int)
    last = graph.step(node, "Sub", (_column(graph, node, layer.lengths), graph.constant(node, np.array(1))))
    back = graph.step(node, "Sub", (last, graph.constant(node, np.arange(num_steps))))
    return graph.step(node, "Mod", (back, graph.constant(node, np.array(num_steps))))


def _column(graph: Graph, node: Operator, lengths: str) -> str:
    return graph.reshape(node, lengths, (BatchDim(), 1))


def _reversed(graph: Graph, node: Operator, x: str, order: str) -> str:
    return _at(graph, node, x, order) if order else graph.step(node, "Flip", (x,), {"axes": (1,)})


def _at(graph: Graph, node: Operator, x: str, places: str) -> str:
    """x[B,T,K] at places[B,N] of each example."""
    count, width = graph.shape(places)[1], graph.shape(x)[2]
    assert isinstance(count, int)
    assert isinstance(width, int)
    wide = graph.step(
        node, "BroadcastTo", (graph.reshape(node, places, (BatchDim(), count, 1)),), {"shape": (-1, count, width)}
    )
    return graph.step(node, "GatherElements", (x, wide), {"axis": 1})


def _ends(graph: Graph, node: Operator, layer: _Layer, y: str) -> list[str]:
    """The state[1,B,H] behind the last step of each example, zeros where it has none, as in ONNX Runtime. Raises ModelError for an LSTM's cells."""
    if len(node.outputs) > 2 and node.outputs[2].uses():
        raise graph.refusal(node, "gives the cells of sequences of several lengths, which htrain does not know")
    num_steps = graph.shape(y)[1]
    assert isinstance(num_steps, int)
    last = graph.step(node, "Sub", (_column(graph, node, layer.lengths), graph.constant(node, np.array(1))))
    place = graph.step(node, "Mod", (last, graph.constant(node, np.array(num_steps))))
    end = graph.reshape(node, _at(graph, node, y, place), (1, BatchDim(), layer.hidden_size))
    some = graph.step(node, "Greater", (_column(graph, node, layer.lengths), graph.constant(node, np.array(0))))
    return [graph.step(node, "Where", (some, end, graph.scalar(node, 0.0, end)))]


def _without_padding(graph: Graph, node: Operator, layer: _Layer, y: str) -> str:
    num_steps = graph.shape(y)[1]
    assert isinstance(num_steps, int)
    steps = graph.constant(node, np.arange(num_steps).reshape(1, -1, 1))
    counts = graph.step(node, "Less", (steps, graph.reshape(node, layer.lengths, (BatchDim(), 1, 1))))
    return graph.step(node, "Where", (counts, y, graph.scalar(node, 0.0, y)))


def _reset_first(graph: Graph, node: Operator, layer: _Layer, x: str, *, d: int) -> Sequence[str]:
    """A GRU that resets the state before it is multiplied (`linear_before_reset = 0`), which PyTorch has not, step by step."""
    _, num_steps, width = graph.shape(x)
    assert isinstance(num_steps, int)
    if num_steps > _STEPS:
        raise graph.refusal(
            node, f"resets before it multiplies (linear_before_reset = 0), for more than {_STEPS} steps"
        )
    H = layer.hidden_size
    weight, recurrent, *biases = layer.weights[d]
    flat = graph.reshape(node, x, (BatchDim(num_steps), width))
    given = graph.step(node, "FC", (flat, weight, *biases[:1]))
    given = graph.reshape(node, given, (BatchDim(), num_steps, 3 * H))
    gates_of = [_split(graph, node, each, {"axis": 0, "split": (2 * H, H)}) for each in (recurrent, *biases[1:])]
    gates, candidate = ([each[part] for each in gates_of] for part in range(2))
    begin = graph.step(node, "Select", (layer.begins[0],), {"axis": 0, "index": d})
    one, states = graph.scalar(node, 1.0, x), [begin]
    for step in range(num_steps):
        state, now = states[-1], graph.step(node, "Select", (given,), {"axis": 1, "index": step})
        for_gates, for_candidate = _split(graph, node, now, {"axis": 1, "split": (2 * H, H)})
        total = graph.step(node, "Add", (for_gates, graph.step(node, "FC", (state, *gates))))
        reset, update = _split(graph, node, graph.step(node, "Sigmoid", (total,)), {"axis": 1, "split": (H, H)})
        kept = graph.step(node, "FC", (graph.step(node, "Mul", (reset, state)), *candidate))
        new = graph.step(node, "Tanh", (graph.step(node, "Add", (for_candidate, kept)),))
        old = graph.step(node, "Mul", (update, state))
        fresh = graph.step(node, "Mul", (graph.step(node, "Sub", (one, update)), new))
        states.append(graph.step(node, "Add", (fresh, old)))
    rows = [graph.reshape(node, state, (BatchDim(), 1, H)) for state in states[1:]]
    return graph.step(node, "Concat", rows, {"axis": 1}), graph.reshape(node, states[-1], (1, BatchDim(), H))


# -- both directions -------------------------------------------------------------------------------------------------


def _joined(graph: Graph, node: Operator, parts: Sequence[str], *, axis: int) -> str:
    return graph.step(node, "Concat", parts, {"axis": axis}) if len(parts) > 1 else parts[0]


def _as_onnx(graph: Graph, node: Operator, y: str, num_directions: int, *, batch_first: bool) -> str:
    """y[T,B,D * H] as ONNX has it, [T,D,B,H]; [B,T,D * H] as [B,T,D,H]."""
    first, second, width = graph.shape(y)
    assert isinstance(width, int)
    if num_directions == 1 and not batch_first:
        return graph.reshape(node, y, (first, 1, second, width))
    apart = graph.reshape(node, y, (first, second, num_directions, width // num_directions))
    return apart if batch_first else graph.step(node, "Transpose", (apart,), {"perm": (0, 2, 1, 3)})


HANDLERS: Mapping[str, Callable[[Graph, Operator], None]] = dict.fromkeys(_GATES, _recurrent)

"""Recurrent layers in ONNX."""

from collections.abc import Callable, Mapping, Sequence

from htrain.exporting.attributes import number
from htrain.exporting.graph import Graph
from htrain.exporting.native import no_form
from htrain.net.net import Attr, BatchDim, Op

_GATES = {"Gru": ("GRU", (1, 0, 2)), "Lstm": ("LSTM", (0, 3, 1, 2)), "Rnn": ("RNN", (0,)), "RnnRelu": ("RNN", (0,))}


def _recurrent(graph: Graph, op: Op) -> None:
    """Layer by layer; ONNX wants the steps first, gates in another order, and the weights of both directions as one."""
    states = 2 if op.type == "Lstm" else 1
    given = [graph.blob(name) for name in op.inputs]
    if states == 2 and given[1].shape[-1] != given[2].shape[-1]:  # proj_size, which ONNX has not
        raise no_form(op, given)
    x, *others = (graph.value(name, op) for name in op.inputs)
    initial, weights = others[:states], others[states:]
    directions, per_cell = (2 if op.attrs["bidirectional"] else 1), (4 if op.attrs["has_biases"] else 2)
    if op.attrs["batch_first"]:
        x = graph.add("Transpose", x, attrs={"perm": (1, 0, 2)})
    last: list[list[str]] = [[] for _ in range(states)]
    for layer in range(int(number(op, "num_layers"))):
        at = graph.ints(*range(layer * directions, (layer + 1) * directions))
        begin = [graph.add("Gather", state, at, attrs={"axis": 0}) for state in initial]
        cells = [weights[(layer * directions + d) * per_cell :][:per_cell] for d in range(directions)]
        x, *ends = _layer(graph, op, x, begin, cells)
        for kept, end in zip(last, ends, strict=True):
            kept.append(end)
    order = {"perm": (1, 0, 2)} if op.attrs["batch_first"] else {"perm": (0, 1, 2)}
    graph.add("Transpose", x, attrs=order, output=op.outputs[0])
    for kept, output in zip(last, op.outputs[1:], strict=True):
        graph.add("Concat", *kept, attrs={"axis": 0}, output=output)


def _layer(graph: Graph, op: Op, x: str, begin: Sequence[str], cells: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """x[T,B,I] -> y[T,B,directions * H], and the last states [directions,B,H]."""
    type, order = _GATES[op.type]
    width = graph.blob(op.outputs[1]).shape[-1]
    assert not isinstance(width, BatchDim)
    rows = graph.ints(*(gate * width + i for gate in order for i in range(width)))
    lead = graph.ints(0)

    def stacked(place: int) -> str:
        parts = [
            graph.add("Unsqueeze", graph.add("Gather", cell[place], rows, attrs={"axis": 0}), lead) for cell in cells
        ]
        return graph.add("Concat", *parts, attrs={"axis": 0})

    inputs = [x, stacked(0), stacked(1)]
    inputs.append(graph.add("Concat", stacked(2), stacked(3), attrs={"axis": 1}) if len(cells[0]) == 4 else "")
    attrs: dict[str, Attr] = {"hidden_size": width, "direction": "bidirectional" if len(cells) == 2 else "forward"}
    if op.type == "Gru":
        attrs["linear_before_reset"] = 1
    if op.type == "RnnRelu":
        attrs["activations"] = ("Relu",) * len(cells)
    names = [graph.fresh(part) for part in ("steps", "last", "cell")[: 1 + len(begin)]]
    graph.add_many(type, (*inputs, "", *begin), names, attrs=attrs)
    joined = graph.add("Transpose", names[0], attrs={"perm": (0, 2, 1, 3)})  # [T,D,B,H] -> [T,B,D,H]
    return graph.add("Reshape", joined, graph.ints(0, 0, len(cells) * width)), *names[1:]


RULES: Mapping[str, Callable[[Graph, Op], None]] = dict.fromkeys(_GATES, _recurrent)

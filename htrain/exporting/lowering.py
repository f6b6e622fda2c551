"""A forward net as an ONNX graph: an op by a rule of its own, or else as ONNX has it; what has neither is refused by its name."""

from collections.abc import Callable, Mapping

from htrain.exporting import forms, gathered, layers, products, recurrent, reductions, rows, scattered, torch_forms
from htrain.exporting.graph import Graph
from htrain.exporting.native import add_native, no_form
from htrain.net.net import Net, Op

RULES: Mapping[str, Callable[[Graph, Op], None]] = {
    **rows.RULES,
    **products.RULES,
    **forms.RULES,
    **gathered.RULES,
    **layers.RULES,
    **recurrent.RULES,
    **reductions.RULES,
    **scattered.RULES,
    **torch_forms.RULES,
}


def lower(net: Net, row_number: Callable[[str, int], int]) -> Graph:
    """The graph of a net. `row_number` gives the number that a row of a table of the net has in the model.

    Raises ModelError naming the op, and the module that it is of, which has no form in ONNX.
    """
    graph = Graph(net, row_number)
    for op in net.ops:
        _add(graph, op)
        for output in op.outputs:
            if net.blob(output).dtype == "bfloat16" and output not in graph.tables:
                graph.alias(output, graph.rounded(output))
    return graph


def _add(graph: Graph, op: Op) -> None:
    rule = RULES.get(op.type)
    if rule:
        rule(graph, op)
    elif not add_native(graph, op):
        raise no_form(op, [graph.net.blob(name) for name in op.inputs])

"""Rows of an nn.Embedding that forward() takes by indexing its weight, `e.weight[ids]` or by index_select: lookups like any."""

from collections.abc import Collection
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

_ATEN = torch.ops.aten
_KEEPS_IDS = frozenset(
    f"aten.{name}"
    for name in ("select.int", "slice.Tensor", "view.default", "reshape.default", "unsqueeze.default", "squeeze.dim", "squeeze.default",
                 "flatten.using_ints", "expand.default", "transpose.int", "permute.default", "cat.default", "stack.default", "clone.default")
)  # fmt: skip


def write_lookups(program: ExportedProgram, model: nn.Module) -> None:
    """Have what reads rows of an embedding's weight by numbers that depend on an input be lookups in the graph of `program`. Numbers that are computed may
    count from the end, as an index does and an id does not."""
    tables = {
        f"{path}.weight" if path else "weight"
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    parameters, inputs = program.graph_signature.inputs_to_parameters, set(program.graph_signature.user_inputs)
    dynamic: set[fx.Node] = set()
    for node in list(program.graph.nodes):
        if node.name in inputs or not dynamic.isdisjoint(node.all_input_nodes):
            dynamic.add(node)
        read = _read(node)
        if read is None or parameters.get(read[0].name) not in tables or read[1] not in dynamic:
            continue
        weight, ids = read
        if not _are_given(ids, inputs):
            ids = _from_zero(program.graph, node, ids, int(weight.meta["val"].shape[0]))
        node.target, node.args, node.kwargs = _ATEN.embedding.default, (weight, ids), {}


def _read(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """What is indexed along its first dimension by whole numbers alone, and they."""
    args: tuple[Any, ...] = node.args
    if node.target is _ATEN.index.Tensor and len(args[1]) == 1:
        weight, ids = args[0], args[1][0]
    elif node.target is _ATEN.index_select.default and args[1] == 0:
        weight, ids = args[0], args[2]
    else:
        return None
    return (weight, ids) if ids.meta["val"].dtype in (torch.int64, torch.int32) else None


def _are_given(ids: fx.Node, inputs: Collection[str]) -> bool:
    """Whether numbers are those of inputs, which are rows."""
    if ids.op == "placeholder":
        return ids.name in inputs
    return str(ids.target) in _KEEPS_IDS and all(_are_given(source, inputs) for source in ids.all_input_nodes)


def _from_zero(graph: fx.Graph, node: fx.Node, ids: fx.Node, rows: int) -> fx.Node:
    with graph.inserting_before(node):
        counted = graph.call_function(_ATEN.remainder.Scalar, (ids, rows))
    counted.meta = {**ids.meta, "val": ids.meta["val"] % rows}
    return counted

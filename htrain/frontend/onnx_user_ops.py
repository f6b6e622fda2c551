"""Nodes of a user's own ops in an ONNX file: of any domain but ONNX's own, by the type that `htrain.register` was given."""

from collections.abc import Callable, Mapping

import onnx_ir as ir
import torch

from htrain.frontend.onnx_graph import Graph, label
from htrain.frontend.onnx_operator import Operator
from htrain.net.net import Attr, Op, Tensor
from htrain.onnx_format.schemas import attributes_of, check_attributes
from htrain.ops.base import constant_of
from htrain.ops.user_ops import require_elementwise

_READERS: Mapping[type, Callable[[ir.Attr], Attr]] = {
    int: lambda attribute: int(attribute.as_int()),
    bool: lambda attribute: bool(attribute.as_int()),
    float: lambda attribute: float(attribute.as_float()),
    str: lambda attribute: str(attribute.as_string()),
    tuple: lambda attribute: tuple(int(value) for value in attribute.as_ints()),
    Tensor: lambda attribute: constant_of(torch.from_numpy(attribute.as_tensor().numpy().copy())),
}


def user_op(graph: Graph, node: Operator) -> None:
    """The op of the node's type. Raises PlanError for an attribute that is missing or of another type, ModelError for an op that is not what it says."""
    kinds = attributes_of(node.op_type)
    attributes = {
        name: _READERS[kind](node.attributes[name]) for name, kind in kinds.items() if name in node.attributes
    }
    check_attributes(Op(node.op_type, (), (), attributes), f"op {node.op_type} '{label(node)}'")
    inputs = graph.blobs(node)
    require_elementwise(node.op_type, [graph.builder.blob(name) for name in inputs], attributes)
    graph.emit(node, node.op_type, inputs, attributes)

"""Nodes of a user's own ops in an ONNX file: of any domain but ONNX's own, by the type that `htrain.register` was given."""

from htrain.frontend.onnx_graph import Graph, label
from htrain.frontend.onnx_operator import Operator
from htrain.net.net import Op
from htrain.onnx_format.schemas import attributes_of, check_attributes
from htrain.ops.user_ops import require_elementwise


def user_op(graph: Graph, node: Operator) -> None:
    """The op of the node's type.

    Raises PlanError for an attribute that is missing or of another type, ModelError for an op that is not what it says.
    """
    attributes = node.attributes.of_kinds(attributes_of(node.op_type))
    check_attributes(Op(node.op_type, (), (), attributes), f"op {node.op_type} '{label(node)}'")
    inputs = graph.blobs(node)
    require_elementwise(node.op_type, [graph.builder.blob(name) for name in inputs], attributes)
    graph.emit(node, node.op_type, inputs, attributes)

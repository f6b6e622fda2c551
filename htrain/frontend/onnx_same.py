"""Nodes of an ONNX file whose op means the same in htrain, and says so itself."""

import numpy as np

from htrain.frontend.onnx_graph import Graph
from htrain.frontend.onnx_operator import Operator, defaults_of
from htrain.net.net import Attr
from htrain.ops import OPS
from htrain.ops.attributes import declared_attributes


def same_op(graph: Graph, node: Operator) -> None:
    """An op that says it is ONNX's (`OpDef.onnx`). What the file leaves out has ONNX's default."""
    kinds = declared_attributes(OPS[node.op_type])
    defaults = defaults_of(node.op_type, graph.opset) if kinds else {}
    attributes = {name: _exact(defaults[name]) for name in kinds if name in defaults}
    graph.emit(node, node.op_type, graph.blobs(node), {**attributes, **node.attributes.of_kinds(kinds)})


def _exact(default: Attr) -> Attr:
    """ONNX keeps 0.01 as the float32 that is next to it."""
    return float(str(np.float32(default))) if isinstance(default, float) else default

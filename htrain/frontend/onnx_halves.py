"""Files whose weights are stored in half precision, as converters leave them to have smaller files: read as float32, in which htrain trains.

Such a file either casts each weight before it is used, or computes all in half precision and casts its inputs and outputs. All halves become float32, those of
inputs, of ops' outputs and of casts as well. A file that stores none is left as it is: one that casts to halves in between means it so.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_NAMED = 5  # weights that a note tells by name


def widen(model: ir.Model) -> tuple[str, ...]:
    """Make a model that stores tensors of float16 or bfloat16 one of float32, in place. Returns what is to be said of it."""
    stored = {
        str(value.name): tensor for value, tensor in _constants(model) if tensor.dtype in _HALVES and _is_read(value)
    }
    if not any(len(tensor.shape) for tensor in stored.values()):
        return ()
    was = " and ".join(sorted({tensor.dtype.name.lower() for tensor in stored.values()}))
    for value in [value for value, tensor in _constants(model) if tensor.dtype in _HALVES and value.is_initializer()]:
        value.const_value = _wide(value.const_value)
    for value in _values(model):
        if value.dtype in _HALVES:
            value.type = ir.TensorType(ir.DataType.FLOAT)
    for node in model.graph.all_nodes():
        for attribute in list(node.attributes.values()):
            _widen_attribute(node, attribute)
    _leave_casts_out(model)
    names = [name for name, tensor in stored.items() if len(tensor.shape)]
    others = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (f"{', '.join(names[:_NAMED])}{others}: stored as {was}, read and trained as float32",)


def _constants(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """The initializers, and the outputs of Constant nodes that hold a tensor, of all graphs, with their tensors."""
    for value in _values(model):
        if value.is_initializer() and value.const_value is not None:
            yield value, value.const_value
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and "value" in node.attributes:
            yield node.outputs[0], node.attributes["value"].as_tensor()


def _is_read(value: ir.Value) -> bool:
    """Whether a node reads its numbers: CastLike reads what type it has."""
    return any(use.node.op_type != "CastLike" or use.idx == 0 for use in value.uses())


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.inputs
        yield from graph.initializers.values()
    for node in model.graph.all_nodes():
        yield from node.outputs


def _wide(tensor: ir.TensorProtocol | None) -> ir.TensorProtocol:
    """The same numbers as float32; made when they are asked for, since a table may be large."""
    assert tensor is not None
    return ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy().astype(np.float32)),
        ir.DataType.FLOAT,
        ir.Shape(tensor.shape),
        name=tensor.name,
    )


def _widen_attribute(node: ir.Node, attribute: ir.Attr) -> None:
    """Tensors (Constant, ConstantOfShape), and types that a node makes its output of (Cast `to`, EyeLike `dtype`)."""
    if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in _HALVES:
        node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _wide(attribute.value))
        node.outputs[0].const_value = None
    elif attribute.name in ("to", "dtype") and attribute.type == ir.AttributeType.INT and attribute.value in _HALVES:
        node.attributes[attribute.name] = ir.AttrInt64(attribute.name, int(ir.DataType.FLOAT))


def _leave_casts_out(model: ir.Model) -> None:
    """Weights are read without the casts to what they are: a table is known by its lookups."""
    for node in list(model.graph.all_nodes()):
        if node.op_type != "Cast" or node.attributes["to"].as_int() != ir.DataType.FLOAT:
            continue
        source = node.inputs[0]
        if source is not None and source.dtype == ir.DataType.FLOAT and not node.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
            assert node.graph is not None
            node.graph.remove(node, safe=True)

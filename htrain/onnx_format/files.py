"""Net <-> ONNX: the only door to the file format (docs/decisions/net.md).

Forward ops carry ONNX's names and semantics where ONNX has them (htrain.onnx_format.forms); all else is in the domain
`ai.htrain`. Parameters and tables are graph inputs, never initializers: `metadata_props` of the input say what they
are. Tags are the nodes' `metadata_props`. A batch-dependent dimension is a `dim_param`: "B", "10B", "<=26B".

What ONNX would round or rephrase stands beside it in the node's metadata `exact`, as JSON: a double in a single
precision attribute, pads in torch's order. A file is read only if writing its net again gives the same file, so that
nothing in a file goes unread, and `exact` cannot contradict what other readers of ONNX see.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, TensorProto

from htrain.errors import ModelError, PlanError
from htrain.files import read_file
from htrain.net.check import check
from htrain.net.net import Attr, Net, Op, Parameter
from htrain.onnx_format.forms import FORMS, OPSET, Operands, form_of, type_of
from htrain.onnx_format.schemas import DOMAIN, attributes_of, check_attributes, register_schemas
from htrain.onnx_format.values import (
    annotate,
    annotations,
    read_attribute,
    read_blob,
    read_exact,
    read_parameter,
    read_tensor,
    write_attribute,
    write_blob,
    write_exact,
    write_parameter,
    write_tensor,
)
from htrain.ops import OPS
from htrain.printable import one_line

_IR_VERSION = 10
_OPSETS = {"": OPSET, DOMAIN: 1}
MOST_BYTES = 2**31 - 1  # protobuf's own limit


def write_net(net: Net, path: Path) -> None:
    """Write `net` as an ONNX file; equal nets give equal bytes.

    Raises PlanError when the net is not one that could be read back, or the file cannot be written.
    """
    data = to_model(net).SerializeToString(deterministic=True)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise PlanError(f"{path}: cannot be written: {error.strerror or error}") from error


def read_net(path: Path) -> Net:
    """The net of a file. Raises PlanError, naming file and node, for anything that `write_net` did not write."""
    try:
        return net_of(read_file(path, most_bytes=MOST_BYTES), path)
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror or error}") from error


def net_of(data: bytes, path: Path) -> Net:
    """The net of a file's content; messages name `path`. Raises PlanError as `read_net` does."""
    if not data:
        raise PlanError(f"{path}: has 0 bytes, which is not a net")
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise PlanError(f"{path}: is not an ONNX file, or a damaged one: compile the model again") from error
    if not _is_text(model):
        raise PlanError(f"{path}: is damaged, a name in it is not UTF-8: compile the model again")
    try:
        return from_model(model, str(path))
    except PlanError as error:  # it may quote names from the file
        raise PlanError(one_line(str(error))) from error


# -- writing ---------------------------------------------------------------------------------------------------------


def to_model(net: Net) -> onnx.ModelProto:
    """`net` as an ONNX model that onnx.checker reads. Raises PlanError for an op that could not be read back."""
    register_schemas()
    check(net)
    graph = onnx.GraphProto(name=net.name)
    taken = {*net.blobs, *net.parameters}
    for index, op in enumerate(net.ops):
        check_attributes(op, f"net '{net.name}': op {index}, {op.type}")
        node, operands = _node(op, net, taken)
        graph.node.append(node)
        graph.initializer.extend(operands)
    graph.input.extend(write_blob(net.blobs[name]) for name in net.inputs)
    graph.input.extend(write_parameter(p) for p in _by_first_use(net))
    graph.output.extend(write_blob(net.blob(name)) for name in net.outputs)
    graph.value_info.extend(write_blob(net.blobs[name]) for name in _inner_blobs(net))
    opsets = [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in _OPSETS.items()]
    return onnx.ModelProto(ir_version=_IR_VERSION, producer_name="htrain", graph=graph, opset_import=opsets)


def _by_first_use(net: Net) -> Iterable[Parameter]:
    """The parameters in the order in which ops first name them, then the others by name: equal nets agree on it."""
    used = dict.fromkeys(name for op in net.ops for name in op.inputs if name in net.parameters)
    return (net.parameters[name] for name in [*used, *sorted(set(net.parameters) - set(used))])


def _inner_blobs(net: Net) -> Iterable[str]:
    """Blobs that are neither inputs nor outputs of the net, as ops write them, then the others by name."""
    outer = {*net.inputs, *net.outputs}
    made = [name for op in net.ops for name in op.outputs if name not in outer]
    return [*made, *sorted(set(net.blobs) - set(made) - outer)]


def _node(op: Op, net: Net, taken: set[str]) -> tuple[onnx.NodeProto, list[TensorProto]]:
    """The node of an op, and the initializers that are its constant inputs, under names that are not `taken`."""
    form = form_of(op, [net.blob(name) for name in op.inputs], [net.blob(name) for name in op.outputs])
    type, attrs, operands = (form[0].type, form[1], form[2]) if form else (op.type, op.attrs, {})
    kinds = attributes_of(op.type)
    attributes = [write_attribute(name, attrs[name], kinds.get(name, object)) for name in sorted(attrs)]
    constants = [write_tensor(value, _fresh(f"{op.outputs[0]}:{name}", taken)) for name, value in operands.items()]
    inputs = [*op.inputs, *(c.name for c in constants)]
    domain = "" if form else DOMAIN
    node = onnx.NodeProto(op_type=type, domain=domain, input=inputs, output=op.outputs, attribute=attributes)
    seen = _native_attrs(op.type, attributes, operands, domain=domain, where=op.label)
    exact = {name: value for name, value in sorted(op.attrs.items()) if repr(seen.get(name)) != repr(value)}
    annotate(node, {"node_name": op.node_name, "module": op.module, **({"exact": write_exact(exact)} if exact else {})})
    return node, constants


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def _native_attrs(
    type: str, attributes: Iterable[AttributeProto], operands: Operands, *, domain: str, where: str
) -> Mapping[str, Attr]:
    """An op's attributes as a file holds them without its `exact`."""
    kinds = attributes_of(type)
    attrs = {a.name: read_attribute(a, kinds.get(a.name, object), where) for a in attributes}
    return attrs if domain else FORMS[type].read(attrs, operands)


# -- reading ---------------------------------------------------------------------------------------------------------


def from_model(model: onnx.ModelProto, where: str) -> Net:
    """The net of a model that `to_model` made; messages begin with `where`. Raises PlanError for any other model."""
    graph = model.graph
    _refuse_other_versions(model, where)
    constants = {t.name: read_tensor(t, f"{where}: initializer '{t.name}'") for t in graph.initializer}
    parameters = {v.name: read_parameter(v, where) for v in graph.input if v.metadata_props}
    values = [v for v in (*graph.input, *graph.value_info, *graph.output) if v.name not in parameters]
    ops = tuple(_op(node, constants, _label(node, i, where)) for i, node in enumerate(graph.node))
    inputs = tuple(v.name for v in graph.input if v.name not in parameters)
    blobs = {v.name: read_blob(v, where) for v in values}
    net = Net(graph.name, ops, inputs, outputs=tuple(v.name for v in graph.output), blobs=blobs, parameters=parameters)
    try:
        written = to_model(net)
    except ModelError as error:
        raise PlanError(f"{where}: {error}") from error
    _refuse_difference(model, written, where)
    return net


def _is_text(message: Any) -> bool:
    """Whether all strings of a message are UTF-8: protobuf gives others as bytes."""
    for field, value in message.ListFields():
        values = [value] if isinstance(value, str | bytes | Message) else value
        if field.type == field.TYPE_STRING and not all(isinstance(v, str) for v in values):
            return False
        if field.type == field.TYPE_MESSAGE and not all(_is_text(v) for v in values):
            return False
    return True


def _refuse_other_versions(model: onnx.ModelProto, where: str) -> None:
    seen = {entry.domain: entry.version for entry in model.opset_import}
    if not model.HasField("graph") or model.ir_version != _IR_VERSION or seen != _OPSETS:
        raise PlanError(
            f"{where}: is not a net of this htrain: IR version {model.ir_version}, opsets {seen}, "
            f"want {_IR_VERSION}, {_OPSETS}: compile the model again"
        )


def _refuse_difference(model: onnx.ModelProto, written: onnx.ModelProto, where: str) -> None:
    """Refuse a model that is not what `to_model` makes of its net."""
    for index, (node, again) in enumerate(zip(model.graph.node, written.graph.node, strict=True)):
        if not _same(node, again):
            raise PlanError(f"{_label(node, index, where)}: is not as htrain writes it")
    for proto, again in ((model.graph, written.graph), (model, written)):
        for field in proto.DESCRIPTOR.fields:
            if getattr(proto, field.name) != getattr(again, field.name):
                name = f"{proto.DESCRIPTOR.name}.{field.name}"
                raise PlanError(f"{where}: {name} is not as htrain writes it")
    if not _same(model, written):
        raise PlanError(f"{where}: holds fields that htrain does not write")


def _same(proto: Any, other: Any) -> bool:
    return proto.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)


def _label(node: onnx.NodeProto, index: int, where: str) -> str:
    name = next(iter((*node.output, *node.input)), "")
    return f"{where}: node {index}, {node.op_type} '{name}'"


def _op(node: onnx.NodeProto, constants: Operands, where: str) -> Op:
    tags = annotations(node, where)
    upper = {a.name: a.i for a in node.attribute if a.name == "upper"}
    given = [constants[name] for name in node.input if name in constants]
    type = node.op_type if node.domain else type_of(node.op_type, upper, len(given))
    if node.domain not in _OPSETS or type not in OPS:
        domain = node.domain or "ai.onnx"
        raise PlanError(f"{where}: op {node.op_type} of domain '{domain}' is not one that htrain runs")
    inputs = tuple(name for name in node.input if name not in constants)
    wanted = () if node.domain else FORMS[type].operands
    try:
        operands = dict(zip(wanted, given, strict=False))
        attrs = dict(_native_attrs(type, node.attribute, operands, domain=node.domain, where=where))
    except (KeyError, IndexError, ValueError, TypeError, AssertionError) as error:
        raise PlanError(f"{where}: its attributes and constant inputs are not as htrain writes them") from error
    attrs.update(read_exact(tags.get("exact", "{}"), where))
    op = Op(type, inputs, tuple(node.output), attrs, node_name=tags.get("node_name", ""), module=tags.get("module", ""))
    check_attributes(op, where)
    return op

"""Net <-> ONNX: the only door to the file format (DESIGN 3).

Forward ops carry ONNX's names and semantics where ONNX has them (FC is Gemm with transB); all else is in the domain
`ai.htrain`. Parameters and tables are graph inputs, never initializers. Tags are the nodes' `metadata_props`.
"""

import math
import os
from pathlib import Path
from typing import Any

import msgspec
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, TensorProto, helper

from htrain.errors import ModelError, PlanError
from htrain.net import Attr, BatchDim, Blob, Dim, Net, Op, Parameter, Tensor, check
from htrain.ops import OPS

DOMAIN = "ai.htrain"
OPSET = 20
_DTYPES = {name: getattr(TensorProto, proto) for name, proto in (
    ("float32", "FLOAT"), ("float64", "DOUBLE"), ("float16", "FLOAT16"), ("bfloat16", "BFLOAT16"), ("int64", "INT64"),
    ("int32", "INT32"), ("int8", "INT8"), ("uint8", "UINT8"), ("bool", "BOOL"),
)}  # fmt: skip
_DTYPE_NAMES = {value: name for name, value in _DTYPES.items()}
# Types whose inputs, outputs and attributes are ONNX's own.
_STANDARD = frozenset(
    "Abs Add And Ceil Concat Cos Div Einsum Elu Equal Erf Exp Floor Gather GatherElements Gelu Greater GreaterOrEqual HardSwish Identity "
    "IsNaN LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max Min Mish Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid Sign Sin Softmax "
    "Softplus Sqrt Sub Sum Tanh Transpose Where Xor".split()
)
# Types that ONNX has, with these attributes as int64 inputs; the number is the input's position.
_AS_INPUT = {"Reshape": "shape", "Split": "split", "ReduceSum": "axes", "ReduceMean": "axes", "ReduceMax": "axes", "ReduceMin": "axes",
             "ReduceProd": "axes", "ReduceL2": "axes", "ReduceLogSumExp": "axes"}  # fmt: skip
_BOOLEANS = frozenset({"keepdims", "bias", "wants_x", "weighted", "wants_weights"})


def write_net(net: Net, path: Path) -> None:
    """Write `net` as an ONNX file; equal nets give equal bytes. The file appears whole or not at all."""
    temporary = path.with_suffix(".partial")
    temporary.write_bytes(to_model(net).SerializeToString(deterministic=True))
    os.replace(temporary, path)


def read_net(path: Path) -> Net:
    """The net of a file. Raises PlanError, naming file and node, for anything that htrain did not write."""
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
        return _to_net(model, path)
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from error
    except (DecodeError, ModelError, msgspec.MsgspecError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise PlanError(f"{path}: not a net of htrain: {' '.join(str(error).split()) or type(error).__name__}") from error


# -- writing ---------------------------------------------------------------------------------------------------------


def to_model(net: Net) -> onnx.ModelProto:
    """`net` as an ONNX model that onnx.checker reads."""
    register_schemas()
    constants: list[TensorProto] = []
    nodes = [_node(op, index, constants) for index, op in enumerate(net.ops)]
    inputs = [_value(net.blobs[name]) for name in net.inputs] + [_value(p.blob) for p in net.parameters.values()]
    made = [o for op in net.ops for o in op.outputs if o not in net.outputs]
    outputs = [_value(net.blob(name)) for name in net.outputs]
    graph = helper.make_graph(nodes, net.name, inputs, outputs, constants, value_info=[_value(net.blobs[name]) for name in made])
    _annotate(graph, {"parameters": msgspec.json.encode(list(net.parameters.values())).decode()})
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, producer_name="htrain", ir_version=10)


def register_schemas() -> None:
    """Tell onnx.checker the names of htrain's own ops; arity is our own check's matter. Does nothing the second time."""
    names = sorted(name for name in OPS if name != "Constant")
    if onnx.defs.has(names[0], DOMAIN):
        return
    schema = onnx.defs.OpSchema
    many = schema.FormalParameterOption.Variadic
    sides = [schema.FormalParameter(f"{side}s", "T", "any", param_option=many, is_homogeneous=False, min_arity=0) for side in ("input", "output")]
    attributes = [schema.Attribute(name, getattr(schema.AttrType, kind), "", required=False) for kind, line in _ATTRIBUTES.items() for name in line.split()]
    for name in names:
        onnx.defs.register_schema(
            schema(
                name, DOMAIN, 1, doc=f"htrain's {name}", inputs=sides[:1], outputs=sides[1:], attributes=attributes,
                type_constraints=[("T", _TENSOR_TYPES, "tensors")],
            )
        )  # fmt: skip


# Attributes of ai.htrain ops by their kind on disk; a float is a double in a tensor without dimensions.
_ATTRIBUTES = {
    "INT": "axis batch bias diagonal end first_row given_count keepdims message num_inputs padding_idx seed start step wants_weights wants_x weighted",
    "INTS": "axes bounds given pads perm rows shape split wrt",
    "STRING": "approximate dtype equation mode peer to",
    "TENSOR": "alpha beta1 beta2 eps epsilon high low lr max mean min std value",
}
_TENSOR_TYPES = tuple(f"tensor({t})" for t in ("float", "double", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"))


def _node(op: Op, index: int, constants: list[TensorProto]) -> onnx.NodeProto:
    attrs, inputs = dict(op.attrs), list(op.inputs)
    type, domain = op.type, "" if op.type in _STANDARD else DOMAIN
    if op.type == "FC":
        type, domain, attrs = "Gemm", "", {"transB": 1}
    elif op.type == "Cast":
        domain, attrs = "", {"to": _DTYPES[str(attrs["to"])]}
    elif op.type == "Constant":
        domain = ""
    elif op.type == "LayerNormalization" and len(inputs) > 1:
        domain = ""
    elif op.type in _AS_INPUT and _fits(op):
        domain = ""
        values = attrs.pop(_AS_INPUT[op.type])
        assert isinstance(values, tuple)
        name = f"{op.outputs[0]}:{_AS_INPUT[op.type]}"
        constants.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
        inputs.append(name)
    node = helper.make_node(type, inputs, list(op.outputs), domain=domain)
    exact = {key: value for key, value in attrs.items() if domain == "" and isinstance(value, float)}
    for key in sorted(attrs):
        node.attribute.append(_attribute(key, attrs[key], wide=domain == DOMAIN))
    tags = {"node_name": op.node_name, "module": op.module, **{f"exact {key}": repr(value) for key, value in exact.items()}}
    _annotate(node, tags)
    return node


def _fits(op: Op) -> bool:
    """Whether ONNX's op means the same: a negative entry of a split is not ONNX, nor are two open entries of a shape."""
    values = op.attrs[_AS_INPUT[op.type]]
    assert isinstance(values, tuple)
    if op.type == "Reshape":
        return 0 not in values
    return bool(values) and (op.type != "Split" or min(values) >= 0)


def _attribute(name: str, value: Attr, *, wide: bool) -> AttributeProto:
    if isinstance(value, Tensor):
        return helper.make_attribute(name, _tensor_proto(value))
    if isinstance(value, bool):
        return helper.make_attribute(name, int(value))
    if isinstance(value, tuple):
        return helper.make_attribute(name, list(value), attr_type=AttributeProto.INTS)
    if isinstance(value, float) and wide:  # ONNX's own float attributes are single precision
        return helper.make_attribute(name, helper.make_tensor("", TensorProto.DOUBLE, [], [value]))
    return helper.make_attribute(name, value)


def _tensor_proto(value: Tensor) -> TensorProto:
    proto = TensorProto(data_type=_DTYPES[value.dtype], raw_data=value.data)
    proto.dims.extend(value.shape)
    return proto


def _value(blob: Blob) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(blob.name, _DTYPES[blob.dtype], [d if isinstance(d, int) else str(d) for d in blob.shape])


def _annotate(proto: Any, tags: dict[str, str]) -> None:
    for key in sorted(tags):
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, tags[key]


# -- reading ---------------------------------------------------------------------------------------------------------


def _to_net(model: onnx.ModelProto, path: Path) -> Net:
    graph = model.graph
    annotated = _annotations(graph)
    parameters = msgspec.json.decode(annotated["parameters"], type=list[Parameter])
    constants = {t.name: tuple(onnx.numpy_helper.to_array(t).tolist()) for t in graph.initializer}
    names = {p.name for p in parameters}
    blobs = [_blob(v) for v in (*graph.input, *graph.value_info, *graph.output)]
    ops = tuple(_op(node, constants, path) for node in graph.node)
    inputs = tuple(v.name for v in graph.input if v.name not in names)
    outputs = tuple(v.name for v in graph.output)
    declared = {b.name: b for b in blobs if b.name not in names}
    return check(Net(graph.name, ops, inputs, outputs, declared, {p.name: p for p in parameters}))


def _annotations(proto: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in proto.metadata_props}


def _op(node: onnx.NodeProto, constants: dict[str, tuple[int, ...]], path: Path) -> Op:
    tags = _annotations(node)
    type = "FC" if (node.op_type, node.domain) == ("Gemm", "") else node.op_type
    if type not in OPS or node.domain not in ("", DOMAIN):
        raise PlanError(f"{path}: op {node.domain or 'ai.onnx'}.{node.op_type} ('{tags.get('module', '')}') is not one that htrain runs")
    attrs = {a.name: _attr(a) for a in node.attribute} if type != "FC" else {}
    attrs.update({key.removeprefix("exact "): float(value) for key, value in tags.items() if key.startswith("exact ")})
    inputs = tuple(node.input)
    if type in _AS_INPUT and node.domain == "":
        attrs[_AS_INPUT[type]] = constants[inputs[-1]]
        inputs = inputs[:-1]
    if type == "Cast":
        attrs["to"] = _DTYPE_NAMES[int(str(attrs["to"]))]
    return Op(type, inputs, tuple(node.output), attrs, tags.get("node_name", ""), tags.get("module", ""))


def _attr(attribute: AttributeProto) -> Attr:
    if attribute.type == AttributeProto.INT:
        return bool(attribute.i) if attribute.name in _BOOLEANS else attribute.i
    if attribute.type == AttributeProto.INTS:
        return tuple(attribute.ints)
    if attribute.type == AttributeProto.STRING:
        return attribute.s.decode()
    if attribute.type == AttributeProto.FLOAT:
        return attribute.f
    if attribute.type != AttributeProto.TENSOR:
        raise ValueError(f"attribute '{attribute.name}' is of a kind that htrain does not write")
    if attribute.t.double_data:  # a float; constants hold raw bytes
        return float(attribute.t.double_data[0])
    return _constant(attribute.t)


def _constant(proto: TensorProto) -> Tensor:
    value = Tensor(_DTYPE_NAMES[proto.data_type], tuple(proto.dims), proto.raw_data)
    size = math.prod(value.shape) * helper.tensor_dtype_to_np_dtype(proto.data_type).itemsize
    if proto.data_location == TensorProto.EXTERNAL or min(value.shape, default=0) < 0 or size != len(value.data):
        raise ValueError(f"constant of shape {list(value.shape)} holds {len(value.data)} bytes, want {size}")
    return value


def _blob(value: onnx.ValueInfoProto) -> Blob:
    tensor = value.type.tensor_type
    return Blob(value.name, tuple(_dim(d.dim_param, d.dim_value) for d in tensor.shape.dim), _DTYPE_NAMES[tensor.elem_type])


def _dim(text: str, value: int) -> Dim:
    if not text:
        return value
    count = text.removeprefix("<=").removesuffix("B")
    return BatchDim(int(count or 1), text.startswith("<="))



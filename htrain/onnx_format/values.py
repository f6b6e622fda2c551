"""Tensors, attributes, blobs and parameters as ONNX protobuf messages, and back (docs/decisions/net.md).

Reading is of untrusted messages: all that `read_...` raises is PlanError, beginning with `where`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto

from htrain.errors import PlanError
from htrain.net.net import DTYPE_BYTES, Attr, BatchDim, Blob, Dim, Init, Parameter, Tensor, numel

DTYPES: Mapping[str, int] = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
DTYPE_NAMES = {value: name for name, value in DTYPES.items()}
_DIM = re.compile(r"(<=)?([1-9][0-9]{0,9})?B")
_NATURAL = re.compile(r"0|[1-9][0-9]{0,17}")
_INIT_ARGUMENTS = {"constant": 1, "uniform": 2, "normal": 2, "file": 0}
_PARAMETER_TAGS = {"kind", "init", "of", "first_row", "first_column", "trained"}


def write_tensor(value: Tensor, name: str) -> TensorProto:
    """A constant as ONNX has it."""
    return TensorProto(name=name, data_type=DTYPES[value.dtype], dims=value.shape, raw_data=value.data)


def read_tensor(proto: TensorProto, where: str) -> Tensor:
    """The constant that a file holds. Raises PlanError, beginning with `where`, for one that htrain does not write."""
    if proto.data_location == TensorProto.EXTERNAL or proto.data_type not in DTYPE_NAMES:
        raise PlanError(f"{where}: a constant with external data, or of an unknown dtype ({proto.data_type})")
    value = Tensor(DTYPE_NAMES[proto.data_type], tuple(proto.dims), proto.raw_data)
    size = numel(value.shape, 1) * DTYPE_BYTES[value.dtype]
    if min(value.shape, default=0) < 0 or size != len(value.data):
        raise PlanError(f"{where}: constant {value} holds {len(value.data)} bytes, want {size}")
    return value


def write_attribute(name: str, value: Attr, kind: type) -> AttributeProto:
    """An attribute as ONNX has it; `kind` tells a float from an int, which Python may have in its place."""
    if isinstance(value, Tensor):
        return AttributeProto(name=name, type=AttributeProto.TENSOR, t=write_tensor(value, ""))
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return AttributeProto(name=name, type=AttributeProto.STRINGS, strings=[word.encode() for word in value])
    if isinstance(value, tuple):
        return AttributeProto(name=name, type=AttributeProto.INTS, ints=value)
    if isinstance(value, str):
        return AttributeProto(name=name, type=AttributeProto.STRING, s=value.encode())
    if kind is float or isinstance(value, float):
        return AttributeProto(name=name, type=AttributeProto.FLOAT, f=value)
    return AttributeProto(name=name, type=AttributeProto.INT, i=int(value))


def read_attribute(proto: AttributeProto, kind: type, where: str) -> Attr:
    """The attribute as the file holds it natively; `kind` tells a bool from an int.

    Raises PlanError, beginning with `where`, for one of a kind that htrain does not write.
    """
    if proto.type == AttributeProto.INT:
        return bool(proto.i) if kind is bool else proto.i
    if proto.type == AttributeProto.FLOAT:
        return proto.f
    if proto.type == AttributeProto.STRING:
        return proto.s.decode(errors="replace")
    if proto.type == AttributeProto.INTS:
        return tuple(proto.ints)
    if proto.type == AttributeProto.TENSOR:
        return read_tensor(proto.t, where)
    raise PlanError(f"{where}: attribute '{proto.name}' is of kind {proto.type}, which htrain does not write")


def write_exact(attrs: Mapping[str, Attr]) -> str:
    """Attributes as JSON, for `read_exact`."""
    return json.dumps(attrs)


def read_exact(text: str, where: str) -> dict[str, Attr]:
    """Attributes that a file holds as JSON because ONNX's kinds of attribute would round them.

    Raises PlanError, beginning with `where`, for a text that is not a JSON object.
    """
    exact = _read_json(text, where)
    if not isinstance(exact, dict):
        raise PlanError(f"{where}: metadata 'exact' is not a JSON object")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in exact.items()}


def write_blob(blob: Blob) -> onnx.ValueInfoProto:
    """A blob as ONNX has it; dimensions that depend on the batch are texts, such as `<=26B`."""
    value = onnx.ValueInfoProto(name=blob.name)
    value.type.tensor_type.elem_type = DTYPES[blob.dtype]
    value.type.tensor_type.shape.SetInParent()
    for dim in blob.shape:
        entry = value.type.tensor_type.shape.dim.add()
        if isinstance(dim, int):
            entry.dim_value = dim
        else:
            entry.dim_param = str(dim)
    return value


def read_blob(value: onnx.ValueInfoProto, where: str) -> Blob:
    """The blob that a file declares. Raises PlanError, beginning with `where`, for a dtype or dimension that htrain
    does not know.
    """
    tensor = value.type.tensor_type
    if tensor.elem_type not in DTYPE_NAMES:
        raise PlanError(f"{where}: blob '{value.name}' has a dtype that htrain does not know ({tensor.elem_type})")
    shape = tuple(_read_dim(dim, f"{where}: blob '{value.name}'") for dim in tensor.shape.dim)
    return Blob(value.name, shape, DTYPE_NAMES[tensor.elem_type])


def _read_dim(dim: onnx.TensorShapeProto.Dimension, where: str) -> Dim:
    if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
        return dim.dim_value
    found = _DIM.fullmatch(dim.dim_param)
    if found is None:
        raise PlanError(f"{where}: dimension '{dim.dim_param or dim.dim_value}' is no number, nor like B, 10B, <=26B")
    return BatchDim(int(found[2] or 1), found[1] is not None)


def write_parameter(parameter: Parameter) -> onnx.ValueInfoProto:
    """A parameter as ONNX has it: a blob, whose metadata say the rest."""
    value = write_blob(parameter.blob)
    init = {"kind": parameter.init.kind, "arguments": parameter.init.arguments, "zero_rows": parameter.init.zero_rows}
    tags = {"kind": parameter.kind, "init": json.dumps(init), "of": parameter.of}
    first = {"first_row": str(parameter.first_row), "first_column": str(parameter.first_column)}
    annotate(value, {**tags, **first, "trained": str(parameter.trained)})
    return value


def read_parameter(value: onnx.ValueInfoProto, where: str) -> Parameter:
    """The parameter that a file declares. Raises PlanError, beginning with `where`, for one that htrain does not write."""
    where = f"{where}: parameter '{value.name}'"
    tags, blob = annotations(value, where), read_blob(value, where)
    shape = tuple(dim for dim in blob.shape if isinstance(dim, int))
    if set(tags) != _PARAMETER_TAGS or len(shape) != len(blob.shape):
        raise PlanError(f"{where}: wants sizes that are numbers, and the metadata {', '.join(sorted(_PARAMETER_TAGS))}")
    firsts = [tags["first_row"], tags["first_column"]]
    if tags["kind"] not in ("weight", "table", "state", "statistic", "cache") or not all(
        _NATURAL.fullmatch(first) for first in firsts
    ):
        raise PlanError(
            f"{where}: kind '{tags['kind'][:60]}', first row '{firsts[0][:60]}' or column '{firsts[1][:60]}' is unknown"
        )
    kind: Any = tags["kind"]
    init, trained = _read_init(tags["init"], where), tags["trained"] == "True"
    return Parameter(
        blob.name,
        shape,
        dtype=blob.dtype,
        kind=kind,
        init=init,
        of=tags["of"],
        first_row=int(firsts[0]),
        trained=trained,
        first_column=int(firsts[1]),
    )


def _read_init(text: str, where: str) -> Init:
    init = _read_json(text, where)
    fields = {"kind", "arguments", "zero_rows"}
    if not isinstance(init, dict) or set(init) != fields or init["kind"] not in list(_INIT_ARGUMENTS):
        raise PlanError(f"{where}: init {text[:80]!r} is not one that htrain writes")
    kind, arguments, rows = init["kind"], init["arguments"], init["zero_rows"]
    if not _numbers(arguments, float) or not _numbers(rows, int) or len(arguments) != _INIT_ARGUMENTS[kind]:
        raise PlanError(f"{where}: init {text[:80]!r} wants {_INIT_ARGUMENTS[kind]} finite arguments, and rows")
    return Init(kind, tuple(arguments), tuple(rows))


def _numbers(values: object, kind: type) -> bool:
    """Whether `values` is a list of finite numbers, ints or of `kind`."""
    known = isinstance(values, list) and all(isinstance(v, int | kind) and not isinstance(v, bool) for v in values)
    return known and all(abs(v) < float("inf") for v in values)  # type: ignore[attr-defined]


def _read_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{where}: metadata {text[:80]!r} is not JSON") from error


def annotate(proto: Any, tags: Mapping[str, str]) -> None:
    """Put `tags` into the metadata of a node or value, in the order of their keys."""
    for key in sorted(tags):
        proto.metadata_props.add(key=key, value=tags[key])


def annotations(proto: Any, where: str) -> dict[str, str]:
    """The metadata of a node or value. Raises PlanError, beginning with `where`, for a key that comes twice."""
    tags = {entry.key: entry.value for entry in proto.metadata_props}
    if len(tags) != len(proto.metadata_props):
        raise PlanError(f"{where}: says the same metadata twice")
    return tags

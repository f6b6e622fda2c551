"""A trained model as one ONNX file, with its weights and tables in it, or beside it where they are more than protobuf holds."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx
import torch

from htrain.errors import DataError
from htrain.executor.launch.forward import Trained
from htrain.exporting.graph import Graph
from htrain.exporting.lowering import lower
from htrain.exporting.safetensors_file import write_blocks
from htrain.exporting.wholes import Whole, load_wholes
from htrain.files import new_file, place_to_write, write_file
from htrain.net.blobs import numel
from htrain.net.names import head_name
from htrain.net.net import BatchDim, Blob, Net, Op, Parameter
from htrain.net.rewriting import only_needed
from htrain.onnx_format.forms import OPSET
from htrain.onnx_format.values import DTYPES

LOGIT, SCORE = "logit", "score"
_WRITTEN_BY = "htrain export"
_IR_VERSION = 10
_HEAD_BYTES = 64
_MOST_BYTES = 1_500_000_000  # of weights and tables in the model itself: protobuf takes 2 GiB in all
_ALIGNED = 4096  # where a tensor begins in the file beside it, so that runtimes can map it


@dataclass(frozen=True)
class _Value:
    """A weight, a part of one, or a whole table that the graph reads, by the name that it has there."""

    name: str
    parameter: Parameter
    whole: Whole

    @property
    def dtype(self) -> str:
        return _held(self.parameter.dtype)

    @property
    def num_bytes(self) -> int:
        return Blob("", self.parameter.shape, self.dtype).num_bytes(1)

    def blocks(self) -> Iterable[torch.Tensor]:
        """Its values, a block after another. Only a part of a weight is not read as it stands."""
        if self.parameter.shape == self.whole.shape:
            yield from (_as_held(block) for block in self.whole.blocks())
        else:
            first, column = self.parameter.first_row, self.parameter.first_column
            rows = self.whole.rows(first, first + self.parameter.shape[0])
            yield _as_held(rows[:, column : column + self.parameter.shape[1]] if rows.dim() > 1 else rows)


def _held(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype


def _as_held(block: torch.Tensor) -> torch.Tensor:
    return block.float() if block.dtype == torch.bfloat16 else block


@dataclass(frozen=True)
class Written:
    """The files of a model, the model's own first; how many weights, parts of weights and tables it reads; its inputs, such as `dense: float32[B,13]`, and
    its outputs: the score, and the model's heads."""

    files: tuple[Path, ...]
    tensors: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def write_onnx(trained: Trained, out: Path) -> Written:
    """Write the model's ONNX file to `out`, and where it is too large its weights and tables to `OUT.data`.

    Raises ModelError naming an op that has no form in ONNX, CheckpointError for a checkpoint that lacks something, DataError for a file that is there already,
    OSError where one cannot be written.
    """
    net, wholes = _net_of(trained), load_wholes(trained)
    graph, outputs = _graph_of(net, wholes, binary=trained.plan.options.loss == "bce")
    model = model_of(graph, outputs, trained.plan.model)
    values = [_value(net, name, wholes) for name in sorted(graph.read.difference(net.inputs))]
    inputs = tuple(str(net.blobs[name]) for name in net.inputs if name in graph.read)
    files: tuple[Path, ...] = (out,)
    if sum(value.num_bytes for value in values) > _MOST_BYTES:
        files = _write_apart(model, values, out)
    else:
        model.graph.initializer.extend(_inner(value) for value in values)
        write_file(out, model.SerializeToString(deterministic=True), is_exported)
    return Written(files, len(values), inputs, tuple(map(str, outputs)))


def _write_apart(model: onnx.ModelProto, values: Sequence[_Value], out: Path) -> tuple[Path, ...]:
    """Write the model, and its weights and tables beside it: both files, or none."""
    beside = out.with_name(f"{out.name}.data")
    for path in (out, beside):
        _require_new(path)
    model.graph.initializer.extend(_outer(values, beside.name))
    _write_beside(beside, values)
    try:
        write_file(out, model.SerializeToString(deterministic=True), is_exported)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise
    return out, beside


def is_exported(path: Path) -> bool:
    """Whether htrain exported a model to a file. Raises OSError."""
    with path.open("rb") as file:
        return _WRITTEN_BY.encode() in file.read(_HEAD_BYTES)


def _require_new(path: Path) -> None:
    """Two files cannot take the place of two others at one moment. Raises DataError, and OSError where a file cannot be written."""
    if path.exists():
        raise DataError(
            f"{path}: is there already, and a model with its weights beside it replaces none: remove it, or name another --out"
        )
    place_to_write(path, lambda found: False)


# -- the graph -------------------------------------------------------------------------------------------------------


def _net_of(trained: Trained) -> Net:
    """The ops that lead to the logit, its first output, and to the model's heads, with the inputs that they read."""
    forward = trained.forward
    names = (LOGIT, SCORE, *map(head_name, forward.outputs[2:]))
    needed = only_needed(replace(forward, outputs=forward.outputs[1:]))
    read = {name for op in needed.ops for name in op.inputs}
    inputs = tuple(name for name in needed.inputs if name in read)
    return _without_names(replace(needed, inputs=inputs).with_ops(needed.ops), names)


def _graph_of(net: Net, wholes: Mapping[str, Whole], *, binary: bool) -> tuple[Graph, list[Blob]]:
    """The graph, and its outputs. Raises ModelError as `lower` does."""
    graph = lower(net, lambda table, row: wholes[table].original(row))
    made = partial(graph.add, "Reshape", _output(graph, net.outputs[0]), graph.ints(-1))
    if binary:
        logit = made(output=graph.fresh(LOGIT))
        names = [logit, graph.add("Sigmoid", logit, output=graph.fresh(SCORE))]
    else:
        names = [made(output=graph.fresh(SCORE))]
    heads = [_head(graph, name) for name in net.outputs[1:]]
    return graph, [*(Blob(name, (BatchDim(),), "float32") for name in names), *heads]


def _output(graph: Graph, name: str) -> str:
    return graph.value(name, graph.net.producers().get(name, Op("Identity", (name,), ())))


def _head(graph: Graph, name: str) -> Blob:
    """A head as an output of the graph, by its name, or with a number behind it where an input has that."""
    shape = graph.net.blob(name).shape
    shape = shape[:1] if shape[1:] == (1,) else shape
    sizes = graph.ints(-1, *(numel((size,), 1) for size in shape[1:]))
    made = graph.add("Reshape", _output(graph, name), sizes, output=graph.fresh(head_name(name)))
    return Blob(made, (BatchDim(), *shape[1:]), "float32")


def model_of(graph: Graph, outputs: Sequence[Blob], name: str) -> onnx.ModelProto:
    """The model of a graph, without the parameters that it reads; its inputs are those of the net that it reads."""
    made = onnx.GraphProto(name=name, node=graph.nodes, initializer=graph.constants)
    made.input.extend(_declared(graph.blob(each)) for each in graph.net.inputs if each in graph.read)
    made.output.extend(map(_declared, outputs))
    model = onnx.ModelProto(ir_version=_IR_VERSION, producer_name=_WRITTEN_BY, graph=made)
    model.opset_import.add(domain="", version=OPSET)
    return model


def _without_names(net: Net, names: Sequence[str]) -> Net:
    """The net in which no value that an op makes is called so: outputs will be."""
    inner = {name: f"{name}:made" for name in names if name in net.blobs and name not in net.inputs}
    ops = [
        replace(
            op,
            inputs=tuple(inner.get(name, name) for name in op.inputs),
            outputs=tuple(inner.get(name, name) for name in op.outputs),
        )
        for op in net.ops
    ]
    renamed = [replace(net.blobs[old], name=new) for old, new in inner.items()]
    outputs = tuple(inner.get(name, name) for name in net.outputs)
    return replace(net, outputs=outputs).with_ops(ops, renamed)


def _value(net: Net, name: str, wholes: Mapping[str, Whole]) -> _Value:
    parameter = net.parameters.get(name)
    if parameter is None or parameter.kind == "table":
        return _Value(name, wholes[name].parameter, wholes[name])
    return _Value(name, parameter, wholes[parameter.whole])


def _declared(blob: Blob) -> onnx.ValueInfoProto:
    """An input or output: a batch's dimensions are free."""
    value = onnx.ValueInfoProto(name=blob.name)
    value.type.tensor_type.elem_type = DTYPES[blob.dtype]
    value.type.tensor_type.shape.SetInParent()
    for dim in blob.shape:
        entry = value.type.tensor_type.shape.dim.add()
        if isinstance(dim, int):
            entry.dim_value = dim
        else:
            entry.dim_param = f"N_{blob.name}" if dim.bound else str(dim)
    return value


# -- weights and tables ----------------------------------------------------------------------------------------------


def _header(value: _Value) -> onnx.TensorProto:
    return onnx.TensorProto(name=value.name, data_type=DTYPES[value.dtype], dims=value.parameter.shape)


def _inner(value: _Value) -> onnx.TensorProto:
    tensor = _header(value)
    tensor.raw_data = b"".join(
        block.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for block in value.blocks()
    )
    return tensor


def _outer(values: Sequence[_Value], file: str) -> Iterable[onnx.TensorProto]:
    offset = 0
    for value in values:
        tensor = _header(value)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, said in (("location", file), ("offset", str(offset)), ("length", str(value.num_bytes))):
            tensor.external_data.add(key=key, value=said)
        yield tensor
        offset += value.num_bytes + -value.num_bytes % _ALIGNED


def _write_beside(path: Path, values: Sequence[_Value]) -> None:
    with new_file(path, lambda found: False) as file:
        for value in values:
            write_blocks(file, value.blocks())
            file.write(bytes(-value.num_bytes % _ALIGNED))

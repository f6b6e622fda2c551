"""Ops that ONNX has, as it has them; operands are cast where torch promotes dtypes and ONNX does not."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from htrain.errors import ModelError
from htrain.exporting.graph import Graph
from htrain.net.net import Blob, Op
from htrain.onnx_format.forms import form_of
from htrain.onnx_format.schemas import attributes_of
from htrain.ops import OPS
from htrain.ops.base import dtype_of


def no_form(op: Op, seen: Sequence[Blob]) -> ModelError:
    """The error of an op that takes `seen`, which ONNX has no form for."""
    given = ", ".join(map(str, seen)) or "no input"
    return ModelError(
        f"{op.label}: has no form in ONNX for {given}: export --to torch, and serve the module, or write the model without this op"
    )


def add_native(graph: Graph, op: Op) -> bool:
    """Add the node of an op that ONNX has. False, and nothing added, where it has none for these operands."""
    return _add(graph, op, [graph.blob(name) for name in op.inputs]) or _add(graph, op, _promoted(graph, op))


def _add(graph: Graph, op: Op, inputs: Sequence[Blob]) -> bool:
    """Add the node with inputs of these dtypes."""
    found = form_of(op, inputs, [graph.blob(name) for name in op.outputs])
    if found is None:
        return False
    form, attrs, constants = found
    names = [_as(graph, name, blob.dtype, op) for name, blob in zip(op.inputs, inputs, strict=True)]
    names += [graph.tensor(value) for value in constants.values()]
    graph.add_many(form.type, names, op.outputs, attrs=attrs, kinds=attributes_of(op.type))
    return True


def operands(graph: Graph, op: Op) -> list[str]:
    """The inputs of an elementwise op, in the dtype in which torch computes."""
    return [_as(graph, blob.name, blob.dtype, op) for blob in _promoted(graph, op)]


def _as(graph: Graph, name: str, dtype: str, op: Op) -> str:
    value = graph.value(name, op)
    return value if graph.blob(name).dtype == dtype else graph.cast(value, dtype)


def _promoted(graph: Graph, op: Op) -> list[Blob]:
    """The inputs in the dtype in which torch computes: that of the output, or where this says yes or no, what the inputs have in common."""
    inputs = [graph.blob(name) for name in op.inputs]
    if OPS[op.type].indexed or not inputs:
        return inputs
    wanted = graph.blob(op.outputs[0]).dtype
    if wanted == "bool":
        logical = any(name.startswith("logical_") for name in OPS[op.type].aten)
        wanted = "bool" if logical else _common(inputs)
    kept = 1 if op.type == "Where" else 0  # the condition
    return [*inputs[:kept], *(replace(blob, dtype=wanted) for blob in inputs[kept:])]


def _common(inputs: Sequence[Blob]) -> str:
    """What torch promotes tensors to: those without dimensions count only where they are of another kind."""
    with_dims = [torch.empty([1] * len(blob.shape), dtype=dtype_of(blob.dtype)) for blob in inputs]
    dtype = with_dims[0].dtype
    for each in with_dims[1:]:
        dtype = torch.result_type(torch.empty([1] * max(x.dim() for x in with_dims), dtype=dtype), each)
    return str(dtype).removeprefix("torch.")

"""Which of a file's constants are embedding tables, which are weights, and which stay constants.

The rule, for a floating tensor that the file stores (an initializer, or the value of a Constant node):

- A table: two-dimensional, at least `table_rows` rows, and read by `Gather` along its first axis alone, with ids that
  depend on an input.
- A weight, which is trained: it reaches, perhaps through Transpose, Reshape or the like, an operand of Gemm, MatMul or
  Einsum, the scale or bias of LayerNormalization or BatchNormalization, the slope of PRelu, the data of a Gather, an
  operand of Add or Sub (a bias), or with more than one element an operand of Mul or Div (a scale).
- A constant: everything else. Scalars (no dimension, or one element in a Constant node), integers, booleans; an epsilon (one
  element, added right before Sqrt, Log, Pow, Reciprocal or a division); a mask (several dimensions of zeros and ones, or
  entries of at least 10^4 in size or infinite, in what is added); what feeds Where, Clip, Pad, a comparison.

A file of torch's newer exporter says which are parameters of the module and which are its buffers: these are weights, and constants, whatever reads them.
Names in `frozen` are weights that no optimizer step writes. Those that an exporter has merged are taken apart before
(htrain.frontend.onnx_merged).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from htrain.errors import ModelError
from htrain.net.net import Init, Parameter

DTYPES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.DOUBLE: "float64",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.INT64: "int64",
    ir.DataType.INT32: "int32",
    ir.DataType.INT8: "int8",
    ir.DataType.UINT8: "uint8",
    ir.DataType.BOOL: "bool",
}
_FLOATING = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_LARGE_BYTES = 1 << 30  # a larger table is not copied into a plan
_SAMPLED_BLOCKS, _BLOCK_ROWS = 32, 32  # neighbouring rows: a slow disk seeks once per block
_MASK_ENTRY = 1e4  # what is added to a logit to rule it out; weights are not as large
_MASK_ELEMENTS = 1 << 24  # a larger tensor is no mask

_OPERANDS = {
    "Gemm": (0, 1, 2),
    "MatMul": (0, 1),
    "Einsum": tuple(range(8)),
    "LayerNormalization": (1, 2),
    "BatchNormalization": (1, 2),
    "RMSNormalization": (1,),
    "PRelu": (1,),
    "Gather": (0,),
    "GatherND": (0,),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (1, 2, 3)),
}
_PASSING = frozenset(
    {
        "Identity",
        "Transpose",
        "Reshape",
        "Unsqueeze",
        "Squeeze",
        "Flatten",
        "Cast",
        "Expand",
        "Slice",
        "Split",
        "Concat",
        "Tile",
    }
)
_AFTER_EPSILON = frozenset({"Sqrt", "Log", "Pow", "Reciprocal"})


NOT_SAID: Mapping[str, bool] = {}
Use = tuple[ir.Node, int]


@dataclass(frozen=True)
class Stored:
    """A table or weight of the file: its declaration, and its values unless they are too large to carry.

    `transposed`: the file has w[K,N], htrain keeps w[N,K], as FC wants it.
    """

    parameter: Parameter
    values: torch.Tensor | None
    transposed: bool
    note: str = ""


def find_stored(
    constants: Sequence[ir.Value],
    nodes: Collection[ir.Node],
    dynamic: Collection[ir.Value],
    *,
    table_rows: int,
    frozen: Collection[str],
    trained: Mapping[str, bool] = NOT_SAID,
) -> dict[str, Stored]:
    """The tables and weights among `constants`, by name. `nodes` are those that the logit needs, `dynamic` the values that
    depend on an input, `trained` says of some whether they are parameters, whatever reads them. Raises ModelError for a frozen name that is no weight, and for
    data that cannot be read."""
    stored = {}
    for value in constants:
        uses = [(use.node, use.idx) for use in value.uses() if use.node in nodes]
        name = str(value.name)
        if _is_table(value, uses, dynamic, table_rows):
            stored[name] = _table(value, trained=trained.get(name, True))
        elif uses and is_floating(value) and (name in frozen or _is_said(name, value, uses, nodes, trained)):
            stored[name] = _weight(value, uses, trained=name not in frozen)
    for name in sorted(set(frozen) - set(stored)):
        raise ModelError(f"'{name}' cannot be frozen: it is not a weight that the logit depends on")
    return stored


def _is_said(
    name: str, value: ir.Value, uses: Sequence[Use], nodes: Collection[ir.Node], trained: Mapping[str, bool]
) -> bool:
    return trained[name] if name in trained else is_weight(value, uses, nodes)


def array_of(value: ir.Value) -> NDArray[Any]:
    """The values of a constant; memory-mapped where they stand in a file of their own. Raises ModelError."""
    tensor = value.const_value
    assert tensor is not None
    try:
        array = tensor.numpy()
        if isinstance(tensor, ir.ExternalTensor) and array.size:
            return np.memmap(tensor.path, array.dtype, mode="c", offset=tensor.offset or 0, shape=array.shape)
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"the data of '{value.name}' cannot be read: {str(error).splitlines()[0]}") from error
    return array


def is_floating(value: ir.Value) -> bool:
    """Whether the file stores a tensor of floating-point numbers as this value."""
    return value.const_value is not None and value.const_value.dtype in _FLOATING


def _shape(value: ir.Value) -> tuple[int, ...]:
    assert value.const_value is not None
    return tuple(int(d) for d in value.const_value.shape)


def _is_table(
    value: ir.Value, uses: Sequence[tuple[ir.Node, int]], dynamic: Collection[ir.Value], table_rows: int
) -> bool:
    shape = _shape(value)
    if not uses or not is_floating(value) or len(shape) != 2 or shape[0] < table_rows:
        return False
    return all(_looks_up(node, index) and node.inputs[1] in dynamic for node, index in uses)


def _looks_up(node: ir.Node, index: int) -> bool:
    """Whether a node takes whole rows of the matrix that is its input `index`: Gather, or GatherND by single places (`table[ids]` of a module)."""
    if index or node.op_type not in ("Gather", "GatherND"):
        return False
    if node.op_type == "Gather":
        return node.attributes.get_int("axis", 0) % 2 == 0
    ids = node.inputs[1]
    maker = ids.producer() if ids is not None else None
    if node.attributes.get_int("batch_dims", 0) or maker is None or maker.op_type != "Unsqueeze":
        return False
    axes = maker.inputs[1] if len(maker.inputs) > 1 else None
    return axes is not None and axes.const_value is not None and axes.const_value.numpy().tolist() == [-1]


def is_weight(value: ir.Value, uses: Sequence[tuple[ir.Node, int]], nodes: Collection[ir.Node]) -> bool:
    """Whether a stored value is a weight by the rule above; `uses` are the nodes that read it, each with the number of
    the input.
    """
    shape = _shape(value)
    size = int(np.prod(shape))
    if not shape or not size or (size == 1 and not value.is_initializer()):
        return False
    operand = any(index in _OPERANDS.get(node.op_type, ()) for node, index in uses)
    return any(_trains(node, index, size, nodes) for node, index in uses) and not _is_mask(value, added=not operand)


def _trains(node: ir.Node, index: int, size: int, nodes: Collection[ir.Node]) -> bool:
    """Whether a constant of `size` elements is a weight as input `index` of `node`."""
    if node.op_type in ("Mul", "Div"):
        return size > 1
    consumers = [(use.node, use.idx) for output in node.outputs for use in output.uses() if use.node in nodes]
    if node.op_type in ("Add", "Sub"):
        return size > 1 or not any(_takes_epsilon(consumer, position) for consumer, position in consumers)
    if node.op_type in _PASSING:
        return any(_trains(consumer, position, size, nodes) for consumer, position in consumers)
    return index in _OPERANDS.get(node.op_type, ())


def _takes_epsilon(node: ir.Node, index: int) -> bool:
    return node.op_type in _AFTER_EPSILON or (node.op_type == "Div" and index == 1)


def _is_mask(value: ir.Value, *, added: bool) -> bool:
    """Whether its entries are those of a mask; one that is added has large or infinite ones, as no weight that can be trained."""
    if np.prod(_shape(value)) > _MASK_ELEMENTS:
        return False
    array = array_of(value).astype(np.float32)
    if np.isnan(array).any():  # no weight either: it is refused by name
        return False
    if added and np.any(np.abs(array) >= _MASK_ENTRY):
        return True
    return (
        array.ndim > 1
        and bool(np.all((array == 0) | (array == 1)))
        and bool(np.any(array == 0))
        and bool(np.any(array == 1))
    )


def _weight(value: ir.Value, uses: Sequence[tuple[ir.Node, int]], *, trained: bool) -> Stored:
    shape, values = _shape(value), _tensor(array_of(value))
    transposed = len(shape) == 2 and all(_wants_transposed(node, index) for node, index in uses)
    if transposed:
        shape, values = shape[::-1], values.t()
    dtype = str(values.dtype).removeprefix("torch.")
    return Stored(Parameter(str(value.name), shape, dtype, "weight", Init("file"), trained=trained), values, transposed)


def _wants_transposed(node: ir.Node, index: int) -> bool:
    gemm = node.op_type == "Gemm" and not node.attributes.get_int("transB", 0)
    return index == 1 and (node.op_type == "MatMul" or gemm)


def _table(value: ir.Value, *, trained: bool) -> Stored:
    """A table is float32 here: its hot loops are. One of more than 1 GiB keeps only the spread of its values."""
    name, shape, array = str(value.name), _shape(value), array_of(value)
    if array.nbytes <= _LARGE_BYTES:
        return Stored(
            Parameter(name, shape, "float32", "table", Init("file"), trained=trained),
            _tensor(array).float(),
            transposed=False,
        )
    starts = np.linspace(0, max(shape[0] - _BLOCK_ROWS, 0), _SAMPLED_BLOCKS, dtype=np.int64)
    rows = np.minimum(starts[:, None] + np.arange(_BLOCK_ROWS), shape[0] - 1).ravel()
    sample = array[rows].astype(np.float64)
    mean, std = float(sample.mean()), float(sample.std())
    note = (
        f"table '{name}' has {array.nbytes / 2**30:.1f} GiB, which a plan does not carry: "
        f"it starts from normal({mean:.3g}, {std:.3g}), measured on {len(rows)} of its rows"
    )
    return Stored(
        Parameter(name, shape, "float32", "table", Init("normal", (mean, std)), trained=trained),
        None,
        transposed=False,
        note=note,
    )


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """The array as a torch tensor, without a copy where the values are memory-mapped."""
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array if isinstance(array, np.memmap) else np.array(array))

"""An ONNX graph in the making: nodes in run order, constants, and where the values of a net are found in it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import onnx
import torch

from htrain.errors import ModelError
from htrain.net.net import Attr, BatchDim, Blob, Net, Op, Shape, Tensor
from htrain.onnx_format.values import DTYPES, write_attribute, write_tensor
from htrain.ops.base import constant_of, dtype_of

NO_ATTRS: Mapping[str, Attr] = {}
NO_KINDS: Mapping[str, type] = {}


class Graph:
    """Nodes for the ops of `net`. Values of bfloat16 are held as float32 that are rounded to it: few runtimes compute in it.

    `row_number` gives the number that a row of a table has in the model.
    """

    def __init__(self, net: Net, row_number: Callable[[str, int], int]) -> None:
        self.net, self.row_number = net, row_number
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.tables: dict[str, str] = {}  # of a value that is distinct rows of a table: the table, whole
        self.padded: set[str] = set()  # values with numbers of rows, -1 where the row counts for nothing
        self.read: set[str] = set()  # inputs and parameters that nodes read
        self._names: dict[str, str] = {}
        self._dropped: set[str] = set()
        self._taken = {*net.blobs, *net.parameters, *(p.whole for p in net.parameters.values())}
        self._batch = ""

    # -- values of the net -------------------------------------------------------------------------------------------

    def blob(self, name: str) -> Blob:
        """A value of the net as it is held here."""
        blob = self.net.blob(name)
        return replace(blob, dtype="float32") if blob.dtype == "bfloat16" else blob

    def value(self, name: str, op: Op) -> str:
        """Where `op` finds a value of the net. Raises ModelError for distinct ids and rows, which are not made here."""
        if name in self.tables or name in self._dropped:
            raise ModelError(f"{op.label}: reads '{name}', rows that were made distinct: this has no form in ONNX")
        found = self._names.get(name, name)
        if found in self.net.inputs or found in self.net.parameters:
            self.read.add(found)
        return found

    def table(self, name: str, op: Op) -> str:
        """The whole table that a value has distinct rows of. Raises ModelError for rows that were computed."""
        if name not in self.tables:
            raise ModelError(f"{op.label}: reads rows '{name}', which are no table's: this has no form in ONNX")
        self.read.add(self.tables[name])
        return self.tables[name]

    def read_whole(self, parameter: str) -> str:
        """The table that a parameter is, or is a shard of, to be read."""
        self.read.add(self.whole(parameter))
        return self.whole(parameter)

    def whole(self, parameter: str) -> str:
        """The table that a parameter is, or is a shard of."""
        return self.net.parameters[parameter].whole

    def alias(self, output: str, name: str) -> None:
        """A value of the net is the one called `name` here."""
        self._names[output] = name

    def drop(self, output: str) -> None:
        """A value of the net is distinct ids, which nothing here may read."""
        self._dropped.add(output)

    def is_dropped(self, name: str) -> bool:
        """Whether a value of the net is distinct ids."""
        return name in self._dropped

    # -- nodes -------------------------------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """A name that is free."""
        name, number = stem, 0
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name

    def add(self, type: str, *inputs: str, attrs: Mapping[str, Attr] = NO_ATTRS, output: str = "") -> str:
        """Append a node; the name of its output."""
        return self.add_many(type, inputs, (output or self.fresh(type.lower()),), attrs=attrs)[0]

    def add_many(
        self,
        type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        attrs: Mapping[str, Attr] = NO_ATTRS,
        kinds: Mapping[str, type] = NO_KINDS,
    ) -> Sequence[str]:
        """Append a node of several outputs; their names. `kinds` are those of attributes that Python cannot tell: a float that is a whole number."""
        attributes = [write_attribute(name, attrs[name], kinds.get(name, object)) for name in sorted(attrs)]
        self.nodes.append(onnx.NodeProto(op_type=type, input=inputs, output=outputs, attribute=attributes))
        return outputs

    def tensor(self, value: Tensor) -> str:
        """A constant; its name."""
        name = self.fresh("constant")
        self.constants.append(write_tensor(value, name))
        return name

    def constant(self, value: torch.Tensor) -> str:
        """The same of a torch tensor."""
        return self.tensor(constant_of(value))

    def ints(self, *values: int) -> str:
        """A list of numbers, int64[n]."""
        return self.constant(torch.tensor(values, dtype=torch.int64))

    def scalar(self, value: float, dtype: str) -> str:
        """One number."""
        return self.constant(torch.tensor(value, dtype=dtype_of(dtype)))

    def cast(self, name: str, dtype: str, output: str = "") -> str:
        """A value in another dtype."""
        return self.add("Cast", name, attrs={"to": DTYPES[dtype]}, output=output)

    def rounded(self, name: str, output: str = "") -> str:
        """float32 that are rounded to bfloat16."""
        return self.cast(self.cast(name, "bfloat16"), "float32", output)

    def dims(self, shape: Sequence[int], op: Op) -> str:
        """A shape, int64[n], of which an entry -k is k times the batch size. Raises ModelError where nothing tells that."""
        if min(shape, default=0) >= 0:
            return self.ints(*shape)
        parts = [self.ints(d) if d >= 0 else self.add("Mul", self._batch_size(op), self.ints(-d)) for d in shape]
        return self.add("Concat", *parts, attrs={"axis": 0})

    def _batch_size(self, op: Op) -> str:
        """int64[1]: the batch size, of an input that has it as a dimension."""
        if not self._batch:
            name, axis = _with_batch(self.net, op)
            self.read.add(name)
            self._batch = self.add("Shape", name, attrs={"start": axis, "end": axis + 1})
        return self._batch


def _with_batch(net: Net, op: Op) -> tuple[str, int]:
    for name in net.inputs:
        shape: Shape = net.blobs[name].shape
        if BatchDim() in shape:
            return name, shape.index(BatchDim())
    raise ModelError(f"{op.label}: wants the batch size, which no input of the model tells: this has no form in ONNX")

"""The net: ops in run order over named blobs; frozen values, compared by value (docs/decisions/net.md).

A `Net` is what every pass takes and returns. A blob is a named tensor, written once, before it is read. A parameter is a
named tensor that outlives a step; ops reach it by name like any input, and only ops with effects write it. Tables are
parameters that are never allocated here.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from htrain.net.blobs import DTYPE_BYTES, B, BatchDim, Blob, Dim, Shape, Tensor, numel

__all__ = [
    "COMPRESS", "DTYPE_BYTES", "Attr", "B", "BatchDim", "Blob", "Dim", "Init", "Net", "Op", "Parameter", "Shape", "Tensor", "numel",
]  # fmt: skip

COMPRESS = "compress"  # the module of ops that encode and decode values on their way between devices
Attr = int | float | str | bool | tuple | Tensor


@dataclass(frozen=True)
class Init:
    """How a parameter gets its first value: `constant(value)`, `uniform(low, high)`, `normal(mean, std)`, or `file`,
    a tensor of that name in the plan's `params/`. `zero_rows` are set to 0 afterwards (a padding row)."""

    kind: Literal["constant", "uniform", "normal", "file"]
    arguments: tuple[float, ...] = ()
    zero_rows: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(f'{a:g}' for a in self.arguments)})"


@dataclass(frozen=True)
class Parameter:
    """A tensor that outlives a step. `kind`: a dense `weight`, an embedding `table`, the optimizer's `state` of the
    parameter `of`, a running `statistic` that forward ops write (of a batch norm), or a `cache`: what an executor keeps for the rows of tables, empty at
    first and never saved. A row shard of a table
    holds rows `first_row ...` of the table `of`, and a part of an FC's weight rows `first_row ...`
    and columns `first_column ...` of the weight `of`; both are 0 otherwise.
    `trained` is False for what no optimizer step writes (a buffer, a frozen weight)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Literal["weight", "table", "state", "statistic", "cache"]
    init: Init
    of: str = ""
    first_row: int = 0
    trained: bool = True
    first_column: int = 0

    @property
    def whole(self) -> str:
        """The parameter that this one is a part of: itself where it is whole."""
        return self.of if self.of and self.kind != "state" else self.name

    @property
    def blob(self) -> Blob:
        """The parameter as ops see it: name, shape and dtype."""
        return Blob(self.name, self.shape, self.dtype)

    @property
    def is_replicated(self) -> bool:
        """Whether each group has one of its own, which it changes: a dense weight that is trained, or a statistic."""
        return self.kind == "statistic" or (self.kind == "weight" and self.trained)

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return numel(self.shape, 1) * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        trained = "" if self.trained or self.kind in ("state", "statistic", "cache") else " frozen"
        return f"{self.kind} {self.blob} {self.init}{trained}"


@dataclass(frozen=True)
class Op:
    """One operator. `node_name` is its tag: the device that runs it. `module` names the unit that is placed together
    (an FC, its gradient, its optimizer step; HT 3.2.1)."""

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    node_name: str = ""
    module: str = ""

    def __str__(self) -> str:
        attrs = [f"{key}={_attr_text(self.attrs[key])}" for key in sorted(self.attrs)]
        call = f"{self.type}({', '.join([*self.inputs, *attrs])})"
        return f"{', '.join(self.outputs)} = {call}" if self.outputs else call

    @property
    def label(self) -> str:
        """How messages name this op: its type and where it comes from."""
        place = f"module '{self.module}'" if self.module else "the model itself"
        return f"{self.type} '{self.outputs[0] if self.outputs else self.inputs[0]}' of {place}"


def _attr_text(value: Attr) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_attr_text, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Net:
    """Ops in run order. `blobs` holds every blob but the parameters, inputs included, by name; `inputs` come from the
    reader or another device's net, `outputs` are what a caller wants to see."""

    name: str
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    blobs: Mapping[str, Blob]
    parameters: Mapping[str, Parameter]

    def blob(self, name: str) -> Blob:
        """The blob or parameter called `name`. Raises KeyError."""
        parameter = self.parameters.get(name)
        return parameter.blob if parameter else self.blobs[name]

    def producers(self) -> dict[str, Op]:
        """The op that writes each blob; inputs and parameters have none."""
        return {output: op for op in self.ops for output in op.outputs}

    def with_ops(self, ops: Iterable[Op], new_blobs: Iterable[Blob] = ()) -> "Net":
        """This net with other ops, `new_blobs` added, and the blobs and parameters that nothing names any more left out."""
        ops = tuple(ops)
        used = {name for op in ops for name in (*op.inputs, *op.outputs)} | set(self.inputs) | set(self.outputs)
        blobs = {**self.blobs, **{blob.name: blob for blob in new_blobs}}
        return replace(
            self,
            ops=ops,
            blobs={name: blob for name, blob in blobs.items() if name in used},
            parameters={name: p for name, p in self.parameters.items() if name in used},
        )

    def holds_rows(self, parameter: Parameter) -> bool:
        """Whether it is a table, or the optimizer's state of one."""
        owner = self.parameters.get(parameter.of) if parameter.kind == "state" else parameter
        return owner is not None and owner.kind == "table"

    def text(self) -> str:
        """The net as text: one line per parameter, input and op, tags first."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"net {self.name}"
        for parameter in self.parameters.values():
            yield f"  {parameter}"
        for name in self.inputs:
            yield f"  input {self.blobs[name]}"
        for op in self.ops:
            outputs = ", ".join(str(self.blobs[o]) for o in op.outputs)
            call = str(replace(op, outputs=()))
            tag = f"[{op.node_name or '?'} | {op.module}] "
            yield f"  {tag}{outputs} = {call}" if outputs else f"  {tag}{call}"
        yield f"  output {', '.join(self.outputs)}"

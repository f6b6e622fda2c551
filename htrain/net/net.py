"""The net: ops in run order over named blobs; frozen values, compared by value (docs/decisions/net.md).

A `Net` is what every pass takes and returns. A blob is a named tensor, written once, before it is read. A parameter is a
named tensor that outlives a step; ops reach it by name like any input, and only ops with effects write it. Tables are
parameters that are never allocated here.

Dimensions are ints, or `BatchDim`: a multiple of the batch size B, exact ("10B") or an upper bound that only the data
decides ("<=26B", the length of a list of deduplicated ids).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from htrain.errors import ModelError


@dataclass(frozen=True, order=True)
class BatchDim:
    """`per_example * B`, or at most that when `bound`."""

    per_example: int = 1
    bound: bool = False

    def __str__(self) -> str:
        return ("<=" if self.bound else "") + ("" if self.per_example == 1 else str(self.per_example)) + "B"

    def at(self, batch_size: int) -> int:
        return self.per_example * batch_size


COMPRESS = "compress"  # the module of ops that encode and decode values on their way between devices
Dim = int | BatchDim
Shape = tuple[Dim, ...]
B = BatchDim()


def numel(shape: Shape, batch_size: int) -> int:
    """Elements of a tensor of `shape` at `batch_size`; for a bound, the upper bound."""
    total = 1
    for dim in shape:
        total *= dim if isinstance(dim, int) else dim.at(batch_size)
    return total


DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class Blob:
    """A named tensor of a net: its shape and dtype."""

    name: str
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{','.join(map(str, self.shape))}]"

    def num_bytes(self, batch_size: int) -> int:
        return numel(self.shape, batch_size) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Tensor:
    """A small constant tensor held in an attribute: dtype, shape and its bytes in C order (little-endian)."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __str__(self) -> str:
        return f"<{self.dtype}[{','.join(map(str, self.shape))}]>"


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
    parameter `of`, or a `cache`: what an executor keeps for the rows of tables, empty at first and never saved. A row shard of a table
    holds rows `first_row ...` of the table `of`, and a part of an FC's weight rows `first_row ...`
    and columns `first_column ...` of the weight `of`; both are 0 otherwise.
    `trained` is False for what no optimizer step writes (a buffer, a frozen weight)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Literal["weight", "table", "state", "cache"]
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
        return Blob(self.name, self.shape, self.dtype)

    @property
    def num_bytes(self) -> int:
        return numel(self.shape, 1) * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        trained = "" if self.trained or self.kind in ("state", "cache") else " frozen"
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

    def leading_to(self, names: Iterable[str]) -> set[int]:
        """The positions of the ops that the blobs `names` are made by, from the inputs on."""
        places = {output: place for place, op in enumerate(self.ops) for output in op.outputs}
        found: set[int] = set()
        pending = [places[name] for name in names if name in places]
        while pending:
            place = pending.pop()
            if place not in found:
                found.add(place)
                pending += [places[name] for name in self.ops[place].inputs if name in places]
        return found

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


def only_needed(net: Net) -> Net:
    """The net without the ops and parameters that its outputs do not depend on; inputs stay, they are what the reader gives."""
    producers = net.producers()
    needed: set[int] = set()
    pending = list(net.outputs)
    while pending:
        op = producers.get(pending.pop())
        if op is not None and id(op) not in needed:
            needed.add(id(op))
            pending.extend(op.inputs)
    return net.with_ops(op for op in net.ops if id(op) in needed)


def as_made(train: Net) -> Net:
    """The train net in which readers see a value as its maker made it, not what an encoding keeps of it."""
    made: dict[str, str] = {}
    ops = []
    for op in train.ops:
        if op.module == COMPRESS:
            made.update({output: made.get(op.inputs[0], op.inputs[0]) for output in op.outputs})
        else:
            ops.append(replace(op, inputs=tuple(made.get(name, name) for name in op.inputs)))
    return train.with_ops(ops)


def check(net: Net) -> Net:
    """`net` itself, if its names hold together; else ModelError naming the op (docs/decisions/net.md).

    Ensures: every blob is written once, before it is read; every name is declared; no blob has a parameter's name.
    """
    known = set(net.parameters) | set(net.inputs)
    for name in net.inputs:
        if name not in net.blobs:
            raise ModelError(f"net '{net.name}': input '{name}' is not declared")
    for op in net.ops:
        for name in op.inputs:
            if name not in known:
                raise ModelError(f"net '{net.name}': {op.label} reads '{name}' before anything writes it")
        for name in op.outputs:
            if name in known:
                raise ModelError(f"net '{net.name}': {op.label} writes '{name}', which is already written")
            if name not in net.blobs:
                raise ModelError(f"net '{net.name}': {op.label} writes '{name}', which is not declared")
            known.add(name)
    for name in net.outputs:
        if name not in known:
            raise ModelError(f"net '{net.name}': nothing writes its output '{name}'")
    return net

"""What an op is: its kernel, shapes, cost, gradient and effects, in one value (`OpDef`).

Kernels are functions of tensors, with the op's attributes as keywords. `infer` gives the outputs' shapes and dtypes; the
stock one runs the kernel on the meta device at two batch sizes, so a torch kernel needs no shape rule of its own.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from htrain.errors import ModelError
from htrain.net.net import Attr, BatchDim, Blob, Dim, Net, Op, Shape, Tensor, numel
from htrain.ops.expectation import ExpectedRule, most_rows

UNFIT = (RuntimeError, ValueError, IndexError, OverflowError, MemoryError)  # by kernels of ids as large as markers are


class Builder(Protocol):
    """What a gradient rule needs of the net it writes to; `htrain.ops.builder.NetBuilder` is one."""

    def add(
        self,
        type: str,
        inputs: Iterable[str],
        *,
        attrs: Mapping[str, Attr] = ...,
        module: str = ...,
        outputs: Sequence[str] = ...,
    ) -> tuple[str, ...]:
        """Append an op and return the names of its outputs: fresh ones, or `outputs`."""

    def blob(self, name: str) -> Blob:
        """The blob or parameter called `name`."""

    def gradient_name(self, blob: str) -> str:
        """A name that is free, for a gradient of a blob."""


@dataclass(frozen=True)
class Cost:
    """What one run of an op costs: multiply-add counts as 2 `flops`; `bytes` are read plus written. `keys` are found in an index: one costs as much as finding
    the slot of a row in a large cache does, and what is done with the row besides counts as so many keys more."""

    flops: float
    bytes: float
    keys: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes, self.keys + other.keys)


Work = Literal[
    "gemm", "gemm_bf16", "gemm_int8", "batched", "stream", "gather", "scatter", "quantize", "message", "none"
]
Signature = tuple[Shape, str]  # shape and dtype of one output
InferRule = Callable[["OpDef", Op, Sequence[Blob]], Sequence[Signature]]
CostRule = Callable[[Op, Sequence[Blob], Sequence[Blob], int], Cost]
KeepRule = Callable[[Op, Sequence[Blob], int], float]
GradientRule = Callable[[Builder, Op, Sequence[str], Sequence[bool]], Sequence[str]]
Place = Literal["module", "reader", "workers"]
Phase = Literal["announce", "ask", "prepare", "take", "compute", "push"]
Transfer = Literal["", "send", "receive", "signal"]
RowRead = tuple[str, str, str]  # the table, or a shard of it, the ids, and the rows that are read by them
ReadsRule = Callable[[Op], Sequence[RowRead]]
ChangesRule = Callable[[Op], Sequence["RowChange"]]
AttributeTypes = Mapping[str, type]
NamesRule = Callable[[Op], Sequence[str]]
BundlesRule = Callable[[Op], Sequence[tuple[str, ...]]]
EvaluationRule = Callable[[Op, Net], Mapping[str, str]]
InsteadRule = Callable[[Op], Op]
LoopsRule = Callable[[Op], Sequence[Any]]


@dataclass(frozen=True)
class RowChange:
    """Rows of one table that an op changes, and no others: those of `ids`, or of a `column` of ids[B,C]. `tensors` are the table, or a shard of it, whose first
    row has the id `first_row`, and those of its states that have a row for each of its rows."""

    tensors: tuple[str, ...]
    ids: str
    first_row: int = 0
    column: int | None = None


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a blob's dtype name."""
    return getattr(torch, name)


def infer_by_kernel(definition: "OpDef", op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    """Output shapes, found by running the kernel on the meta device at two batch sizes.

    Raises ModelError naming the op when the kernel refuses its inputs or an output does not scale with the batch.
    """
    bounds = {d.per_example for blob in inputs for d in blob.shape if isinstance(d, BatchDim) and d.bound}
    if bounds:
        try:
            return _probed(definition, op, inputs, _APART, bounds)
        except ModelError:  # a kernel that takes no less than there may be
            pass
    return _probed(definition, op, inputs, _ALIKE, bounds)


_Probes = tuple[tuple[int, int], tuple[int, int]]
# What stands for the batch, and for it in a bound. Primes, so that no product of a model's own dimensions is taken for a multiple of them.
_ALIKE: _Probes = ((1009, 1009), (2003, 2003))
_APART: _Probes = ((1009, 769), (2003, 1511))


def _probed(
    definition: "OpDef", op: Op, inputs: Sequence[Blob], probes: _Probes, bounds: Collection[int]
) -> Sequence[Signature]:
    small, large = (_run_on_meta(definition, op, inputs, *probe) for probe in probes)
    pairs = zip(small, large, strict=True)
    return [(_symbolic_shape(op, a, b, probes, bounds), str(a.dtype).removeprefix("torch.")) for a, b in pairs]


def _run_on_meta(
    definition: "OpDef", op: Op, inputs: Sequence[Blob], batch_size: int, bounded: int
) -> Sequence[torch.Tensor]:
    tensors = [
        torch.empty(
            [d if isinstance(d, int) else d.at(bounded if d.bound else batch_size) for d in blob.shape],
            dtype=dtype_of(blob.dtype),
            device="meta",
        )
        for blob in inputs
    ]
    extra = {"batch": batch_size} if definition.needs_batch else {}
    try:
        outputs = definition.kernel(*tensors, **op.attrs, **extra)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        seen = ", ".join(f"{b.dtype}[{','.join(map(str, b.shape))}]" for b in inputs)
        raise ModelError(f"{op.label}: does not take {seen}: {str(error).splitlines()[0]}") from error
    if not definition.effects and any(x._version for x in tensors):
        raise ModelError(
            f"{op.label}: its kernel changes an input in place, which others may read: have it make a tensor of its own"
        )
    return outputs if definition.many else (outputs,)


def _symbolic_shape(
    op: Op, small: torch.Tensor, large: torch.Tensor, probes: _Probes, bounds: Collection[int]
) -> Shape:
    return tuple(_symbolic_dim(op, pair, probes, bounds) for pair in zip(small.shape, large.shape, strict=True))


def _symbolic_dim(op: Op, sizes: tuple[int, int], probes: _Probes, bounds: Collection[int]) -> Dim:
    """So many times the batch, and so many times what stands for it in a bound; where these were alike, what scales as a bound does is one."""
    small, large = sizes
    if small == large:
        return small
    (batch, bounded), (larger, larger_bounded) = probes
    if batch == bounded:
        (exact, rest), times = divmod(small, batch), 0
        fits = not rest and exact * larger == large
    else:
        determinant = batch * larger_bounded - larger * bounded
        exact, rest = divmod(small * larger_bounded - large * bounded, determinant)
        times, of_bound = divmod(batch * large - larger * small, determinant)
        fits = not rest and not of_bound and exact >= 0 and times >= 0
    if not fits:
        raise ModelError(
            f"{op.label}: an output dimension is {small} at batch {batch} and {large} at {larger}: not a multiple"
        )
    return BatchDim(exact + times, bound=times > 0 or (batch == bounded and exact in bounds))


def elementwise_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The stock cost: one flop per element of the largest operand, and every operand read or written once."""
    operands = (*inputs, *outputs)
    flops = max((numel(b.shape, batch_size) for b in operands), default=0)
    return Cost(float(flops), float(sum(b.num_bytes(batch_size) for b in operands)))


def keeps_nothing(op: Op, inputs: Sequence[Blob], batch_size: int) -> float:
    """The rule of an op that keeps nothing between steps beside its parameters."""
    return 0.0


def no_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The cost of a view: nothing is computed or copied."""
    return Cost(0.0, 0.0)


def reads_no_rows(op: Op) -> Sequence[RowRead]:
    """The rule of an op that takes no rows out of a table."""
    return ()


def changes_untold(op: Op) -> Sequence[RowChange]:
    """The rule of an op that says nothing of rows: what it writes to may change anywhere."""
    return ()


def changes_rows(op: Op) -> Sequence[RowChange]:
    """That of a step on rows of one table, `op(table, state, .., ids, gradients)`."""
    return (RowChange(op.inputs[:-2], op.inputs[-2], _first_row(op)),)


def changes_by_columns(op: Op, tables: Sequence[str], ids: str) -> Sequence[RowChange]:
    """That of a step on rows of several tables, each by one of the op's `columns` of ids[B,C]."""
    columns = op.attrs["columns"]
    assert isinstance(columns, tuple)
    return [RowChange((table,), ids, column=int(column)) for table, column in zip(tables, columns, strict=True)]


def _first_row(op: Op) -> int:
    first_row = op.attrs.get("first_row", 0)
    assert isinstance(first_row, int)
    return first_row


def no_bundles(op: Op) -> Sequence[tuple[str, ...]]:
    """The rule of an op that takes each of its inputs by itself."""
    return ()


def no_loops(op: Op) -> Sequence[Any]:
    """None that is worth to be compiled ahead."""
    return ()


def runs(*loops: Any) -> LoopsRule:
    """The rule of a kernel that runs these loops, whatever its op's attributes are."""
    return lambda op: loops


def asked_for_nothing(op: Op) -> Sequence[str]:
    """The rule of an op by which no device is asked for rows."""
    return ()


def stays(op: Op, net: Net) -> Mapping[str, str]:
    """The rule of an op that evaluation runs as training does."""
    return {}


def as_it_is(op: Op) -> Op:
    """The rule of an op that evaluation runs as training does, by itself."""
    return op


def gradient_names(builder: Builder, op: Op, positions: Iterable[int]) -> tuple[str, ...]:
    """Fresh names for the gradients of the inputs at `positions`; an input that comes twice has one for each place."""
    once = {name for name in op.inputs if op.inputs.count(name) == 1}
    stems = [op.inputs[i] if op.inputs[i] in once else f"{op.inputs[i]}_part{i}" for i in positions]
    return tuple(builder.gradient_name(stem) for stem in stems)


def gradient_like_input(builder: Builder, op: Op, dy: str, position: int) -> str:
    """`dy`, summed over the dimensions along which input `position` was broadcast, in the input's dtype."""
    source, target = builder.blob(dy), builder.blob(op.inputs[position])
    if source.shape != target.shape:
        names = (builder.gradient_name(target.name),)
        return builder.add("SumLike", (dy, target.name), module=op.module, outputs=names)[0]
    if source.dtype != target.dtype:
        return builder.add("Cast", (dy,), attrs={"to": target.dtype}, module=op.module)[0]
    return dy


def vjp_gradient(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """The generic rule: `<Op>Gradient` differentiates the op's kernel (docs/decisions/net.md)."""
    floating = [builder.blob(name).dtype.startswith(("float", "bfloat")) for name in op.inputs]
    wrt = tuple(i for i, want in enumerate(wanted) if want and floating[i])
    given = tuple(i for i, dy in enumerate(dys) if dy)
    attrs: dict[str, Attr] = {**op.attrs, "num_inputs": len(op.inputs), "wrt": wrt, "given": given}
    inputs = (*op.inputs, *(dys[i] for i in given))
    names = gradient_names(builder, op, wrt)
    grads = iter(builder.add(op.type + "Gradient", inputs, attrs=attrs, module=op.module, outputs=names))
    return [next(grads) if i in wrt else "" for i in range(len(op.inputs))]


@dataclass(frozen=True)
class OpDef:
    """An operator's definition: what it computes, and what others must know of it (docs/decisions/op-traits.md).

    What it computes:
    `kernel` takes the inputs, and the attributes as keywords. It gives the one output, or None where there is none; with `many`, always a tuple.
    `infer` and `cost` are of shapes alone. `gradient` is None for what has no derivative (ids, comparisons, effects).
    `needs_batch`: the kernel takes the batch size as keyword `batch`. `attributes` are their names and types, where the kernel does not declare them.
    `bind`, where there is one, takes the inputs whose values are known before any step, parameters and constants, and None for the others, and gives
    a kernel of those others alone: for what would be looked up at every call.
    `bundles` are the values that may come as bundles, those of each message together; `bundled` takes the parameters and the names of the outputs, and gives
    a kernel of these bundles, whose outputs, if any, are a bundle.
    `on_host`: tensors are in host memory only; others compute where their tensors are. `accelerated` is the kernel for an accelerator of an op that
    is a loop over host memory, or has a better one there, and `bind_accelerated` what `bind` is for that. `shaped_by` are the inputs of which it reads the
    shape alone: they may be on the host or not. `loops` are those of Numba that the kernel runs on the host and that take long to compile: roles have them
    compiled while they begin.

    What it changes:
    `effects`: it is never dropped, merged or moved across another effect. `writes` are the positions of the inputs that it mutates, always
    parameters: see `written`. `changes` are the rows of tables that it writes to: where it says which, a checkpoint need not look for them.
    `steps_weights`: an optimizer step of a dense weight, which the engine runs only when the staleness gate lets it. `steps_rows` is the optimizer of a step
    on rows of one table, `op(table, state, ids, gradients)`; `bounds_rows`: it brings rows of one within a norm before their step, `op(table, ids)`.
    `exclusive`: two such ops on one parameter never run at once, for each would read what the other has half made.
    `keeps` are the bytes that it keeps between steps beside its parameters.

    Where and when it runs:
    `place` is the device of an op that touches no table (one that does is where the table is): that of its `module`, the trainer as the `reader` of
    batches, or all `workers` together, as a collective.
    `phase` of a step: `announce` tells a cache of ids when they are read; `ask` wants rows of the next batch; `prepare` finds, or brings to an accelerator,
    what is known of a step as soon as its rows have their places; `take` puts what was asked for into a cache, before the next batch may ask; `push` does
    what others wait for; all else computes.
    `transfer`: it sends or receives a value between devices, or signals how far a step is.
    `work` names what bounds its speed, for the cost model.

    What it means:
    `view`: its outputs are its first input's memory. `elementwise`: a number of its output is made of those at its place in the inputs.
    `indexed`: its second input holds positions in the first, along `axis`, or along the first dimension. `over_rows` names what takes the place of a
    lookup as a model says it, `op(table, ids, ...)`, where rows travel: `over_rows(rows, places, ...)`.
    `reads` are the rows that it takes out of tables; `asked_by` the blobs by which a device is asked for rows; `serves_cache`: it is another device's part
    of a cache. `expected` says how many rows its outputs will have. `evaluated` gives blobs of rows, each with the blob of the ids that they are looked up by
    in evaluation, where no cache is: then it is not run. `in_evaluation` is the op that gives the first outputs there, where training does something else.

    What others call it:
    `aten` are the ops of PyTorch that it stands for, without their overloads (`expm1`): their operands are its inputs, in order, and their arguments of the
    same names its attributes. `onnx`: ONNX's op of the same name has the same inputs and attributes, and means the same; nets are written with it, and
    files read. What is translated in another way stands in a table of the frontend, or of the file format, instead.
    """

    type: str
    kernel: Callable[..., Any]
    infer: InferRule = infer_by_kernel
    cost: CostRule = elementwise_cost
    gradient: GradientRule | None = vjp_gradient
    many: bool = False
    needs_batch: bool = False
    attributes: AttributeTypes | None = None
    bind: Callable[..., Callable[..., Any]] | None = None
    bundles: BundlesRule = no_bundles
    bundled: Callable[..., Callable[..., Any]] | None = None
    on_host: bool = False
    accelerated: Callable[..., Any] | None = None
    bind_accelerated: Callable[..., Callable[..., Any]] | None = None
    shaped_by: NamesRule = asked_for_nothing
    loops: LoopsRule = no_loops
    effects: bool = False
    writes: tuple[int, ...] | Callable[[Op], tuple[int, ...]] = ()
    changes: ChangesRule = changes_untold
    steps_weights: bool = False
    steps_rows: str = ""
    bounds_rows: bool = False
    exclusive: bool = False
    keeps: KeepRule = keeps_nothing
    place: Place = "module"
    phase: Phase = "compute"
    transfer: Transfer = ""
    work: Work = "stream"
    view: bool = False
    elementwise: bool = False
    indexed: bool = False
    over_rows: str = ""
    reads: ReadsRule = reads_no_rows
    asked_by: NamesRule = asked_for_nothing
    serves_cache: bool = False
    expected: ExpectedRule = most_rows
    evaluated: EvaluationRule = stays
    in_evaluation: InsteadRule = as_it_is
    aten: tuple[str, ...] = ()
    onnx: bool = False

    def run(self, op: Op, inputs: Sequence[torch.Tensor], batch_size: int) -> tuple[torch.Tensor, ...]:
        """The outputs of an op of this type for its inputs' values."""
        extra = {"batch": batch_size} if self.needs_batch else {}
        return self.outputs_of(self.kernel(*inputs, **op.attrs, **extra))

    def outputs_of(self, result: Any) -> tuple[torch.Tensor, ...]:
        """What a kernel of this type returned, as a tuple of tensors."""
        return result if self.many else () if result is None else (result,)

    def written(self, op: Op) -> frozenset[str]:
        """The names of the inputs that an op of this type mutates."""
        return frozenset(op.inputs[place] for place in (self.writes(op) if callable(self.writes) else self.writes))


def same_as_input(*positions: int) -> InferRule:
    """Outputs have the shapes and dtypes of the inputs at `positions`."""

    def infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
        return [(inputs[i].shape, inputs[i].dtype) for i in positions]

    return infer


def no_outputs(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    """The shapes of an effect that writes parameters and gives no blob: none."""
    return []


def tensor_of(value: Tensor) -> torch.Tensor:
    """A constant attribute as a new torch tensor of its shape and dtype."""
    flat = (
        torch.frombuffer(bytearray(value.data), dtype=dtype_of(value.dtype))
        if value.data
        else torch.empty(0, dtype=dtype_of(value.dtype))
    )
    return flat.reshape(value.shape)


def constant_of(tensor: torch.Tensor) -> Tensor:
    """A small torch tensor of any shape and dtype as a constant attribute: a copy of its values."""
    plain = tensor.detach().cpu().contiguous()
    data = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return Tensor(str(plain.dtype).removeprefix("torch."), tuple(plain.shape), data)

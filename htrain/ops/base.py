"""What an op is: its kernel, shapes, cost, gradient and effects, in one value (`OpDef`).

Kernels are functions of tensors, with the op's attributes as keywords. `infer` gives the outputs' shapes and dtypes; the
stock one runs the kernel on the meta device at two batch sizes, so a torch kernel needs no shape rule of its own.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from htrain.errors import ModelError
from htrain.net import Attr, BatchDim, Blob, Dim, Op, Shape, Tensor, numel


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
    ) -> tuple[str, ...]: ...

    def blob(self, name: str) -> Blob: ...

    def gradient_name(self, blob: str) -> str: ...


@dataclass(frozen=True)
class Cost:
    """What one run of an op costs: multiply-add counts as 2 `flops`; `bytes` are read plus written."""

    flops: float
    bytes: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


Work = Literal[
    "gemm", "gemm_bf16", "gemm_int8", "batched", "stream", "gather", "scatter", "quantize", "message", "none"
]
Signature = tuple[Shape, str]  # shape and dtype of one output
InferRule = Callable[["OpDef", Op, Sequence[Blob]], Sequence[Signature]]
CostRule = Callable[[Op, Sequence[Blob], Sequence[Blob], int], Cost]
KeepRule = Callable[[Op, Sequence[Blob], int], float]
GradientRule = Callable[[Builder, Op, Sequence[str], Sequence[bool]], Sequence[str]]


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a blob's dtype name."""
    return getattr(torch, name)


def infer_by_kernel(definition: "OpDef", op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    """Output shapes, found by running the kernel on the meta device at two batch sizes.

    Raises ModelError naming the op when the kernel refuses its inputs or an output does not scale with the batch.
    """
    small, large = (_run_on_meta(definition, op, inputs, batch_size) for batch_size in _PROBES)
    bounds = {d.per_example for blob in inputs for d in blob.shape if isinstance(d, BatchDim) and d.bound}
    pairs = zip(small, large, strict=True)
    return [(_symbolic_shape(op, a, b, bounds), str(a.dtype).removeprefix("torch.")) for a, b in pairs]


_PROBES = (1009, 2003)  # primes, so that no product of a model's own dimensions is taken for a multiple of them


def _run_on_meta(definition: "OpDef", op: Op, inputs: Sequence[Blob], batch_size: int) -> Sequence[torch.Tensor]:
    tensors = [
        torch.empty(
            [d if isinstance(d, int) else d.at(batch_size) for d in blob.shape],
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
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _symbolic_shape(op: Op, small: torch.Tensor, large: torch.Tensor, bounds: Collection[int]) -> Shape:
    return tuple(_symbolic_dim(op, a, b, bounds) for a, b in zip(small.shape, large.shape, strict=True))


def _symbolic_dim(op: Op, small: int, large: int, bounds: Collection[int]) -> Dim:
    """A dimension that scales as a bounded one of the inputs does is bounded, too."""
    if small == large:
        return small
    per_example, rest = divmod(small, _PROBES[0])
    if rest or per_example * _PROBES[1] != large:
        raise ModelError(
            f"{op.label}: an output dimension is {small} at batch {_PROBES[0]} and {large} at {_PROBES[1]}: not a multiple"
        )
    return BatchDim(per_example, bound=per_example in bounds)


def elementwise_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """One flop per element of the largest operand; every operand read or written once."""
    operands = (*inputs, *outputs)
    flops = max((numel(b.shape, batch_size) for b in operands), default=0)
    return Cost(float(flops), float(sum(b.num_bytes(batch_size) for b in operands)))


def keeps_nothing(op: Op, inputs: Sequence[Blob], batch_size: int) -> float:
    """Nothing but parameters stays between steps."""
    return 0.0


def no_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A view: nothing is computed or copied."""
    return Cost(0.0, 0.0)


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
    """The generic rule: `<Op>Gradient` differentiates the op's kernel (DESIGN 3)."""
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
    """An operator's definition.

    `gradient` is None for what has no derivative (ids, comparisons, effects). `effects`: never dropped, merged or moved across
    another effect. `writes` are the positions of the inputs that the op mutates, always
    parameters: see `written`. `needs_batch`: the kernel takes the batch size as keyword `batch`. `steps_weights`: an optimizer step of a
    dense weight, which the engine runs only when the staleness gate lets it. `exclusive`: two such ops on one parameter never run at once, for each would
    read what the other has half made. `bind`, where there is one, takes the inputs whose values are known
    before any step, parameters and constants, and None for the others, and gives a kernel of those others alone: for what would be looked up
    at every call. `work` names what bounds its speed, for the cost model; `keeps` are the bytes that it keeps between steps beside its
    parameters. An op `on_host` takes and gives tensors in host memory only; others compute where their tensors are.
    """

    type: str
    kernel: Callable[..., Any]
    infer: InferRule = infer_by_kernel
    cost: CostRule = elementwise_cost
    gradient: GradientRule | None = vjp_gradient
    effects: bool = False
    writes: tuple[int, ...] | Callable[[Op], tuple[int, ...]] = ()
    needs_batch: bool = False
    steps_weights: bool = False
    exclusive: bool = False
    bind: Callable[..., Callable[..., Any]] | None = None
    work: Work = "stream"
    keeps: KeepRule = keeps_nothing
    on_host: bool = False

    def run(self, op: Op, inputs: Sequence[torch.Tensor], batch_size: int) -> tuple[torch.Tensor, ...]:
        """The outputs of an op of this type."""
        extra = {"batch": batch_size} if self.needs_batch else {}
        outputs = self.kernel(*inputs, **op.attrs, **extra)
        return outputs if isinstance(outputs, tuple) else () if outputs is None else (outputs,)

    def written(self, op: Op) -> frozenset[str]:
        """The inputs that an op of this type mutates."""
        return frozenset(op.inputs[place] for place in (self.writes(op) if callable(self.writes) else self.writes))


def vjp_definition(forward: OpDef) -> OpDef:
    """The definition of `<Op>Gradient`, made from the forward op's kernel.

    Inputs: the forward op's inputs, then the gradients of the outputs in `given`. Outputs: the gradients of the inputs in `wrt`.
    """

    def kernel(
        *tensors: torch.Tensor, num_inputs: int, wrt: tuple[int, ...], given: tuple[int, ...], **attrs: Any
    ) -> Any:
        inputs, dys = tensors[:num_inputs], tensors[num_inputs:]
        with torch.enable_grad():
            # `data`, not `detach`: a weight may be stepped by another thread meanwhile (Hogwild), which autograd would take for a mistake
            leaves = [x.data.requires_grad_(i in wrt) for i, x in enumerate(inputs)]
            outputs = forward.kernel(*leaves, **attrs)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            grads = torch.autograd.grad([outputs[i] for i in given], [leaves[i] for i in wrt], dys, allow_unused=True)
        filled = tuple(torch.zeros_like(inputs[i]) if g is None else g for i, g in zip(wrt, grads, strict=True))
        return filled if len(filled) > 1 else filled[0]

    def infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
        wrt = op.attrs["wrt"]
        assert isinstance(wrt, tuple)
        return [(inputs[i].shape, inputs[i].dtype) for i in wrt]

    def cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
        num_inputs, given = op.attrs["num_inputs"], op.attrs["given"]
        assert isinstance(num_inputs, int)
        assert isinstance(given, tuple)
        once = forward.cost(op, inputs[:num_inputs], inputs[num_inputs:], batch_size)
        return Cost(
            3 * once.flops, 3 * once.bytes
        )  # the forward again, and twice that for the products of the chain rule

    return OpDef(
        forward.type + "Gradient",
        kernel,
        infer,
        cost,
        gradient=None,
        needs_batch=forward.needs_batch,
        work=forward.work,
    )


def same_as_input(*positions: int) -> InferRule:
    """Outputs have the shapes and dtypes of the inputs at `positions`."""

    def infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
        return [(inputs[i].shape, inputs[i].dtype) for i in positions]

    return infer


def no_outputs(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    """An effect: it writes parameters and gives no blob."""
    return []


def tensor_of(value: Tensor) -> torch.Tensor:
    """A constant attribute as a torch tensor."""
    flat = (
        torch.frombuffer(bytearray(value.data), dtype=dtype_of(value.dtype))
        if value.data
        else torch.empty(0, dtype=dtype_of(value.dtype))
    )
    return flat.reshape(value.shape)


def constant_of(tensor: torch.Tensor) -> Tensor:
    """A small torch tensor as a constant attribute."""
    plain = tensor.detach().cpu().contiguous()
    data = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return Tensor(str(plain.dtype).removeprefix("torch."), tuple(plain.shape), data)

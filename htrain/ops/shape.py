"""Ops that move elements without computing, under ONNX's names. Most are views, and cost nothing.

A batch-dependent entry of a `shape` is -k for k * B; in Reshape's it is -1, and in BroadcastTo's 0 is a dimension of x
as it is. Axes count from 0. What an op takes and gives:

    y = Reshape(x), Transpose(x), Slice(x), BroadcastTo(x), Pad(x), Tril(x), Triu(x), Flip(x)
    y = Concat(x, ...), Stack(x, ...)          along `axis`, which Stack adds
    x, ... = Split(y), Unstack(y)              the reverse
    y = Select(x)                              x without `axis`, at `index`
    y = Gather(x, i)                           y[..,j..,..] = x[..,i[j..],..] along `axis`; i is int64 of any shape
    y = GatherElements(x, i)                   torch.gather; y has the shape of i
    i = FlatNonZero(x)                         the places in x, flattened, of what is not zero: as many as a batch has
    y, i, n = Unique(x)                        the distinct numbers of x in ascending order, the place in y of each of x, and how often each comes
    y = Constant(), Fill()                     a small tensor that is an attribute; a batch of one number
"""

from collections.abc import Sequence
from math import prod

import torch
from torch.nn import functional as F

from htrain.errors import ModelError
from htrain.net.net import Attr, BatchDim, Blob, Op, Tensor
from htrain.ops.base import (
    Builder,
    OpDef,
    Signature,
    dtype_of,
    gradient_like_input,
    gradient_names,
    no_cost,
    same_as_input,
    tensor_of,
    vjp_gradient,
)


def _reshape(x: torch.Tensor, *, shape: tuple[int, ...]) -> torch.Tensor:
    return x.reshape(shape)


def _transpose(x: torch.Tensor, *, perm: tuple[int, ...]) -> torch.Tensor:
    return x.permute(perm)


def _concat(*xs: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cat(xs, axis)


def _split(x: torch.Tensor, *, axis: int, split: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return x.split(split, axis)


def _slice(x: torch.Tensor, *, axis: int, start: int, end: int, step: int) -> torch.Tensor:
    return x[(slice(None),) * (axis % x.dim()) + (slice(start, end, step),)]


def _gather(x: torch.Tensor, indices: torch.Tensor, *, axis: int) -> torch.Tensor:
    axis %= x.dim()
    taken = x.index_select(axis, indices.reshape(-1))
    return taken.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def _gather_gradient(x: torch.Tensor, indices: torch.Tensor, dy: torch.Tensor, *, axis: int) -> torch.Tensor:
    axis %= x.dim()
    dx = dy.new_zeros(x.shape)
    flat = dy.reshape(x.shape[:axis] + (indices.numel(),) + x.shape[axis + 1 :])
    return dx.index_add_(axis, indices.reshape(-1), flat)


def _select(x: torch.Tensor, *, axis: int, index: int) -> torch.Tensor:
    return x.select(axis, index)


def _select_gradient(x: torch.Tensor, dy: torch.Tensor, *, axis: int, index: int) -> torch.Tensor:
    dx = dy.new_zeros(x.shape)
    dx.select(axis, index).copy_(dy)
    return dx


def _selects_gradient(x: torch.Tensor, *dys: torch.Tensor, axis: int, indices: tuple[int, ...]) -> torch.Tensor:
    """dx of x without `axis` at each of the indices: the gradients of one index are added in order, others have zeros."""
    axis, count = axis % x.dim(), x.shape[axis]
    parts: dict[int, torch.Tensor] = {}
    for dy, index in zip(dys, (index % count for index in indices), strict=True):
        parts[index] = parts[index] + dy if index in parts else dy
    if 2 * len(parts) >= count:  # one copy of each
        zeros = dys[0].new_zeros(()).expand_as(dys[0])
        return torch.stack([parts.get(index, zeros) for index in range(count)], axis)
    dx = dys[0].new_zeros(x.shape)
    for index, part in parts.items():
        dx.select(axis, index).copy_(part)
    return dx


def _stack(*xs: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.stack(xs, axis)


def _unstack(x: torch.Tensor, *, axis: int) -> tuple[torch.Tensor, ...]:
    return x.unbind(axis)


def _gather_elements(x: torch.Tensor, indices: torch.Tensor, *, axis: int) -> torch.Tensor:
    return x.gather(axis, indices)


def _broadcast_to(x: torch.Tensor, *, shape: tuple[int, ...], batch: int) -> torch.Tensor:
    return x.expand([-d * batch if d < 0 else d or -1 for d in shape])


def _fill(*, shape: tuple[int, ...], value: float, dtype: str, batch: int) -> torch.Tensor:
    return torch.full([-d * batch if d < 0 else d for d in shape], value, dtype=dtype_of(dtype))


def _constant(*, value: Tensor) -> torch.Tensor:
    return tensor_of(value)


def _pad(x: torch.Tensor, *, pads: tuple[int, ...], value: float) -> torch.Tensor:
    return F.pad(x, pads, value=value)


def _flat_non_zero(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1).nonzero()[:, 0]


def _as_many_at_most(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [((_at_most(op, inputs[0]),), "int64")]


def _at_most(op: Op, blob: Blob) -> BatchDim:
    """As many as there are elements, or fewer. Raises ModelError for what does not scale with the batch."""
    batches = [d for d in blob.shape if isinstance(d, BatchDim)]
    if len(batches) != 1:
        raise ModelError(f"{op.label}: {blob} must have one dimension that depends on the batch")
    return BatchDim(batches[0].per_example * prod(d for d in blob.shape if isinstance(d, int)), bound=True)


def _unique(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.unique(x, return_inverse=True, return_counts=True)


def _unique_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    (x,) = inputs
    many = _at_most(op, x)
    return [((many,), x.dtype), (x.shape, "int64"), ((many,), "int64")]


def _tril(x: torch.Tensor, *, diagonal: int) -> torch.Tensor:
    return x.tril(diagonal)


def _triu(x: torch.Tensor, *, diagonal: int) -> torch.Tensor:
    return x.triu(diagonal)


def _flip(x: torch.Tensor, *, axes: tuple[int, ...]) -> torch.Tensor:
    return x.flip(axes)


def _concat_gradient(*tensors: torch.Tensor, wrt: tuple[int, ...], axis: int, **_: object) -> tuple[torch.Tensor, ...]:
    """What autograd gives, of batches whose sizes are known when they come."""
    *xs, dy = tensors
    parts = dy.split([x.shape[axis] for x in xs], axis)
    return tuple(parts[place].clone() for place in wrt)


def _reshape_like(dy: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return dy.reshape(like.shape)


def _slice_gradient(x: torch.Tensor, dy: torch.Tensor, *, axis: int, start: int, end: int, step: int) -> torch.Tensor:
    dx = torch.zeros(x.shape, dtype=dy.dtype, device=dy.device)
    _slice(dx, axis=axis, start=start, end=end, step=step).copy_(dy)
    return dx


def _constant_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    value = op.attrs["value"]
    assert isinstance(value, Tensor)
    return [(value.shape, value.dtype)]


def _wanted_of(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    wrt = op.attrs["wrt"]
    assert isinstance(wrt, tuple)
    return [(inputs[place].shape, inputs[place].dtype) for place in wrt]


def _like_second(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[1].shape, inputs[0].dtype)]


def _like_first(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[0].shape, inputs[1].dtype)]


def _reshape_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """A shape with at most one batch-dependent entry comes back by Reshape; another one needs the input itself."""
    source = builder.blob(op.inputs[0])
    names = (builder.gradient_name(source.name),)
    if sum(isinstance(d, BatchDim) for d in source.shape) > 1:
        return builder.add("ReshapeLike", (dys[0], source.name), module=op.module, outputs=names)
    shape = tuple(d if isinstance(d, int) else -1 for d in source.shape)
    return builder.add("Reshape", (dys[0],), attrs={"shape": shape}, module=op.module, outputs=names)


def _transpose_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    perm = op.attrs["perm"]
    assert isinstance(perm, tuple)
    inverse = tuple(sorted(range(len(perm)), key=perm.__getitem__))
    names = (builder.gradient_name(op.inputs[0]),)
    return builder.add("Transpose", (dys[0],), attrs={"perm": inverse}, module=op.module, outputs=names)


def _concat_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    axis = op.attrs["axis"]
    assert isinstance(axis, int)
    widths = tuple(builder.blob(name).shape[axis] for name in op.inputs)
    if any(isinstance(width, BatchDim) for width in widths):
        return vjp_gradient(builder, op, dys, wanted)
    names = gradient_names(builder, op, range(len(op.inputs)))
    attrs: dict[str, Attr] = {"axis": axis, "split": widths}
    parts = builder.add("Split", (dys[0],), attrs=attrs, module=op.module, outputs=names)
    return [gradient_like_input(builder, op, part, i) for i, part in enumerate(parts)]


def _gather_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    names = (builder.gradient_name(op.inputs[0]),)
    attrs = {"axis": op.attrs["axis"]}
    return [*builder.add("GatherGradient", (*op.inputs, dys[0]), attrs=attrs, module=op.module, outputs=names), ""]


def _select_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    names = (builder.gradient_name(op.inputs[0]),)
    return builder.add("SelectGradient", (op.inputs[0], dys[0]), attrs=op.attrs, module=op.module, outputs=names)


def _stack_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    names = gradient_names(builder, op, range(len(op.inputs)))
    parts = builder.add("Unstack", (dys[0],), attrs={"axis": op.attrs["axis"]}, module=op.module, outputs=names)
    return [gradient_like_input(builder, op, part, i) for i, part in enumerate(parts)]


def _unstack_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    parts = [dy or _zeros_like(builder, op, output) for dy, output in zip(dys, op.outputs, strict=True)]
    names = (builder.gradient_name(op.inputs[0]),)
    return builder.add("Stack", parts, attrs={"axis": op.attrs["axis"]}, module=op.module, outputs=names)


def _split_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """An output that nobody used gets zeros: Mul of itself with 0 keeps its batch-dependent shape."""
    parts = [dy or _zeros_like(builder, op, output) for dy, output in zip(dys, op.outputs, strict=True)]
    names = (builder.gradient_name(op.inputs[0]),)
    return builder.add("Concat", parts, attrs={"axis": op.attrs["axis"]}, module=op.module, outputs=names)


def _zeros_like(builder: Builder, op: Op, blob: str) -> str:
    return builder.add("ZerosLike", (blob,), module=op.module)[0]


def _slice_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    names = (builder.gradient_name(op.inputs[0]),)
    return builder.add("SliceGradient", (op.inputs[0], dys[0]), attrs=op.attrs, module=op.module, outputs=names)


DEFINITIONS = (
    OpDef("Reshape", _reshape, cost=no_cost, work="none", view=True, gradient=_reshape_rule),
    OpDef("ReshapeLike", _reshape_like, _like_second, no_cost, gradient=None, work="none", view=True),
    OpDef("Transpose", _transpose, cost=no_cost, work="none", view=True, gradient=_transpose_rule, onnx=True),
    OpDef("Concat", _concat, gradient=_concat_rule, onnx=True),
    OpDef("ConcatGradient", _concat_gradient, _wanted_of, gradient=None, many=True),
    OpDef("Split", _split, cost=no_cost, many=True, work="none", view=True, gradient=_split_rule),
    OpDef("ZerosLike", torch.zeros_like, gradient=None),
    OpDef("Slice", _slice, cost=no_cost, work="none", view=True, gradient=_slice_rule),
    OpDef("SliceGradient", _slice_gradient, _like_first, gradient=None),
    OpDef("Select", _select, cost=no_cost, work="none", view=True, gradient=_select_rule),
    OpDef("SelectGradient", _select_gradient, _like_first, gradient=None),
    OpDef("SelectsGradient", _selects_gradient, _like_first, gradient=None),
    OpDef("Stack", _stack, gradient=_stack_rule),
    OpDef("Unstack", _unstack, cost=no_cost, many=True, work="none", view=True, gradient=_unstack_rule),
    OpDef("Gather", _gather, gradient=_gather_rule, indexed=True, onnx=True),
    OpDef("GatherGradient", _gather_gradient, same_as_input(0), gradient=None),
    OpDef("GatherElements", _gather_elements, indexed=True, onnx=True),
    OpDef("FlatNonZero", _flat_non_zero, _as_many_at_most, gradient=None),
    OpDef("Unique", _unique, _unique_infer, gradient=None, many=True),
    OpDef("BroadcastTo", _broadcast_to, cost=no_cost, work="none", view=True, needs_batch=True),
    OpDef("Fill", _fill, gradient=None, needs_batch=True),
    OpDef("Constant", _constant, _constant_infer, no_cost, gradient=None, work="none", onnx=True),
    OpDef("Pad", _pad),
    OpDef("Tril", _tril, aten=("tril",)),
    OpDef("Triu", _triu, aten=("triu",)),
    OpDef("Flip", _flip),
)

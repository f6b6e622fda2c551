"""Batch normalization over the examples that one trainer has in a batch, and the running statistics that evaluation normalizes by.

    y, mean[C], invstd[C] = BatchNorm(x[B,C,...], scale[C], bias[C], running_mean[C], running_variance[C])
    y                     = GhostBatchNorm(x, scale, bias, size[], running_mean[C], running_variance[C])
    y                     = BatchNormalization(x, scale, bias, running_mean, running_variance)

BatchNorm normalizes by the batch's own mean and variance, and moves the running ones towards them by `momentum`, as torch.nn.BatchNorm1d does
while it trains. The running statistics are state of the net, and are read by no step: all contexts of a device add to them without locks (Hogwild), and
the background sync takes the mean of those of groups. Without them (`track_running_stats=False`) evaluation, too, normalizes by its batch.

GhostBatchNorm does so to each chunk of `size` examples, one after another; the last one may have fewer.

A batch, or a chunk, of one value a channel has no variance: PyTorch refuses it; here, where it is what is left of an epoch, y is the bias, and
the statistics stay. So they do in the empty batches of trainers in lockstep that have no data left.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from htrain.net.net import Blob, Net, Op
from htrain.ops.base import Builder, Cost, OpDef, gradient_names, same_as_input

aten = torch.ops.aten


def _batch_norm(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, *statistics: torch.Tensor, eps: float, momentum: float
) -> tuple[torch.Tensor, ...]:
    if not x.numel():  # of a trainer in lockstep whose data has ended
        return x.clone(), x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    several = x.numel() > x.shape[1]
    mean, variance = statistics if statistics and several else (None, None)
    return torch.native_batch_norm(x, scale, bias, mean, variance, training=True, momentum=momentum, eps=eps)


def _batch_norm_gradient(
    x: torch.Tensor,
    scale: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    dy: torch.Tensor,
    *,
    eps: float,
    wrt: tuple[int, ...],
) -> tuple[torch.Tensor, ...]:
    if not x.numel():
        return tuple(torch.zeros_like(x if place == 0 else scale) for place in wrt)
    mask = [place in wrt for place in range(3)]
    found = aten.native_batch_norm_backward(dy, x, scale, None, None, mean, invstd, True, eps, mask)
    return tuple(found[place] for place in wrt)


def _chunks(x: torch.Tensor, size: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.split(max(int(size), 1))


def _ghost(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    size: torch.Tensor,
    *statistics: torch.Tensor,
    eps: float,
    momentum: float,
) -> torch.Tensor:
    parts = [_batch_norm(part, scale, bias, *statistics, eps=eps, momentum=momentum) for part in _chunks(x, size)]
    return torch.cat([part[0] for part in parts])


def _ghost_gradient(
    x: torch.Tensor, scale: torch.Tensor, size: torch.Tensor, dy: torch.Tensor, *, eps: float, wrt: tuple[int, ...]
) -> tuple[torch.Tensor, ...]:
    """The mean and deviation of each chunk are computed again: how many there are is no multiple of the batch."""
    found = []
    for part, gradient in zip(_chunks(x, size), _chunks(dy, size), strict=True):
        _, mean, invstd = _batch_norm(part, scale, torch.zeros_like(scale), eps=eps, momentum=0.0)
        found.append(_batch_norm_gradient(part, scale, mean, invstd, gradient, eps=eps, wrt=wrt))
    columns = zip(*found, strict=True)
    return tuple(
        torch.cat(column) if place == 0 else torch.stack(column).sum(0)
        for place, column in zip(wrt, columns, strict=True)
    )


def _by_statistics(
    x: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    *,
    epsilon: float,
) -> torch.Tensor:
    """A variance below 0 is 0: rounds of older plans had momentum carry one there."""
    return F.batch_norm(x, mean, variance.clamp(min=0), scale, bias, training=False, eps=epsilon)


def _rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    """The gradients of x, scale and bias; the statistics of a batch reach the loss through y alone."""
    wrt = tuple(place for place in range(3) if wanted[place]) if dys[0] else ()
    if not wrt:
        return [""] * len(op.inputs)
    inputs = (op.inputs[0], op.inputs[1], op.outputs[1], op.outputs[2], dys[0])
    names = gradient_names(builder, op, wrt)
    attrs = {"eps": op.attrs["eps"], "wrt": wrt}
    made = iter(builder.add("BatchNormGradient", inputs, attrs=attrs, module=op.module, outputs=names))
    return [next(made) if place in wrt else "" for place in range(len(op.inputs))]


def _ghost_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    wrt = tuple(place for place in range(3) if wanted[place]) if dys[0] else ()
    if not wrt:
        return [""] * len(op.inputs)
    names = gradient_names(builder, op, wrt)
    attrs = {"eps": op.attrs["eps"], "wrt": wrt}
    inputs = (op.inputs[0], op.inputs[1], op.inputs[3], dys[0])
    made = iter(builder.add("GhostBatchNormGradient", inputs, attrs=attrs, module=op.module, outputs=names))
    return [next(made) if place in wrt else "" for place in range(len(op.inputs))]


def _gradient_shapes(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Any]:
    places = op.attrs["wrt"]
    assert isinstance(places, tuple)
    return same_as_input(*(min(place, 1) for place in places))(definition, op, inputs)


def variances_of(net: Net) -> dict[str, str]:
    """The running variances that a train net's norms move, each with the running mean that it is about."""
    places = {"BatchNorm": _statistics, "GhostBatchNorm": _ghost_statistics}
    moved = ([op.inputs[place] for place in places[op.type](op)] for op in net.ops if op.type in places)
    return {variance: mean for mean, variance in filter(None, moved)}


def _statistics(op: Op) -> tuple[int, ...]:
    return tuple(range(3, len(op.inputs)))


def _in_evaluation(op: Op) -> Op:
    """By the running statistics, where there are any."""
    if len(op.inputs) == 3:
        return op
    return replace(op, type="BatchNormalization", outputs=op.outputs[:1], attrs={"epsilon": op.attrs["eps"]})


def _ghost_statistics(op: Op) -> tuple[int, ...]:
    return tuple(range(4, len(op.inputs)))


def _ghost_in_evaluation(op: Op) -> Op:
    """By the running statistics, where there are any: chunks do not matter then."""
    if len(op.inputs) == 4:
        return op
    inputs = (*op.inputs[:3], *op.inputs[4:])
    return replace(op, type="BatchNormalization", inputs=inputs, attrs={"epsilon": op.attrs["eps"]})


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Values are read for the statistics, and again to be normalized."""
    once = inputs[0].num_bytes(batch_size)
    return Cost(2.0 * once, 3.0 * once)


DEFINITIONS = (
    OpDef(
        "BatchNorm",
        _batch_norm,
        cost=_cost,
        gradient=_rule,
        many=True,
        effects=True,
        writes=_statistics,
        in_evaluation=_in_evaluation,
    ),
    OpDef(
        "GhostBatchNorm",
        _ghost,
        same_as_input(0),
        _cost,
        _ghost_rule,
        effects=True,
        writes=_ghost_statistics,
        in_evaluation=_ghost_in_evaluation,
    ),
    OpDef("GhostBatchNormGradient", _ghost_gradient, _gradient_shapes, _cost, gradient=None, many=True),
    OpDef("BatchNormGradient", _batch_norm_gradient, _gradient_shapes, _cost, gradient=None, many=True),
    OpDef("BatchNormalization", _by_statistics, gradient=None),
)

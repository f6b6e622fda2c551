"""Dropout that can be repeated: which values of a batch are dropped is a hash of the seed, the batch and their places.

    y, kept = Dropout(x, batch_key[1])         y = x * kept / (1 - p); kept is bool, in the shape of x
    dx      = DropoutGradient(dy, kept)

`batch_key`, int64, comes with the reader's batch and tells it apart from all others of a run, its epochs included: whoever trains a batch, and on whichever
device the op is, the same is dropped, and a run that goes on from a checkpoint drops what it would have dropped. In evaluation x stays as it is.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from htrain.net.net import Blob, Op
from htrain.ops.base import Builder, Cost, OpDef, Signature
from htrain.ops.dropout_loops import kept


def _dropout(x: torch.Tensor, batch_key: torch.Tensor, *, p: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.from_numpy(kept(x.numel(), seed, int(batch_key), p)).view(x.shape).to(x.device)
    return _scaled(x, mask, p), mask


def _dropout_gradient(dy: torch.Tensor, mask: torch.Tensor, *, p: float) -> torch.Tensor:
    return _scaled(dy, mask, p)


def _scaled(x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """Without a 0 to divide by, where all is dropped."""
    return x.mul(mask).mul_(1 / (1 - p) if p < 1 else 0.0)


def _rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    if not dys[0]:
        return ["", ""]
    names = (builder.gradient_name(op.inputs[0]),)
    attrs = {"p": op.attrs["p"]}
    return [
        builder.add("DropoutGradient", (dys[0], op.outputs[1]), attrs=attrs, module=op.module, outputs=names)[0],
        "",
    ]


def _with_mask(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[0].shape, inputs[0].dtype), (inputs[0].shape, "bool")]


def _as_first(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[0].shape, inputs[0].dtype)]


def _in_evaluation(op: Op) -> Op:
    return replace(op, type="Identity", inputs=op.inputs[:1], outputs=op.outputs[:1], attrs={})


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A hash for two values: some ten operations for one."""
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    return Cost(10.0 * inputs[0].num_bytes(batch_size) / 4, float(moved))


DEFINITIONS = (
    OpDef("Dropout", _dropout, _with_mask, _cost, _rule, many=True, in_evaluation=_in_evaluation),
    OpDef("DropoutGradient", _dropout_gradient, _as_first, gradient=None),
)

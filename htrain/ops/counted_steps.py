"""Optimizer steps that count their updates: momentum, weight decay, clipping, and rates that change, with torch.optim's arithmetic.

    CountedStep(w, states.., updates[], dw)                  of a dense weight w of any shape; states of the same shape
    CountedRowStep(table, states.., updates[], ids, rows)    of the rows of a table[R,D], as Sparse.. steps are (htrain.ops.optimizer)

`updates`, int64, is how many steps have been taken. `optimizer` is the kind in Options, and says which states there are:

    sgd, without momentum    none                                     adagrad            accumulator
    sgd, with momentum       momentum                                 rowwise_adagrad    accumulator[R]
    sparse_adam              mean, square                             rowwise_adam       mean, square[R]
    lazy_momentum            momentum
    ftrl                     z, n; of rows ftrl[R,2D], of both
    adam, adamw              mean, square, step[1], which is float32 as torch has it, and counts no further than 2^24

A gradient is clipped first, then weight decay is added, as torch.nn.utils.clip_grad_norm_ before an optimizer's step does. These steps are exclusive:
a count that another step reads meanwhile would be lost.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from htrain.net.net import Blob, Op, numel
from htrain.ops import step_loops
from htrain.ops.base import Cost, OpDef, RowChange, changes_rows, no_outputs
from htrain.ops.ftrl import ftrl_step
from htrain.ops.moments import adam_step
from htrain.ops.rates import Rates

_FLOPS = {
    "sgd": 6,
    "adagrad": 8,
    "adam": 14,
    "adamw": 14,
    "rowwise_adagrad": 5,
    "sparse_adam": 10,
    "rowwise_adam": 9,
    "lazy_momentum": 4,
    "ftrl": 15,
}  # of a step, for each number


def _step(
    w: torch.Tensor,
    *rest: torch.Tensor,
    optimizer: str,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    beta1: float = 0.0,
    beta2: float = 0.0,
    eps: float = 0.0,
    beta: float = 0.0,
    l1: float = 0.0,
    l2: float = 0.0,
    weight_decay: float = 0.0,
    clip_value: float = 0.0,
    clip_norm: float = 0.0,
    schedule: str = "constant",
    warmup: int = 0,
    decay: int = 1,
    share: float = 0.0,
    milestones: tuple[int, ...] = (),
    gamma: float = 1.0,
) -> None:
    *states, updates, dw = rest
    before = int(updates)
    rate = Rates(
        lr=lr, schedule=schedule, warmup=warmup, decay=decay, share=share, milestones=milestones, gamma=gamma
    ).at(before)
    updates.add_(1)
    if clip_value:
        dw = dw.clamp(-clip_value, clip_value)
    if clip_norm:
        dw = dw * (clip_norm / (torch.linalg.vector_norm(dw) + 1e-6)).clamp(max=1.0)
    if optimizer == "adamw":
        w.mul_(1 - rate * weight_decay)
    elif weight_decay:
        dw = dw.add(w, alpha=weight_decay)
    if optimizer == "sgd":
        moved = _moved(dw, states, before, momentum=momentum, dampening=dampening) if states else dw
        w.sub_(dw.add(moved, alpha=momentum) if nesterov else moved, alpha=rate)
    elif optimizer == "adagrad":
        accumulator = states[0].addcmul_(dw, dw)
        w.addcdiv_(dw, accumulator.sqrt().add_(eps), value=-rate)
    elif optimizer == "ftrl":
        z, n = states
        ftrl_step(w, z, n, dw, lr=rate, beta=beta, l1=l1, l2=l2)
    else:
        adam_step(w, *states, dw=dw, rate=rate, betas=(beta1, beta2), eps=eps)


def _moved(
    dw: torch.Tensor, states: Sequence[torch.Tensor], before: int, *, momentum: float, dampening: float
) -> torch.Tensor:
    """The momentum of SGD, moved on by a gradient; it begins with the first one, undampened."""
    moving = states[0]
    return moving.mul_(momentum).add_(dw, alpha=1 - dampening) if before else moving.copy_(dw)


def _row_step(
    table: torch.Tensor,
    *rest: torch.Tensor,
    optimizer: str,
    lr: float,
    first_row: int,
    beta1: float = 0.0,
    beta2: float = 0.0,
    eps: float = 0.0,
    beta: float = 0.0,
    l1: float = 0.0,
    l2: float = 0.0,
    lazy_momentum: float = 0.0,
    schedule: str = "constant",
    warmup: int = 0,
    decay: int = 1,
    share: float = 0.0,
    milestones: tuple[int, ...] = (),
    gamma: float = 1.0,
) -> None:
    *states, updates, ids, rows = rest
    before = int(updates)
    rate = Rates(
        lr=lr, schedule=schedule, warmup=warmup, decay=decay, share=share, milestones=milestones, gamma=gamma
    ).at(before)
    first, *others = [tensor.numpy() for tensor in (table, *states)]
    given: dict[str, Any] = {"ids": ids.numpy(), "grads": rows.numpy(), "first_row": first_row, "lr": rate}
    if optimizer == "sgd":
        step_loops.sgd_rows(first, **given)
    elif optimizer == "lazy_momentum":
        step_loops.momentum_rows(first, others[0], **given, momentum=lazy_momentum)
    elif optimizer == "adagrad":
        step_loops.adagrad_rows(first, others[0], **given, eps=eps)
    elif optimizer == "rowwise_adagrad":
        step_loops.rowwise_adagrad_rows(first, others[0], **given, eps=eps)
    elif optimizer == "ftrl":
        step_loops.ftrl_rows(first, others[0], **given, beta=beta, l1=l1, l2=l2)
    else:
        loop = step_loops.adam_rows if optimizer == "sparse_adam" else step_loops.rowwise_adam_rows
        loop(first, others[0], others[1], **given, betas=(beta1, beta2), eps=eps, step=before + 1)
    updates.add_(1)


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    flops = _FLOPS[str(op.attrs["optimizer"])] * numel(inputs[0].shape, batch_size)
    moved = sum(b.num_bytes(batch_size) for b in inputs) + sum(b.num_bytes(batch_size) for b in inputs[:-1])
    return Cost(float(flops), float(moved))


def _row_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The rows of a batch only: gradients read, rows of the table and of its states read and written."""
    gradients = inputs[-1]
    flops = _FLOPS[str(op.attrs["optimizer"])] * numel(gradients.shape, batch_size)
    states = sum(numel(b.shape, 1) for b in inputs[1:-3]) / numel(inputs[0].shape, 1)
    return Cost(float(flops), (3.0 + 2 * states) * gradients.num_bytes(batch_size))


def _rows_written(op: Op) -> tuple[int, ...]:
    return tuple(range(len(op.inputs) - 2))


def _changes(op: Op) -> Sequence[RowChange]:
    """All that it writes to but the count of updates."""
    (change,) = changes_rows(op)
    return (replace(change, tensors=change.tensors[:-1]),)


def _written(op: Op) -> tuple[int, ...]:
    return tuple(range(len(op.inputs) - 1))


DEFINITIONS = (
    OpDef(
        "CountedStep", _step, no_outputs, _cost, None, effects=True, writes=_written, steps_weights=True, exclusive=True
    ),
    OpDef(
        "CountedRowStep",
        _row_step,
        no_outputs,
        _row_cost,
        None,
        effects=True,
        writes=_rows_written,
        changes=_changes,
        steps_rows="counted",
        exclusive=True,
        work="scatter",
        on_host=True,
    ),
)

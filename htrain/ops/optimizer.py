"""Optimizer steps: effects that write a parameter and its state, with torch.optim's arithmetic (HT 2.1).

Of a dense parameter w, float32 of any shape, with its gradient dw and states of the same shape, but for Adam's step[]:

    Sgd(w, dw)                          w -= lr * dw
    Adagrad(w, accumulator, dw)         accumulator += dw^2;  w -= lr * dw / (sqrt(accumulator) + eps)
    Adam(w, mean, square, step, dw)     with bias correction; `step` counts the steps

Steps with a state are exclusive: beside a step that has scaled a second moment and not added to it yet, another divides
by too little, and may be larger than all others by orders of magnitude. A step of Sgd may be lost to another, no more.

Of a table[R,D], or the row shard of one that starts at `first_row`, with distinct ids[u], int64, and rows[u,D], the sum
of each id's gradients:

    SparseSgd(table, ids, rows)
    SparseAdagrad(table, accumulator[R,D], ids, rows)
    SparseRowWiseAdagrad(table, accumulator[R], ids, rows)      the accumulator adds the mean of a row's squares
    SparseFtrl(table, ftrl[R,2D], ids, rows)                    z and n of each number (htrain.ops.ftrl)

Before such a step, where the rows of a batch decay, their gradients drows[u,D] get a share of the rows[u,D] that were looked up:

    DecayedRows(drows, rows)            drows + decay * rows

and where all gradients of dense weights are clipped together, each is one of

    ClipTogether(dw, ..)                dw, .. times max_norm / (norm of all + 1e-6) where that is below 1
"""

from collections.abc import Sequence

import torch

from htrain.net.net import Blob, Op, numel
from htrain.ops import accelerated, step_loops
from htrain.ops.base import Cost, CostRule, OpDef, Signature, changes_rows, no_outputs, same_as_input
from htrain.ops.moments import adam_step


def _sgd(w: torch.Tensor, dw: torch.Tensor, *, lr: float) -> None:
    w.sub_(dw, alpha=lr)


def _adagrad(w: torch.Tensor, accumulator: torch.Tensor, dw: torch.Tensor, *, lr: float, eps: float) -> None:
    accumulator.addcmul_(dw, dw)
    w.addcdiv_(dw, accumulator.sqrt().add_(eps), value=-lr)


def _adam(
    w: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    step: torch.Tensor,
    dw: torch.Tensor,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    adam_step(w, mean, square, step, dw=dw, rate=lr, betas=(beta1, beta2), eps=eps)


def _sparse_sgd(table: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor, *, lr: float, first_row: int) -> None:
    step_loops.sgd_rows(table.numpy(), ids.numpy(), rows.numpy(), first_row, lr)


def _sparse_adagrad(
    table: torch.Tensor,
    accumulator: torch.Tensor,
    ids: torch.Tensor,
    rows: torch.Tensor,
    *,
    lr: float,
    eps: float,
    first_row: int,
) -> None:
    step_loops.adagrad_rows(
        table.numpy(), accumulator.numpy(), ids=ids.numpy(), grads=rows.numpy(), first_row=first_row, lr=lr, eps=eps
    )


def _row_wise_adagrad(
    table: torch.Tensor,
    accumulator: torch.Tensor,
    ids: torch.Tensor,
    rows: torch.Tensor,
    *,
    lr: float,
    eps: float,
    first_row: int,
) -> None:
    step_loops.rowwise_adagrad_rows(
        table.numpy(), accumulator.numpy(), ids=ids.numpy(), grads=rows.numpy(), first_row=first_row, lr=lr, eps=eps
    )


def _sparse_ftrl(
    table: torch.Tensor,
    ftrl: torch.Tensor,
    ids: torch.Tensor,
    rows: torch.Tensor,
    *,
    lr: float,
    beta: float,
    l1: float,
    l2: float,
    first_row: int,
) -> None:
    step_loops.ftrl_rows(
        table.numpy(), ftrl.numpy(), ids=ids.numpy(), grads=rows.numpy(), first_row=first_row, lr=lr, beta=beta, l1=l1, l2=l2
    )  # fmt: skip


def _decayed_rows(drows: torch.Tensor, rows: torch.Tensor, *, decay: float) -> torch.Tensor:
    return drows.add(rows, alpha=decay)


def _clip_together(*gradients: torch.Tensor, max_norm: float) -> tuple[torch.Tensor, ...]:
    """As torch.nn.utils.clip_grad_norm_ has it, out of place."""
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(dw) for dw in gradients]))
    share = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return tuple(dw * share for dw in gradients)


def _as_given(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(blob.shape, blob.dtype) for blob in inputs]


def _clip_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Gradients are read twice and written once."""
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *inputs, *outputs))
    return Cost(float(sum(3 * numel(b.shape, batch_size) for b in inputs)), float(moved))


def _decay_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    return Cost(2.0 * numel(outputs[0].shape, batch_size), float(moved))


def _dense_cost(flops_per_element: int) -> CostRule:
    def cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
        elements = numel(inputs[0].shape, batch_size)
        moved = sum(b.num_bytes(batch_size) for b in inputs) + sum(b.num_bytes(batch_size) for b in inputs[:-1])
        return Cost(float(flops_per_element * elements), float(moved))

    return cost


def _sparse_cost(flops_per_element: int, *, states: int = 1) -> CostRule:
    """The rows of a batch only: gradients read, table and state rows read and written; a state is `states` times as wide as a row."""

    def cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
        gradients = inputs[-1]
        touched = numel(gradients.shape, batch_size)
        passes = 3.0 + 2 * states * (len(inputs) - 3)
        return Cost(float(flops_per_element * touched), passes * gradients.num_bytes(batch_size))

    return cost


DEFINITIONS = (
    OpDef("Sgd", _sgd, no_outputs, _dense_cost(2), None, effects=True, writes=(0,), steps_weights=True),
    OpDef(
        "Adagrad",
        _adagrad,
        no_outputs,
        _dense_cost(6),
        None,
        effects=True,
        writes=(0, 1),
        steps_weights=True,
        exclusive=True,
    ),
    OpDef(
        "Adam",
        _adam,
        no_outputs,
        _dense_cost(12),
        None,
        effects=True,
        writes=(0, 1, 2, 3),
        steps_weights=True,
        exclusive=True,
    ),
    OpDef("ClipTogether", _clip_together, _as_given, _clip_cost, None, many=True),
    OpDef("DecayedRows", _decayed_rows, same_as_input(0), _decay_cost, None, elementwise=True),
    OpDef(
        "SparseSgd",
        _sparse_sgd,
        no_outputs,
        _sparse_cost(2),
        None,
        effects=True,
        writes=(0,),
        changes=changes_rows,
        steps_rows="sgd",
        work="scatter",
        on_host=True,
        accelerated=accelerated.sparse_sgd,
    ),
    OpDef(
        "SparseAdagrad",
        _sparse_adagrad,
        no_outputs,
        _sparse_cost(6),
        None,
        effects=True,
        writes=(0, 1),
        changes=changes_rows,
        steps_rows="adagrad",
        work="scatter",
        on_host=True,
        accelerated=accelerated.sparse_adagrad,
    ),
    OpDef(
        "SparseRowWiseAdagrad",
        _row_wise_adagrad,
        no_outputs,
        _sparse_cost(5),
        None,
        effects=True,
        writes=(0, 1),
        changes=changes_rows,
        steps_rows="rowwise_adagrad",
        work="scatter",
        on_host=True,
        accelerated=accelerated.row_wise_adagrad,
    ),
    OpDef(
        "SparseFtrl",
        _sparse_ftrl,
        no_outputs,
        _sparse_cost(15, states=2),
        None,
        effects=True,
        writes=(0, 1),
        changes=changes_rows,
        steps_rows="ftrl",
        work="scatter",
        on_host=True,
        accelerated=accelerated.sparse_ftrl,
    ),
)

"""Rows of a table within a norm, as `max_norm` of nn.Embedding has them: scaled as they are read, and in the table before they are stepped.

    y = BoundRows(rows)          rows[..,D] that are longer than max_norm, times max_norm / (their norm + 1e-7); the gradient is dy, of the scaled rows
    BoundTable(table, ids)       the same of the distinct ids[u] of a table[R,D], or of a row shard that starts at `first_row`, in place

PyTorch changes the table when it reads it, and no gradient goes through the scale. A row that is bounded twice is what it is bounded once, so that a table may
keep longer rows until their next step: readers bound them.
"""

from collections.abc import Sequence

import numpy as np
import torch

from htrain.jit import njit
from htrain.net.net import Blob, Op, numel
from htrain.ops.base import Builder, Cost, OpDef, RowChange, no_outputs, same_as_input
from htrain.ops.sparse_checks import fits, ids_out_of_range

_FLOOR = 1e-7  # as torch.embedding_renorm_ has it


def _bound_rows(rows: torch.Tensor, *, max_norm: float) -> torch.Tensor:
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return torch.where(norm > max_norm, rows * (max_norm / (norm + _FLOOR)), rows)


def _bound_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    return (dys[0],)


def _bound_table(table: torch.Tensor, ids: torch.Tensor, *, max_norm: float, first_row: int) -> None:
    held, keys = table.numpy(), ids.numpy()
    if not fits(bound_loop, held, keys, first_row, max_norm):
        raise ids_out_of_range(keys, np.empty((keys.size, held.shape[1]), np.float32), held, first_row)


def _bound_accelerated(table: torch.Tensor, ids: torch.Tensor, *, max_norm: float, first_row: int) -> None:
    places = ids.long() - first_row
    table.index_copy_(0, places, _bound_rows(table.index_select(0, places), max_norm=max_norm))


@njit(nogil=True, cache=True, error_model="numpy")
def bound_loop(table, ids, first_row, max_norm):  # type: ignore[no-untyped-def]
    """The loop of BoundTable. False where an id is outside the shard: rows before it may have been bounded."""
    for i in range(ids.size):
        row = ids[i] - first_row
        if row < 0 or row >= table.shape[0]:
            return False
        total = np.float32(0.0)
        for d in range(table.shape[1]):
            total += table[row, d] * table[row, d]
        norm = np.sqrt(total)
        if norm > np.float32(max_norm):
            scale = np.float32(max_norm) / (norm + np.float32(_FLOOR))
            for d in range(table.shape[1]):
                table[row, d] *= scale
    return True


def _rows_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    moved = sum(b.num_bytes(batch_size) for b in (*inputs, *outputs))
    return Cost(4.0 * numel(outputs[0].shape, batch_size), float(moved))


def _table_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The rows of a batch, read and written."""
    table, ids = inputs
    touched = numel((*ids.shape, *table.shape[1:]), batch_size)
    return Cost(3.0 * touched, 8.0 * touched + ids.num_bytes(batch_size))


def _changes(op: Op) -> Sequence[RowChange]:
    table, ids = op.inputs
    first_row = op.attrs["first_row"]
    assert isinstance(first_row, int)
    return (RowChange((table,), ids, first_row),)


DEFINITIONS = (
    OpDef("BoundRows", _bound_rows, same_as_input(0), _rows_cost, _bound_rule),
    OpDef(
        "BoundTable",
        _bound_table,
        no_outputs,
        _table_cost,
        None,
        effects=True,
        writes=(0,),
        changes=_changes,
        bounds_rows=True,
        work="scatter",
        on_host=True,
        accelerated=_bound_accelerated,
    ),
)

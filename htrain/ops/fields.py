"""Rows of many tables as one value: a click log's fields, stacked (docs/decisions/fusions.md). One loop for all tables.

y[B,F,D] = StackRows(x[B,D], .., rows[u,D], .., inverse[B], ..)    dense values, then a row of each table
dx, .., drows, .. = StackRowsGradient(x, .., rows, .., inverse, .., dy[B,F,D])
y[B,F,D] = StackTables(x[B,D], .., table[R,D], .., ids[B,C])       tables that are here whole, each by its own column
StepTables(table[R,D], .., ids[B,C], dy[B,F,D])                    SGD on these rows, in place
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from htrain.errors import DataError
from htrain.jit import njit
from htrain.net.net import Attr, Blob, Op
from htrain.ops import accelerated
from htrain.ops.base import (
    Builder,
    Cost,
    OpDef,
    RowChange,
    Signature,
    changes_by_columns,
    gradient_names,
    no_outputs,
    runs,
)
from htrain.ops.expectation import Counts, Expectation, rows_like
from htrain.ops.pointers import array_at, prefetch_row
from htrain.ops.sparse_checks import inverse_out_of_range
from htrain.ops.tables import Tables, find_out_of_range, pointers_of, sizes_of, step_rows


def _stack_rows(*values: torch.Tensor, dense: int) -> torch.Tensor:
    """y[B,F,D]: the `dense` values x[B,D], then of each table rows[u,D] those of inverse[B], zero for an inverse index
    of -1.
    """
    own, rows, inverse = _parts(values, dense)
    y = np.empty((inverse[0].shape[0], len(own) + len(rows), rows[0].shape[1]), np.float32)
    bad = _stack(pointers_of(own), pointers_of(rows), sizes_of(rows), pointers_of(inverse), y)
    if bad >= 0:
        raise inverse_out_of_range(inverse[bad].numpy(), rows[bad].numpy(), y[:, 0])
    return torch.from_numpy(y)


def _stack_rows_gradient(*values: torch.Tensor, dense: int) -> tuple[torch.Tensor, ...]:
    """dx[B,D] of each dense value, and drows[u,D] of each table, summed over the examples with the same row."""
    *inputs, dy = values
    own, rows, inverse = _parts(inputs, dense)
    shape = (inverse[0].shape[0], len(own) + len(rows), rows[0].shape[1])
    if dy.shape != shape or dy.dtype != torch.float32:
        raise DataError(f"gradients of stacked rows are {dy.dtype}{list(dy.shape)}, want torch.float32{list(shape)}")
    dy = dy.contiguous()
    dx = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in own]
    counts = [part.shape[0] for part in rows]
    flat = torch.zeros(sum(counts), dy.shape[2])
    drows = flat.split(counts)
    bad = _spread(dy.numpy(), pointers_of(dx), pointers_of(drows), sizes_of(rows), pointers_of(inverse))
    if bad >= 0:
        raise inverse_out_of_range(inverse[bad].numpy(), rows[bad].numpy(), dy[:, 0].numpy())
    return (*dx, *drows)


def _bind_stack_tables(
    *known: torch.Tensor | None, dense: int, columns: tuple[int, ...]
) -> Callable[..., torch.Tensor]:
    return partial(_stack_from, Tables([table for table in known[dense:-1] if table is not None], columns))


def _stack_tables(*values: torch.Tensor, dense: int, columns: tuple[int, ...]) -> torch.Tensor:
    """As StackRows, of whole tables[R,D] on this device: from each, the rows that its own column of ids[B,C] names."""
    return _stack_from(Tables(values[dense:-1], columns), *values[:dense], values[-1])


def _stack_from(tables: Tables, *values: torch.Tensor) -> torch.Tensor:
    own, ids = [x.contiguous() for x in values[:-1]], tables.ids(values[-1])
    if any(x.shape != (len(ids), tables.width) or x.dtype != torch.float32 for x in own):
        raise DataError(
            f"values that are stacked with rows of {tables.width} want {len(ids)} examples, {tables.width} wide"
        )
    y = np.empty((len(ids), len(own) + len(tables.tensors), tables.width), np.float32)
    bad = _stack_columns(pointers_of(own), tables.pointers, sizes=tables.sizes, ids=ids, columns=tables.columns, y=y)
    if bad >= 0:
        raise tables.out_of_range(bad, ids)
    return torch.from_numpy(y)


def _bind_step_tables(
    *known: torch.Tensor | None, dense: int, columns: tuple[int, ...], lr: float
) -> Callable[..., None]:
    return partial(_step_in, Tables([table for table in known[:-2] if table is not None], columns), dense=dense, lr=lr)


def _step_tables(*values: torch.Tensor, dense: int, columns: tuple[int, ...], lr: float) -> None:
    """SGD on the rows of each table, by dy[B,F,D] as StackTables has stacked them; an id that comes twice takes two steps."""
    _step_in(Tables(values[:-2], columns), *values[-2:], dense=dense, lr=lr)


def _step_in(tables: Tables, ids: torch.Tensor, dy: torch.Tensor, *, dense: int, lr: float) -> None:
    rows = tables.ids(ids)
    if dy.shape != (len(ids), dense + len(tables.tensors), tables.width):
        raise DataError(
            f"gradients of {len(tables.tensors)} tables are {list(dy.shape)}, want [{len(ids)},{dense + len(tables.tensors)},{tables.width}]"
        )
    bad = _sgd(
        tables.pointers, tables.sizes, ids=rows, columns=tables.columns, dy=dy.contiguous().numpy(), dense=dense, lr=lr
    )
    if bad >= 0:
        raise tables.out_of_range(bad, rows)


def _parts(
    values: Sequence[torch.Tensor], dense: int
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Dense values, rows and inverse indices, with at least one table.

    Raises DataError where loops over addresses would leave them.
    """
    count = (len(values) - dense) // 2
    own, rows, inverse = values[:dense], values[dense : dense + count], values[dense + count :]
    batch, width = inverse[0].shape[0], rows[0].shape[-1]
    fit = all(p.shape == (batch,) and p.dtype == torch.int64 for p in inverse) and all(
        x.shape == (batch, width) for x in own
    )
    if not fit or any(r.shape[1:] != (width,) for r in rows) or any(r.dtype != torch.float32 for r in (*own, *rows)):
        raise DataError(
            f"rows of several tables differ in form: want float32 rows, {width} wide, and {batch} int64 places of each"
        )
    return [x.contiguous() for x in own], [r.contiguous() for r in rows], [p.contiguous() for p in inverse]


@njit(nogil=True, cache=True)
def _stack_own(own, y):  # type: ignore[no-untyped-def]
    """Copy the dense values into y[B,F,D], before the rows."""
    for k in range(own.size):
        x = array_at(own[k], (y.shape[0], y.shape[2]), np.float32(0))
        for b in range(y.shape[0]):
            for d in range(y.shape[2]):
                y[b, k, d] = x[b, d]


@njit(nogil=True, cache=True, usual="(i8[::1], i8[::1], i8[::1], i8[::1], f4[:,:,::1])")
def _stack(own, rows, sizes, inverse, y):  # type: ignore[no-untyped-def]
    """Copy the rows into y[B,F,D]. Returns the first table with an inverse index outside [-1, size), or -1."""
    batch, _, width = y.shape
    _stack_own(own, y)
    for t in range(rows.size):
        table = array_at(rows[t], (sizes[t], width), np.float32(0))
        at = array_at(inverse[t], (batch,), np.int64(0))
        for b in range(batch):
            place = at[b]
            if place < -1 or place >= sizes[t]:
                return t
            for d in range(width):
                y[b, own.size + t, d] = table[place, d] if place >= 0 else np.float32(0.0)
    return -1


@njit(nogil=True, cache=True, usual="(f4[:,:,::1], i8[::1], i8[::1], i8[::1], i8[::1])")
def _spread(dy, dx, drows, sizes, inverse):  # type: ignore[no-untyped-def]
    batch, _, width = dy.shape
    for k in range(dx.size):
        own = array_at(dx[k], (batch, width), np.float32(0))
        for b in range(batch):
            for d in range(width):
                own[b, d] = dy[b, k, d]
    for t in range(drows.size):
        table = array_at(drows[t], (sizes[t], width), np.float32(0))
        at = array_at(inverse[t], (batch,), np.int64(0))
        for b in range(batch):
            place = at[b]
            if place < -1 or place >= sizes[t]:
                return t
            if place >= 0:
                for d in range(width):
                    table[place, d] += dy[b, dx.size + t, d]
    return -1


@njit(nogil=True, cache=True)
def _stack_columns(own, tables, sizes, ids, columns, y):  # type: ignore[no-untyped-def]
    """The first table with an id outside it, or -1. Rows of the next example are on their way while one is copied."""
    batch, _, width = y.shape
    _stack_own(own, y)
    for b in range(batch):
        for t in range(tables.size):
            row = ids[b, columns[t]]
            if row < 0 or row >= sizes[t]:
                return t
            if b + 1 < batch:
                prefetch_row(tables[t], ids[b + 1, columns[t]], 4 * width)
            table = array_at(tables[t], (sizes[t], width), np.float32(0))
            for d in range(width):
                y[b, own.size + t, d] = table[row, d]
    return -1


@njit(nogil=True, cache=True, fastmath={"contract"})
def _sgd(tables, sizes, ids, columns, dy, dense, lr):  # type: ignore[no-untyped-def]
    """The first table with an id outside it, or -1: then no row has been changed."""
    bad = find_out_of_range(sizes, ids, columns)
    if bad < 0:
        for b in range(dy.shape[0]):
            step_rows(tables, sizes, ids=ids, columns=columns, b=b, rate=np.float32(lr), dy=dy[b], first=dense)
    return bad


def _infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    dense = op.attrs["dense"]
    assert isinstance(dense, int)
    batch = inputs[0].shape[0] if dense else inputs[-1].shape[0]
    return [((batch, dense + (len(inputs) - dense) // 2, inputs[0].shape[1]), inputs[0].dtype)]


def _infer_gradient(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    dense = op.attrs["dense"]
    assert isinstance(dense, int)
    return [(blob.shape, blob.dtype) for blob in inputs[: dense + (len(inputs) - 1 - dense) // 2]]


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Every row read and written once, whichever way it goes."""
    stacked = outputs[0] if op.type in ("StackRows", "StackTables") else inputs[-1]
    return Cost(0.0, 2.0 * stacked.num_bytes(batch_size))


def _expected_gradient(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    """A gradient for each row that was stacked."""
    return rows_like(op.outputs, op.inputs, counts)


def _rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    dense = op.attrs["dense"]
    assert isinstance(dense, int)
    made = dense + (len(op.inputs) - dense) // 2
    attrs: dict[str, Attr] = {"dense": dense}
    names = gradient_names(builder, op, range(made))  # rows of one table may be stacked twice
    gradients = builder.add("StackRowsGradient", (*op.inputs, dys[0]), attrs=attrs, module=op.module, outputs=names)
    return [*gradients, *[""] * (len(op.inputs) - made)]


def _infer_tables(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    *stacked, ids = inputs
    return [((ids.shape[0], len(stacked), stacked[-1].shape[1]), "float32")]


def _stepped(op: Op) -> tuple[int, ...]:
    """The positions of the tables."""
    return tuple(range(len(op.inputs) - 2))


def _changes(op: Op) -> Sequence[RowChange]:
    return changes_by_columns(op, op.inputs[:-2], op.inputs[-2])


DEFINITIONS = (
    OpDef(
        "StackTables",
        _stack_tables,
        _infer_tables,
        _cost,
        None,
        effects=True,
        bind=_bind_stack_tables,
        work="gather",
        on_host=True,
    ),
    OpDef(
        "StepTables",
        _step_tables,
        no_outputs,
        _cost,
        None,
        effects=True,
        writes=_stepped,
        changes=_changes,
        bind=_bind_step_tables,
        work="scatter",
        on_host=True,
    ),
    OpDef(
        "StackRows",
        _stack_rows,
        _infer,
        _cost,
        gradient=_rule,
        work="gather",
        on_host=True,
        accelerated=accelerated.stack_rows,
        loops=runs(_stack),
    ),
    OpDef(
        "StackRowsGradient",
        _stack_rows_gradient,
        _infer_gradient,
        _cost,
        gradient=None,
        many=True,
        work="scatter",
        on_host=True,
        accelerated=accelerated.stack_rows_gradient,
        loops=runs(_spread),
        expected=_expected_gradient,
    ),
)

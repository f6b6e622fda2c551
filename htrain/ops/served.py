"""Lookups and optimizer steps of all the tables that one message is about, as one op each (htrain.transform.fuse_served).

    rows, ..  = LookupTables(table, .., ids, ..)              of each table the rows of its ids
    SparseStepTables(table, .., state, .., ids, .., rows, ..)  the `optimizer` step of each table by its distinct ids and a gradient row for each

The steps are the loops of SparseSgd, SparseAdagrad and SparseRowWiseAdagrad (htrain.ops.step_loops). Tables may differ in width and may
be shards, which start at `first_rows`. Rows are asked for some ids ahead of their use: those of large tables are in no cache
(docs/decisions/fusions.md). Those of each table are values of their own: memory that messages have left takes them, where one piece for
all would find no room between these.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.net import Blob, Op
from htrain.ops.base import Cost, OpDef, RowRead, Signature, no_outputs
from htrain.ops.expectation import Counts, Expectation, rows_like
from htrain.ops.pointers import array_at, prefetch_row
from htrain.ops.sparse_checks import ids_misfit
from htrain.ops.step_loops import AHEAD, adagrad_loop, rowwise_adagrad_loop, sgd_loop

Numbers = NDArray[np.int64]
_HEADER = 40 // 4  # float32 numbers: ZeroMQ keeps so much beside the bytes of a message that it has received


class Served:
    """Tables[R,D], or states[R,D] and [R], and where they are: what loops over them want to know, found once."""

    def __init__(self, tables: Sequence[torch.Tensor], states: Sequence[torch.Tensor], first_rows: Sequence[int]) -> None:
        """Raises DataError where loops over addresses would leave the tables."""
        plain = all(t.dtype == torch.float32 and t.is_contiguous() for t in (*tables, *states))
        if not plain or any(t.dim() != 2 for t in tables) or any(s.shape[0] != t.shape[0] for s, t in zip(states, tables, strict=False)):
            raise DataError("tables that are served together want float32 rows, and a state for each")
        self.tables, self.states = tuple(tables), tuple(states)
        self.widths = [table.shape[1] for table in tables]
        self.pointers, self.state_pointers = _pointers(tables), _pointers(states)
        self.forms = np.array([(table.shape[0], table.shape[1], first) for table, first in zip(tables, first_rows, strict=True)], np.int64)

    def counts(self, ids: Sequence[torch.Tensor]) -> Numbers:
        """How many ids of each table there are. Raises DataError for what is no list of ids."""
        for table, found in zip(self.tables, ids, strict=True):
            if found.dim() != 1 or found.dtype != torch.int64 or not found.is_contiguous():
                raise ids_misfit(found.numpy(), np.empty((0, table.shape[1]), np.float32), table.numpy(), 0)
        return np.array([len(found) for found in ids], np.int64)

    def misfit(self, bad: int, ids: Sequence[torch.Tensor]) -> DataError:
        """Table number `bad` has no row for some of its ids."""
        rows = np.empty((len(ids[bad]), self.widths[bad]), np.float32)
        return ids_misfit(ids[bad].numpy(), rows, self.tables[bad].numpy(), int(self.forms[bad, 2]))


def _pointers(tensors: Sequence[torch.Tensor]) -> Numbers:
    return np.array([tensor.data_ptr() for tensor in tensors], np.int64)


def _all_known(known: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Tensors, or none where some are not there: a program that is simulated has no parameters."""
    found = [tensor for tensor in known if tensor is not None]
    return found if len(found) == len(known) else []


# -- lookups ---------------------------------------------------------------------------------------------------------


def _bind_lookup(*known: torch.Tensor | None, first_rows: tuple[int, ...]) -> Callable[..., tuple[torch.Tensor, ...]]:
    tables = _all_known(known[: len(first_rows)])
    return partial(_look_up, Served(tables, (), first_rows)) if tables else partial(_lookup_tables, first_rows=first_rows)


def _lookup_tables(*values: torch.Tensor, first_rows: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    count = len(first_rows)
    return _look_up(Served(values[:count], (), first_rows), *values[count:])


def _look_up(served: Served, *ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    counts = served.counts(ids)
    rows = tuple(_room(len(found), width) for found, width in zip(ids, served.widths, strict=True))
    bad = _gather(served.pointers, served.forms, _pointers(ids), counts, _pointers(rows))
    if bad >= 0:
        raise served.misfit(bad, ids)
    return rows


def _room(rows: int, width: int) -> torch.Tensor:
    """Rows that are not filled, in as much memory as the gradients of them take that come in afterwards: where one was, the other has room.

    With pieces that differ by some bytes, the heap of a busy sparse PS grows further (tools/bench/sparse_ps.py --open 4 prints its memory).
    """
    return torch.from_numpy(np.empty(rows * width + _HEADER, np.float32))[: rows * width].view(rows, width)


@njit(nogil=True, cache=True)
def _gather(tables, forms, ids, counts, out):  # type: ignore[no-untyped-def]
    """The first table with an id outside it, or -1."""
    for t in range(tables.size):
        size, width, first = forms[t]
        table = array_at(tables[t], (size, width), np.float32(0))
        at = array_at(ids[t], (counts[t],), np.int64(0))
        rows = array_at(out[t], (counts[t], width), np.float32(0))
        for i in range(counts[t]):
            row = at[i] - first
            if row < 0 or row >= size:
                return t
            if i + AHEAD < counts[t]:
                prefetch_row(tables[t], at[i + AHEAD] - first, 4 * width)
            for d in range(width):
                rows[i, d] = table[row, d]
    return -1


# -- optimizer steps -------------------------------------------------------------------------------------------------


def _bind_step(
    *known: torch.Tensor | None, optimizer: str, lr: float, eps: float, first_rows: tuple[int, ...]
) -> Callable[..., None]:
    count = len(first_rows)
    held = _all_known(known[: len(known) - 2 * count])
    if not held:
        return partial(_step_tables, optimizer=optimizer, lr=lr, eps=eps, first_rows=first_rows)
    return partial(_step_in, Served(held[:count], held[count:], first_rows), optimizer=optimizer, lr=lr, eps=eps)


def _step_tables(*values: torch.Tensor, optimizer: str, lr: float, eps: float, first_rows: tuple[int, ...]) -> None:
    held, count = len(values) - 2 * len(first_rows), len(first_rows)
    _step_in(Served(values[:count], values[count:held], first_rows), *values[held:], optimizer=optimizer, lr=lr, eps=eps)


def _step_in(served: Served, *values: torch.Tensor, optimizer: str, lr: float, eps: float) -> None:
    count = len(served.tables)
    ids, grads = values[:count], [grad.contiguous() for grad in values[count:]]
    counts = served.counts(ids)
    for table, found, grad in zip(served.tables, ids, grads, strict=True):
        if grad.dim() != 2 or grad.dtype != torch.float32 or len(grad) < len(found) or grad.shape[1] != table.shape[1]:
            raise ids_misfit(found.numpy(), grad.numpy(), table.numpy(), 0)
    batch = served.forms, _pointers(ids), counts, _pointers(grads), lr
    if optimizer == "sgd":
        bad = _sgd(served.pointers, *batch)
    else:
        bad = (_adagrad if optimizer == "adagrad" else _rowwise_adagrad)(served.pointers, served.state_pointers, *batch, eps)
    if bad >= 0:
        raise served.misfit(bad, ids)


@njit(nogil=True, cache=True)
def _parts(tables, forms, ids, counts, grads, t):  # type: ignore[no-untyped-def]
    """Table t, its ids, its gradients, and its first row."""
    size, width, first = forms[t]
    table = array_at(tables[t], (size, width), np.float32(0))
    return table, array_at(ids[t], (counts[t],), np.int64(0)), array_at(grads[t], (counts[t], width), np.float32(0)), first


@njit(nogil=True, cache=True)
def _sgd(tables, forms, ids, counts, grads, lr):  # type: ignore[no-untyped-def]
    """The first table with an id outside it, or -1."""
    for t in range(tables.size):
        table, at, rows, first = _parts(tables, forms, ids, counts, grads, t)
        if not sgd_loop(table, at, rows, first, lr):
            return t
    return -1


@njit(nogil=True, cache=True)
def _adagrad(tables, states, forms, ids, counts, grads, lr, eps):  # type: ignore[no-untyped-def]
    for t in range(tables.size):
        table, at, rows, first = _parts(tables, forms, ids, counts, grads, t)
        if not adagrad_loop(table, array_at(states[t], table.shape, np.float32(0)), at, rows, first, lr, eps):
            return t
    return -1


@njit(nogil=True, cache=True)
def _rowwise_adagrad(tables, states, forms, ids, counts, grads, lr, eps):  # type: ignore[no-untyped-def]
    for t in range(tables.size):
        table, at, rows, first = _parts(tables, forms, ids, counts, grads, t)
        if not rowwise_adagrad_loop(table, array_at(states[t], table.shape[:1], np.float32(0)), at, rows, first, lr, eps):
            return t
    return -1


# -- definitions -----------------------------------------------------------------------------------------------------


def _num_tables(op: Op) -> int:
    first_rows = op.attrs["first_rows"]
    assert isinstance(first_rows, tuple)
    return len(first_rows)


def _infer_lookup(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    count = _num_tables(op)
    return [((ids.shape[0], table.shape[1]), table.dtype) for table, ids in zip(inputs[:count], inputs[count:], strict=True)]


def _reads(op: Op) -> Sequence[RowRead]:
    count = _num_tables(op)
    return list(zip(op.inputs[:count], op.inputs[count:], op.outputs, strict=True))


def _ids(op: Op) -> Sequence[str]:
    return op.inputs[_num_tables(op) :]


def _expected_rows(op: Op, counts: Counts, expectation: Expectation) -> Counts:
    return rows_like(op.outputs, _ids(op), counts)


def _lookup_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The rows that the batch touches, read and written; never the whole tables."""
    rows, ids = (sum(b.num_bytes(batch_size) for b in blobs) for blobs in (outputs, inputs[_num_tables(op) :]))
    return Cost(0.0, 2.0 * rows + ids)


_FLOPS = {"sgd": 2, "adagrad": 6, "rowwise_adagrad": 5}


def _step_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """As the steps of the tables one by one: gradients read, rows and states of a batch read and written."""
    count = _num_tables(op)
    moved = sum(b.num_bytes(batch_size) for b in inputs[-count:])
    passes = 2.0 * (len(inputs) // count) - 3
    return Cost(_FLOPS[str(op.attrs["optimizer"])] * moved / 4, passes * moved)


def _stepped(op: Op) -> tuple[int, ...]:
    """The tables and their states."""
    return tuple(range(len(op.inputs) - 2 * _num_tables(op)))


DEFINITIONS = (
    OpDef(
        "LookupTables", _lookup_tables, _infer_lookup, _lookup_cost, None, many=True, bind=_bind_lookup, on_host=True, effects=True, work="gather",
        reads=_reads, asked_by=_ids, expected=_expected_rows,
    ),
    OpDef("SparseStepTables", _step_tables, no_outputs, _step_cost, None, effects=True, writes=_stepped, bind=_bind_step, work="scatter", on_host=True),
)

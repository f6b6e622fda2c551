"""Lookups and optimizer steps of all the tables that one message is about, as one op each (htrain.transform.fusions.servers).

    rows, ..  = LookupTables(table, .., ids, ..)              of each table the rows of its ids
    SparseStepTables(table, .., state, .., ids, .., rows, ..)  the `optimizer` step of each table by its distinct ids and a gradient row for each

The steps are the loops of SparseSgd, SparseAdagrad, SparseRowWiseAdagrad and SparseFtrl (htrain.ops.step_loops). Tables may differ in width and may
be shards, which start at `first_rows`. Rows are asked for some ids ahead of their use: those of large tables are in no cache
(docs/decisions/fusions.md). Ids, rows and gradients that come in a message and leave in another are bundles, which loops take by their addresses: none
becomes a tensor on the way (docs/decisions/bundles.md).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.jit import njit
from htrain.net.net import Blob, Op
from htrain.ops.base import Cost, OpDef, RowChange, RowRead, Signature, no_outputs, runs
from htrain.ops.bundle import Bundle, Kinds
from htrain.ops.expectation import Counts, Expectation, rows_like
from htrain.ops.pointers import array_at, prefetch_row
from htrain.ops.sparse_checks import ids_out_of_range
from htrain.ops.step_loops import AHEAD, adagrad_loop, ftrl_loop, rowwise_adagrad_loop, sgd_loop

Numbers = NDArray[np.int64]


class Served:
    """Tables[R,D], or states[R,D] and [R], and where they are: what loops over them want to know, found once."""

    def __init__(
        self, tables: Sequence[torch.Tensor], states: Sequence[torch.Tensor], first_rows: Sequence[int]
    ) -> None:
        """Raises DataError where loops over addresses would leave the tables."""
        plain = all(t.dtype == torch.float32 and t.is_contiguous() for t in (*tables, *states))
        if (
            not plain
            or any(t.dim() != 2 for t in tables)
            or any(s.shape[0] != t.shape[0] for s, t in zip(states, tables, strict=False))
        ):
            raise DataError("tables that are served together want float32 rows, and a state for each")
        self.tables, self.states = tuple(tables), tuple(states)
        self.widths = [table.shape[1] for table in tables]
        self.pointers, self.state_pointers = _pointers(tables), _pointers(states)
        self._rows: dict[tuple[str, ...], Kinds] = {}
        self.forms = np.array(
            [(table.shape[0], table.shape[1], first) for table, first in zip(tables, first_rows, strict=True)], np.int64
        )

    def counts(self, ids: Bundle) -> Numbers:
        """How many ids of each table there are. Raises DataError for what is no list of ids."""
        if not _are(ids.kinds, "int64", 1):
            place = next(
                k for k, form in enumerate(zip(ids.kinds.dtypes, ids.kinds.ranks, strict=True)) if form != ("int64", 1)
            )
            raise ids_out_of_range(
                ids[ids.kinds.names[place]].numpy(),
                np.empty((0, self.widths[place]), np.float32),
                self.tables[place].numpy(),
                0,
            )
        return ids.dims

    def rows_called(self, names: tuple[str, ...]) -> Kinds:
        """The kinds of a bundle of rows, one blob of `names` for each table."""
        if names not in self._rows:
            self._rows[names] = Kinds.of(names, ("float32",) * len(names), (2,) * len(names))
        return self._rows[names]

    def out_of_range(self, bad: int, ids: Bundle, rows: Bundle | None = None) -> DataError:
        """The error for table number `bad`: it has no row for some of its ids, or `rows` are fewer than its ids, or of
        another width.
        """
        found = ids[ids.kinds.names[bad]].numpy()
        given = (
            np.empty((len(found), self.widths[bad]), np.float32)
            if rows is None
            else rows[rows.kinds.names[bad]].numpy()
        )
        return ids_out_of_range(found, given, self.tables[bad].numpy(), int(self.forms[bad, 2]))


@lru_cache
def _are(kinds: Kinds, dtype: str, rank: int) -> bool:
    """Whether all tensors are of a dtype and of so many dimensions."""
    return all(form == (dtype, rank) for form in zip(kinds.dtypes, kinds.ranks, strict=True))


def _pointers(tensors: Sequence[torch.Tensor]) -> Numbers:
    return np.array([tensor.data_ptr() for tensor in tensors], np.int64)


def _all_known(known: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Tensors, or none where some are not there: a program that is simulated has no parameters."""
    found = [tensor for tensor in known if tensor is not None]
    return found if len(found) == len(known) else []


# -- lookups ---------------------------------------------------------------------------------------------------------


def _bind_lookup(*known: torch.Tensor | None, first_rows: tuple[int, ...]) -> Callable[..., tuple[torch.Tensor, ...]]:
    tables = _all_known(known[: len(first_rows)])
    return (
        partial(_look_up_tensors, Served(tables, (), first_rows))
        if tables
        else partial(_lookup_tables, first_rows=first_rows)
    )


def _lookup_tables(*values: torch.Tensor, first_rows: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    count = len(first_rows)
    return _look_up_tensors(Served(values[:count], (), first_rows), *values[count:])


def _look_up_tensors(served: Served, *ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(_look_up(served, _numbered(len(ids)), Bundle.of(_numbered(len(ids)), ids)).values())


def _bundled_lookup(
    tables: Sequence[torch.Tensor], outputs: tuple[str, ...], *, first_rows: tuple[int, ...]
) -> Callable[[Bundle], Bundle]:
    return partial(_look_up, Served(tables, (), first_rows), outputs)


def _look_up(served: Served, outputs: tuple[str, ...], ids: Bundle) -> Bundle:
    counts = served.counts(ids)
    rows = Bundle.room(served.rows_called(outputs), _shapes(counts, served.forms))
    bad = _gather(served.pointers, served.forms, ids.pointers, counts, rows.pointers)
    if bad >= 0:
        raise served.out_of_range(bad, ids)
    return rows


@lru_cache
def _numbered(count: int) -> tuple[str, ...]:
    """Names for so many tensors that have none."""
    return tuple(map(str, range(count)))


@njit(nogil=True, cache=True, usual="(i8[::1], i8[:,::1])")
def _shapes(counts, forms):  # type: ignore[no-untyped-def]
    """The dimensions of the rows of all tables, one behind the other."""
    dims = np.empty(2 * counts.size, np.int64)
    for t in range(counts.size):
        dims[2 * t], dims[2 * t + 1] = counts[t], forms[t, 1]
    return dims


@njit(nogil=True, cache=True, usual="(i8[::1], i8[:,::1], i8[::1], i8[::1], i8[::1])")
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


def _bind_step(*known: torch.Tensor | None, first_rows: tuple[int, ...], **numbers: Any) -> Callable[..., None]:
    count = len(first_rows)
    held = _all_known(known[: len(known) - 2 * count])
    if not held:
        return partial(_step_tables, first_rows=first_rows, **numbers)
    return partial(_step_tensors, Served(held[:count], held[count:], first_rows), **numbers)


def _step_tables(
    *values: torch.Tensor,
    optimizer: str,
    lr: float,
    eps: float,
    first_rows: tuple[int, ...],
    beta: float = 0.0,
    l1: float = 0.0,
    l2: float = 0.0,
) -> None:
    held, count = len(values) - 2 * len(first_rows), len(first_rows)
    served = Served(values[:count], values[count:held], first_rows)
    _step_tensors(served, *values[held:], optimizer=optimizer, lr=lr, eps=eps, beta=beta, l1=l1, l2=l2)


def _step_tensors(served: Served, *values: torch.Tensor, **numbers: Any) -> None:
    names, count = _numbered(len(served.tables)), len(served.tables)
    _step_in(served, Bundle.of(names, values[:count]), Bundle.of(names, values[count:]), **numbers)


def _bundled_step(
    held: Sequence[torch.Tensor], outputs: tuple[str, ...], *, first_rows: tuple[int, ...], **numbers: Any
) -> Callable[[Bundle, Bundle], None]:
    count = len(first_rows)
    return partial(_step_in, Served(held[:count], held[count:], first_rows), **numbers)


def _step_in(
    served: Served,
    ids: Bundle,
    grads: Bundle,
    *,
    optimizer: str,
    lr: float,
    eps: float,
    beta: float = 0.0,
    l1: float = 0.0,
    l2: float = 0.0,
) -> None:
    counts = served.counts(ids)
    bad = 0 if not _are(grads.kinds, "float32", 2) else _misshapen(grads.dims, counts, served.forms)
    if bad >= 0:
        raise served.out_of_range(_first_of_other_form(grads) or bad, ids, grads)
    batch = served.forms, ids.pointers, counts, grads.pointers, lr
    if optimizer == "sgd":
        bad = _sgd(served.pointers, *batch)
    elif optimizer == "ftrl":
        bad = _ftrl(served.pointers, served.state_pointers, *batch, *(beta, l1, l2))
    else:
        bad = (_adagrad if optimizer == "adagrad" else _rowwise_adagrad)(
            served.pointers, served.state_pointers, *batch, eps
        )
    if bad >= 0:
        raise served.out_of_range(bad, ids)


def _first_of_other_form(grads: Bundle) -> int:
    """The first table whose gradients are no rows; 0 where there is none, or it is the first."""
    forms = zip(grads.kinds.dtypes, grads.kinds.ranks, strict=True)
    return next((place for place, form in enumerate(forms) if form != ("float32", 2)), 0)


@njit(nogil=True, cache=True, usual="(i8[::1], i8[::1], i8[:,::1])")
def _misshapen(dims, counts, forms):  # type: ignore[no-untyped-def]
    """The first table whose gradients are fewer than its ids, or not as wide as it; or -1."""
    for t in range(counts.size):
        if dims[2 * t] < counts[t] or dims[2 * t + 1] != forms[t, 1]:
            return t
    return -1


@njit(nogil=True, cache=True)
def _parts(tables, forms, ids, counts, grads, t):  # type: ignore[no-untyped-def]
    """Table t, its ids, its gradients, and its first row."""
    size, width, first = forms[t]
    table = array_at(tables[t], (size, width), np.float32(0))
    return (
        table,
        array_at(ids[t], (counts[t],), np.int64(0)),
        array_at(grads[t], (counts[t], width), np.float32(0)),
        first,
    )


@njit(nogil=True, cache=True, usual="(i8[::1], i8[:,::1], i8[::1], i8[::1], i8[::1], f8)")
def _sgd(tables, forms, ids, counts, grads, lr):  # type: ignore[no-untyped-def]
    """The first table with an id outside it, or -1."""
    for t in range(tables.size):
        table, at, rows, first = _parts(tables, forms, ids=ids, counts=counts, grads=grads, t=t)
        if not sgd_loop(table, at, rows, first, lr):
            return t
    return -1


@njit(nogil=True, cache=True, usual="(i8[::1], i8[::1], i8[:,::1], i8[::1], i8[::1], i8[::1], f8, f8)")
def _adagrad(tables, states, forms, ids, counts, grads, lr, eps):  # type: ignore[no-untyped-def]
    for t in range(tables.size):
        table, at, rows, first = _parts(tables, forms, ids=ids, counts=counts, grads=grads, t=t)
        if not adagrad_loop(
            table, array_at(states[t], table.shape, np.float32(0)), ids=at, grads=rows, first_row=first, lr=lr, eps=eps
        ):
            return t
    return -1


@njit(nogil=True, cache=True, usual="(i8[::1], i8[::1], i8[:,::1], i8[::1], i8[::1], i8[::1], f8, f8)")
def _rowwise_adagrad(tables, states, forms, ids, counts, grads, lr, eps):  # type: ignore[no-untyped-def]
    for t in range(tables.size):
        table, at, rows, first = _parts(tables, forms, ids=ids, counts=counts, grads=grads, t=t)
        if not rowwise_adagrad_loop(
            table,
            array_at(states[t], table.shape[:1], np.float32(0)),
            ids=at,
            grads=rows,
            first_row=first,
            lr=lr,
            eps=eps,
        ):
            return t
    return -1


@njit(nogil=True, cache=True, usual="(i8[::1], i8[::1], i8[:,::1], i8[::1], i8[::1], i8[::1], f8, f8, f8, f8)")
def _ftrl(tables, states, forms, ids, counts, grads, lr, beta, l1, l2):  # type: ignore[no-untyped-def]
    for t in range(tables.size):
        table, at, rows, first = _parts(tables, forms, ids=ids, counts=counts, grads=grads, t=t)
        state = array_at(states[t], (table.shape[0], 2 * table.shape[1]), np.float32(0))
        if not ftrl_loop(table, state, ids=at, grads=rows, first_row=first, lr=lr, beta=beta, l1=l1, l2=l2):
            return t
    return -1


# -- definitions -----------------------------------------------------------------------------------------------------


def _step_loops(op: Op) -> Sequence[Any]:
    step = {"sgd": _sgd, "adagrad": _adagrad, "ftrl": _ftrl}.get(str(op.attrs["optimizer"]), _rowwise_adagrad)
    return _misshapen, step


def _num_tables(op: Op) -> int:
    first_rows = op.attrs["first_rows"]
    assert isinstance(first_rows, tuple)
    return len(first_rows)


def _lists(op: Op) -> Sequence[tuple[str, ...]]:
    """The ids of all tables, and the gradients of all where there are any."""
    count = _num_tables(op)
    values = op.inputs[len(op.inputs) - count * (1 if op.type == "LookupTables" else 2) :]
    return [values[begin : begin + count] for begin in range(0, len(values), count)]


def _infer_lookup(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    count = _num_tables(op)
    return [
        ((ids.shape[0], table.shape[1]), table.dtype) for table, ids in zip(inputs[:count], inputs[count:], strict=True)
    ]


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


_FLOPS = {"sgd": 2, "adagrad": 6, "rowwise_adagrad": 5, "ftrl": 15}  # of a step, for each number of a row


def _step_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """The cost of the steps of the tables one by one: gradients are read, rows and states of the batch read and
    written.
    """
    count = _num_tables(op)
    moved = sum(b.num_bytes(batch_size) for b in inputs[-count:])
    passes = 2.0 * (len(inputs) // count) - 3 + 2 * (op.attrs["optimizer"] == "ftrl")
    return Cost(_FLOPS[str(op.attrs["optimizer"])] * moved / 4, passes * moved)


def _stepped(op: Op) -> tuple[int, ...]:
    """The positions of the tables and of their states."""
    return tuple(range(len(op.inputs) - 2 * _num_tables(op)))


def _changes(op: Op) -> Sequence[RowChange]:
    """Of each table, the rows of its ids; there are states for all tables, or for none."""
    count, first_rows = _num_tables(op), op.attrs["first_rows"]
    assert isinstance(first_rows, tuple)
    held, ids = op.inputs[: -2 * count], op.inputs[-2 * count : -count]
    return [RowChange(held[t::count], ids[t], int(first_rows[t])) for t in range(count)]


DEFINITIONS = (
    OpDef(
        "LookupTables",
        _lookup_tables,
        _infer_lookup,
        _lookup_cost,
        None,
        many=True,
        bind=_bind_lookup,
        on_host=True,
        effects=True,
        work="gather",
        reads=_reads,
        asked_by=_ids,
        expected=_expected_rows,
        bundles=_lists,
        bundled=_bundled_lookup,
        loops=runs(_shapes, _gather),
    ),
    OpDef(
        "SparseStepTables",
        _step_tables,
        no_outputs,
        _step_cost,
        None,
        effects=True,
        writes=_stepped,
        changes=_changes,
        bind=_bind_step,
        work="scatter",
        on_host=True,
        bundles=_lists,
        bundled=_bundled_step,
        loops=_step_loops,
    ),
)

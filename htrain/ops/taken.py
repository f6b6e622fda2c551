"""Lookups, and steps of SGD, of many tables that are here whole, each by ids of its own (docs/decisions/fusions.md). One loop for all.

y[..,D], .. = TakeTables(table[R,D], .., ids[..], ..)           list k of ids reads the table number tables[k]; widths may differ
StepTakenTables(table[R,D], .., ids[..], .., dy[..,D], ..)      SGD on these rows, in place; an id that comes twice takes two steps
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from htrain.errors import DataError
from htrain.jit import njit
from htrain.net.net import Blob, Op
from htrain.ops.base import Cost, OpDef, RowChange, Signature, no_outputs
from htrain.ops.pointers import array_at, prefetch_row
from htrain.ops.sparse_checks import ids_out_of_range
from htrain.ops.step_loops import AHEAD
from htrain.ops.tables import pointers_of, sizes_of


class Lists:
    """Tables, and which of them each list of ids reads: what loops want to know, found once."""

    def __init__(self, tables: Sequence[torch.Tensor], of: tuple[int, ...]) -> None:
        """Raises DataError where loops over addresses would leave the tables."""
        if any(t.dim() != 2 or t.dtype != torch.float32 or not t.is_contiguous() for t in tables):
            raise DataError("tables that are read together differ in form: want contiguous float32 rows")
        if not all(0 <= table < len(tables) for table in of):
            raise DataError(f"lists of ids are of tables {list(of)}, want numbers below {len(tables)}")
        self.tables = [tables[table] for table in of]
        self.widths = [table.shape[1] for table in self.tables]
        self._forms = np.stack([pointers_of(self.tables), sizes_of(self.tables), np.array(self.widths, np.int64)], 1)

    def laid_out(self, ids: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> NDArray[np.int64]:
        """Of each list: the table, its rows and their width, the ids, how many, and how far apart, and its values.

        Raises DataError where ids are not int64, or values have not a contiguous float32 row for each.
        """
        if len(ids) != len(self.tables) or any(i.dtype != torch.int64 for i in ids):
            raise DataError(f"ids of {len(self.tables)} lists are {[str(i.dtype) for i in ids]}, want torch.int64")
        for each, width, rows in zip(ids, self.widths, values, strict=True):
            if rows.shape != (*each.shape, width) or rows.dtype != torch.float32 or not rows.is_contiguous():
                wanted = [*each.shape, width]
                raise DataError(
                    f"rows of ids are {rows.dtype}{list(rows.shape)}, want contiguous torch.float32{wanted}"
                )
        own = [(i.data_ptr(), i.numel(), i.stride(0) if i.dim() == 1 else 1, v.data_ptr()) for i, v in zip(ids, values, strict=True)]  # fmt: skip
        return np.concatenate([self._forms, np.array(own, np.int64)], 1)

    def out_of_range(self, bad: int, ids: torch.Tensor) -> DataError:
        """The error for list number `bad`, some of whose ids its table has no row for."""
        flat = ids.reshape(-1).numpy()
        return ids_out_of_range(flat, np.empty((flat.size, self.widths[bad]), np.float32), self.tables[bad].numpy(), 0)


def _bind_take(*known: torch.Tensor | None, tables: tuple[int, ...]) -> Callable[..., tuple[torch.Tensor, ...]]:
    return partial(_take_from, Lists([table for table in known if table is not None], tables))


def _take_tables(*values: torch.Tensor, tables: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    held = len(values) - len(tables)
    return _take_from(Lists(values[:held], tables), *values[held:])


def _take_from(lists: Lists, *ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    near = _near(ids)
    rows = tuple(torch.empty(*each.shape, width) for each, width in zip(near, lists.widths, strict=True))
    bad = _take(lists.laid_out(near, rows))
    if bad >= 0:
        raise lists.out_of_range(bad, near[bad])
    return rows


def _bind_step(*known: torch.Tensor | None, tables: tuple[int, ...], lr: float) -> Callable[..., None]:
    return partial(_step_in, Lists([table for table in known if table is not None], tables), lr=lr)


def _step_taken(*values: torch.Tensor, tables: tuple[int, ...], lr: float) -> None:
    held = len(values) - 2 * len(tables)
    _step_in(Lists(values[:held], tables), *values[held:], lr=lr)


def _step_in(lists: Lists, *values: torch.Tensor, lr: float) -> None:
    count = len(lists.tables)
    near, dys = _near(values[:count]), [dy.contiguous() for dy in values[count:]]
    bad = _step(lists.laid_out(near, dys), lr)
    if bad >= 0:
        raise lists.out_of_range(bad, near[bad])


def _near(ids: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Ids as loops take them: a column of a matrix stays where it is."""
    return [each if each.dim() == 1 else each.contiguous() for each in ids]


@njit(nogil=True, cache=True)
def _take(lists):  # type: ignore[no-untyped-def]
    """The first list with an id that its table has no row for, or -1. Rows of ids further on are on their way while one is copied."""
    for k in range(lists.shape[0]):
        address, size, width, count, stride = lists[k, 0], lists[k, 1], lists[k, 2], lists[k, 4], lists[k, 5]
        table = array_at(address, (size, width), np.float32(0))
        ids = array_at(lists[k, 3], (count * stride,), np.int64(0))
        rows = array_at(lists[k, 6], (count, width), np.float32(0))
        for i in range(count):
            row = ids[i * stride]
            if row < 0 or row >= size:
                return k
            if i + AHEAD < count:
                prefetch_row(address, ids[(i + AHEAD) * stride], 4 * width)
            for d in range(width):
                rows[i, d] = table[row, d]
    return -1


@njit(nogil=True, cache=True)
def _find_out_of_range(lists):  # type: ignore[no-untyped-def]
    for k in range(lists.shape[0]):
        size, count, stride = lists[k, 1], lists[k, 4], lists[k, 5]
        ids = array_at(lists[k, 3], (count * stride,), np.int64(0))
        for i in range(count):
            row = ids[i * stride]
            if row < 0 or row >= size:
                return k
    return -1


@njit(nogil=True, cache=True, fastmath={"contract"})
def _step(lists, lr):  # type: ignore[no-untyped-def]
    """The first list with an id that its table has no row for, or -1: then no row has been changed."""
    bad = _find_out_of_range(lists)
    if bad >= 0:
        return bad
    rate = np.float32(lr)
    for k in range(lists.shape[0]):
        address, size, width, count, stride = lists[k, 0], lists[k, 1], lists[k, 2], lists[k, 4], lists[k, 5]
        table = array_at(address, (size, width), np.float32(0))
        ids = array_at(lists[k, 3], (count * stride,), np.int64(0))
        rows = array_at(lists[k, 6], (count, width), np.float32(0))
        for i in range(count):
            row = ids[i * stride]
            if i + AHEAD < count:
                prefetch_row(address, ids[(i + AHEAD) * stride], 4 * width)
            for d in range(width):
                table[row, d] -= rate * rows[i, d]
    return -1


def _tables_of(op: Op) -> tuple[int, ...]:
    tables = op.attrs["tables"]
    assert isinstance(tables, tuple)
    return tables


def _infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    of = _tables_of(op)
    held = inputs[: len(inputs) - len(of)]
    return [((*ids.shape, held[table].shape[1]), "float32") for table, ids in zip(of, inputs[len(held) :], strict=True)]


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """Every row read and written once; of a step, its gradient read besides."""
    rows = outputs or inputs[-len(_tables_of(op)) :]
    moved = sum(blob.num_bytes(batch_size) for blob in rows)
    return Cost(0.0 if outputs else moved / 2.0, (2.0 if outputs else 3.0) * moved)


def _stepped(op: Op) -> tuple[int, ...]:
    """The positions of the tables."""
    return tuple(range(len(op.inputs) - 2 * len(_tables_of(op))))


def _changes(op: Op) -> Sequence[RowChange]:
    of = _tables_of(op)
    ids = op.inputs[-2 * len(of) : -len(of)]
    return [RowChange((op.inputs[table],), each) for table, each in zip(of, ids, strict=True)]


DEFINITIONS = (
    OpDef(
        "TakeTables",
        _take_tables,
        _infer,
        _cost,
        None,
        many=True,
        effects=True,
        bind=_bind_take,
        work="gather",
        on_host=True,
    ),
    OpDef(
        "StepTakenTables",
        _step_taken,
        no_outputs,
        _cost,
        None,
        effects=True,
        writes=_stepped,
        changes=_changes,
        bind=_bind_step,
        work="scatter",
        on_host=True,
    ),
)

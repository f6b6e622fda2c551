"""Lookups of many tables at once, on an accelerator: their caches lie in one tensor (cDLRM 5.2, docs/decisions/look-ahead-cache.md).

A net that runs on an accelerator is made of these by `htrain.executor.strategies.lookahead.joint_tables`. Of T tables of one width, whose slots lie one
behind the other:

    unique_1 .. unique_T, inverse_1 .. inverse_T = DedupeTables(ids_1 .. ids_T)      as Dedupe of each
    JointAnnounce(cache_1 .., ids_1 ..)                                              as LookaheadAnnounce of each
    slots[U+1] = JointSlots(cache_1 .., slots of all.., unique_1 ..)                 where all distinct rows of a batch stand, a table's behind another's
    rows[U+1,D] = JointLookup(slots of all, slots)                                   the last slot's row is zero: that of a padding id
    own[U] = OwnSlots(slots)                                                         those that are stepped
    rows_1 .. = JointSplit(rows, unique_1 ..)                                        of each table, where its rows are not read with others
    JointFlush(cache_1 .., slots of all ..)                                          as FlushVictims of each

The host finds, ahead of the step, which of the U rows each id of a batch reads, as int32 indices; U for a padding id:

    index[B*F] = StackIndex(inverse_1[B] .., unique_1 ..)        for StackJoint(x[B,D] .., rows, index): y[B,F,D], dense values first
    index[n] = TakeIndex(inverse_k .., unique_1 ..)              for TakeJoint(rows, index): the rows of each inverse, one behind another
    index[n], offsets[b], bag[n], share[n] = PoolIndex(..)       for PoolJoint(rows, index, offsets): those of each bag, pooled

and the gradients of all rows are summed at once: drows[U,D] = StackJointGradient(..), TakeJointGradient(..), PoolJointGradient(..).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch.nn import functional as F

from htrain.net.net import Blob, Op
from htrain.ops.base import OpDef, Signature
from htrain.ops.side_by_side import side_by_side
from htrain.ops.sparse_loops import dedupe

Indices = NDArray[np.int32]


# -- on the host, ahead of a step ------------------------------------------------------------------------------------


def _dedupe_tables(*ids: torch.Tensor, padding_idx: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    def one(place: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return dedupe(ids[place].numpy().reshape(-1), padding_idx[place])

    found = side_by_side(one, [each.numel() for each in ids])
    inverse = (torch.from_numpy(i).reshape(each.shape) for (_, i), each in zip(found, ids, strict=True))
    return (*(torch.from_numpy(unique) for unique, _ in found), *inverse)


def _announce(*values: Any) -> None:
    tables = len(values) // 2
    for cache, ids in zip(values[:tables], values[tables:], strict=True):
        cache.announce(ids.numpy())


def _slots(
    *values: Any,
    tables: int,
    rows: tuple[int, ...],
    sets: tuple[int, ...],
    ways: tuple[int, ...],
    num_rows: tuple[int, ...],
    patch: bool,
    width: int,
) -> torch.Tensor:
    """Of `tables` tables of `num_rows` rows, whose caches have `rows` slots each, victims' behind the others, `sets` of `ways`, and rows of `width` numbers.
    Behind those of all stands a row of zeros."""
    caches, ids = values[:tables], values[-tables:]
    slots = np.empty(sum(each.numel() for each in ids) + 1, np.int32)
    start = base = 0
    for cache, each, count in zip(caches, ids, rows, strict=True):
        end = start + each.numel()
        np.add(cache.slots(each.numpy()), base, out=slots[start:end], casting="unsafe")
        start, base = end, base + count
    slots[-1] = base
    return torch.from_numpy(slots)


def _flush(*values: Any, tables: int) -> None:
    for cache in values[:tables]:
        cache.flush_victims()


def _stack_index(*values: torch.Tensor, dense: int) -> torch.Tensor:
    """index[B*F] of y[B,F,D]: the `dense` values of example b are the rows behind U, then come those of the tables."""
    tables = len(values) // 2
    bases, padding = _bases(values[tables:])
    inverse = [each.numpy() for each in values[:tables]]
    batch = inverse[0].size
    index = np.empty((batch, dense + tables), np.int32)
    for place in range(dense):
        index[:, place] = np.arange(padding + 1 + place * batch, padding + 1 + (place + 1) * batch)

    def one(place: int) -> None:
        _put_places(inverse[place], bases[place], padding, index[:, dense + place])

    side_by_side(one, [batch] * tables)
    return torch.from_numpy(index.reshape(-1))


def _take_index(*values: torch.Tensor) -> torch.Tensor:
    tables = len(values) // 2
    return torch.from_numpy(_places(values[:tables], values[tables:]))


def _pool_index(*values: torch.Tensor, listed: tuple[bool, ...], mean: bool) -> tuple[torch.Tensor, ...]:
    """Bags of several tables, one behind another. Inverse indices int64[B,W] are a bag in each row; where they are `listed`, int64[n], their offsets
    int64[B] come behind the unique ids. `share` of an inverse index is 1, or with `mean` one by the number of its bag's that are no padding."""
    tables = len(listed)
    inverse, unique, rest = values[:tables], values[tables : 2 * tables], iter(values[2 * tables :])
    index = _places(inverse, unique)
    starts, start = [], 0
    for each, is_listed in zip(inverse, listed, strict=True):
        own = next(rest).numpy() if is_listed else np.arange(each.shape[0], dtype=np.int64) * each.shape[1]
        starts.append(own + start)
        start += each.numel()
    offsets = np.concatenate(starts).astype(np.int32)
    bag, share = np.empty(index.size, np.int32), np.empty(index.size, np.float32)
    _spread_bags(index, offsets, sum(each.numel() for each in unique), mean, bag, share)
    return tuple(map(torch.from_numpy, (index, offsets, bag, share)))


def _places(inverse: Sequence[torch.Tensor], unique: Sequence[torch.Tensor]) -> Indices:
    """The rows, among those of all tables, of the inverse indices of each."""
    bases, padding = _bases(unique)
    ends = np.cumsum([0, *(each.numel() for each in inverse)])
    index = np.empty(ends[-1], np.int32)

    def one(place: int) -> None:
        _put_places(inverse[place].numpy().reshape(-1), bases[place], padding, index[ends[place] : ends[place + 1]])

    side_by_side(one, [each.numel() for each in inverse])
    return index


def _bases(unique: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    """The first row of each table, and behind all of them the row of padding."""
    ends = np.cumsum([0, *(each.numel() for each in unique)]).tolist()
    return ends[:-1], ends[-1]


@njit(nogil=True, cache=True)
def _put_places(inverse, base, padding, index):  # type: ignore[no-untyped-def]
    for i in range(inverse.size):
        index[i] = inverse[i] + base if inverse[i] >= 0 else padding


@njit(nogil=True, cache=True)
def _spread_bags(index, offsets, padding, mean, bag, share):  # type: ignore[no-untyped-def]
    """The bag of every place, and its share of that bag."""
    for b in range(offsets.size):
        end = offsets[b + 1] if b + 1 < offsets.size else index.size
        counted = 0
        for i in range(offsets[b], end):
            counted += index[i] != padding
        for i in range(offsets[b], end):
            bag[i] = b
            share[i] = 0.0 if index[i] == padding else 1.0 / counted if mean else 1.0


# -- on the accelerator ----------------------------------------------------------------------------------------------


def _lookup(table: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return table.index_select(0, slots)


def _own_slots(slots: torch.Tensor) -> torch.Tensor:
    return slots.narrow(0, 0, slots.numel() - 1)


def _split(rows: torch.Tensor, *unique: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows of each table, of whose ids the shape alone is read."""
    sizes = [each.numel() for each in unique]
    return rows.split([*sizes, rows.shape[0] - sum(sizes)])[:-1]


def _stack(*values: torch.Tensor, fields: int) -> torch.Tensor:
    """y[B,F,D] of the dense values x[B,D], rows[U+1,D] and index[B*F]."""
    *dense, rows, index = values
    source = torch.cat([rows, *dense]) if dense else rows
    return source.index_select(0, index).view(index.numel() // fields, fields, rows.shape[1])


def _stack_gradient(*values: torch.Tensor, fields: int) -> tuple[torch.Tensor, ...]:
    """dx[B,D] of each dense value, and drows[U,D], for dy[B,F,D], the last of the values."""
    *dense, rows, index, dy = values
    batch, count = index.numel() // fields, rows.shape[0]
    total = rows.new_zeros(count + len(dense) * batch, rows.shape[1])
    total.index_add_(0, index, dy.reshape(-1, rows.shape[1]))
    dx = (total.narrow(0, count + place * batch, batch) for place in range(len(dense)))
    return (*dx, total.narrow(0, 0, count - 1))


def _take(rows: torch.Tensor, index: torch.Tensor, *inverse: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of each inverse, whose shape alone is read, y[.., D]."""
    taken = rows.index_select(0, index).split([each.numel() for each in inverse])
    return tuple(y.view(*each.shape, rows.shape[1]) for y, each in zip(taken, inverse, strict=True))


def _take_gradient(rows: torch.Tensor, index: torch.Tensor, *dys: torch.Tensor) -> torch.Tensor:
    flat = [dy.reshape(-1, rows.shape[1]) for dy in dys]
    return _summed(rows, index, flat[0] if len(flat) == 1 else torch.cat(flat))


def _pool(rows: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, *bags: torch.Tensor, mean: bool) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Of each of `bags`, whose first dimension alone is read, y[B,D]."""
    mode = "mean" if mean else "sum"
    pooled = F.embedding_bag(index, rows, offsets, mode=mode, padding_idx=rows.shape[0] - 1)
    return pooled.split([each.shape[0] for each in bags])


def _pool_gradient(rows: torch.Tensor, index: torch.Tensor, bag: torch.Tensor, share: torch.Tensor, *dys: torch.Tensor) -> torch.Tensor:  # fmt: skip
    every = dys[0] if len(dys) == 1 else torch.cat(dys)
    return _summed(rows, index, every.index_select(0, bag).mul_(share.unsqueeze(1)))


def _summed(rows: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """drows[U,D]: the sum of the values of each row, without that of padding."""
    return torch.zeros_like(rows).index_add_(0, index, values).narrow(0, 0, rows.shape[0] - 1)


def _none(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    raise AssertionError(f"{op.label} is made where a role starts: its blobs are given")


def _behind_the_first(op: Op) -> Sequence[str]:
    return op.inputs[1:]


def _behind_the_first_two(op: Op) -> Sequence[str]:
    return op.inputs[2:]


def _behind_the_first_three(op: Op) -> Sequence[str]:
    return op.inputs[3:]


_ON_HOST: dict[str, Any] = {"on_host": True, "place": "reader", "work": "gather"}
DEFINITIONS = (
    OpDef("DedupeTables", _dedupe_tables, _none, gradient=None, many=True, **_ON_HOST),
    OpDef("JointAnnounce", _announce, _none, gradient=None, effects=True, phase="announce", **_ON_HOST),
    OpDef("JointSlots", _slots, _none, gradient=None, effects=True, **_ON_HOST),
    OpDef("JointFlush", _flush, _none, gradient=None, effects=True, **_ON_HOST),
    OpDef("StackIndex", _stack_index, _none, gradient=None, **_ON_HOST),
    OpDef("TakeIndex", _take_index, _none, gradient=None, **_ON_HOST),
    OpDef("PoolIndex", _pool_index, _none, gradient=None, many=True, **_ON_HOST),
    OpDef("JointLookup", _lookup, _none, gradient=None, effects=True, work="gather"),
    OpDef("OwnSlots", _own_slots, _none, gradient=None, view=True),
    OpDef("JointSplit", _split, _none, gradient=None, many=True, view=True, shaped_by=_behind_the_first),
    OpDef("StackJoint", _stack, _none, gradient=None, work="gather"),
    OpDef("StackJointGradient", _stack_gradient, _none, gradient=None, many=True, work="scatter"),
    OpDef("TakeJoint", _take, _none, gradient=None, many=True, work="gather", shaped_by=_behind_the_first_two),
    OpDef("TakeJointGradient", _take_gradient, _none, gradient=None, work="scatter"),
    OpDef("PoolJoint", _pool, _none, gradient=None, many=True, work="gather", shaped_by=_behind_the_first_three),
    OpDef("PoolJointGradient", _pool_gradient, _none, gradient=None, work="scatter"),
)

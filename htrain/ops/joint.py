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

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from htrain.jit import njit
from htrain.net.net import Blob, Op
from htrain.ops.base import OpDef, Signature
from htrain.ops.pointers import array_at
from htrain.ops.side_by_side import side_by_side
from htrain.ops.sparse_checks import bags_out_of_range, is_list
from htrain.ops.sparse_loops import slot_of, slots_for

Indices = NDArray[np.int32]


# -- on the host, ahead of a step ------------------------------------------------------------------------------------


def _dedupe_tables(*ids: torch.Tensor, padding_idx: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    flat = [(each if each.dim() == 1 else each.reshape(-1)).to(torch.int64) for each in ids]
    sizes = [each.numel() for each in flat]
    unique, inverse = (np.empty(sum(sizes), np.int64) for _ in range(2))
    counts, ends = np.empty(len(ids), np.int64), np.cumsum([0, *sizes])
    addresses = np.array([each.data_ptr() for each in flat], np.int64)
    strides = np.array([each.stride(0) for each in flat], np.int64)
    padding = np.array(padding_idx, np.int64)

    def some(first: int, last: int) -> None:
        _dedupe_some(addresses, strides, ends, padding=padding, unique=unique, inverse=inverse, counts=counts, first=first, last=last)  # fmt: skip

    side_by_side(some, sizes)
    found = counts.tolist()
    own = torch.from_numpy(unique).split([part for size, n in zip(sizes, found, strict=True) for part in (n, size - n)])
    places = torch.from_numpy(inverse).split(sizes)
    shaped = (i if each.dim() == 1 else i.reshape(each.shape) for i, each in zip(places, ids, strict=True))
    return (*own[::2], *shaped)


@njit(nogil=True, cache=True)
def _dedupe_some(addresses, strides, ends, padding, unique, inverse, counts, first, last):  # type: ignore[no-untyped-def]
    """As Dedupe, of the tables from `first` to `last`; the ids of table t begin at addresses[t], `strides`[t] numbers apart."""
    most = 0
    for t in range(first, last):
        most = max(most, ends[t + 1] - ends[t])
    index = np.empty(slots_for(most), np.int32)
    for t in range(first, last):
        count, stride = ends[t + 1] - ends[t], strides[t]
        ids = array_at(addresses[t], (count * stride,), np.int64(0))
        slots = index[: slots_for(count)]
        slots[:] = -1
        own, places = unique[ends[t] : ends[t + 1]], inverse[ends[t] : ends[t + 1]]
        mask, found = slots.size - 1, 0
        for i in range(count):
            key = ids[i * stride]
            if key == padding[t] and padding[t] >= 0:
                places[i] = -1
                continue
            slot = slot_of(key, mask)
            at = slots[slot]
            while at >= 0 and own[at] != key:
                slot = (slot + 1) & mask
                at = slots[slot]
            if at < 0:
                at = found
                slots[slot] = at
                own[at] = key
                found += 1
            places[i] = at
        counts[t] = found


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
    found = [cache.slots(ids.numpy()) for cache, ids in zip(values[:tables], values[-tables:], strict=True)]
    assert all(each.dtype == np.int64 for each in found)
    ends = np.cumsum([0, *(each.size for each in found)])
    bases = np.cumsum([0, *rows])
    slots = np.empty(ends[-1] + 1, np.int32)
    addresses = np.array([each.__array_interface__["data"][0] for each in found], np.int64)

    def some(first: int, last: int) -> None:
        _join_slots(addresses, ends, bases, slots, first=first, last=last)

    side_by_side(some, [each.size for each in found])
    slots[-1] = bases[-1]
    return torch.from_numpy(slots)


@njit(nogil=True, cache=True)
def _join_slots(addresses, ends, bases, slots, first, last):  # type: ignore[no-untyped-def]
    for t in range(first, last):
        own = array_at(addresses[t], (ends[t + 1] - ends[t],), np.int64(0))
        for i in range(own.size):
            slots[ends[t] + i] = own[i] + bases[t]


def _flush(*values: Any, tables: int) -> None:
    for cache in values[:tables]:
        cache.flush_victims()


def _stack_index(*values: torch.Tensor, dense: int) -> torch.Tensor:
    """index[B*F] of y[B,F,D]: the `dense` values of example b are the rows behind U, then come those of the tables."""
    tables = len(values) // 2
    bases = _bases(values[tables:])
    batch = values[0].numel()
    index = np.empty((batch, dense + tables), np.int32)
    for place in range(dense):
        index[:, place] = np.arange(bases[-1] + 1 + place * batch, bases[-1] + 1 + (place + 1) * batch)
    _put_all(values[:tables], bases, index.reshape(-1), starts=range(dense, dense + tables), stride=dense + tables)
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
        own = _offsets_of(each, next(rest)) if is_listed else np.arange(each.shape[0], dtype=np.int64) * each.shape[1]
        starts.append(own + start)
        start += each.numel()
    offsets = np.concatenate(starts).astype(np.int32)
    bag, share = np.empty(index.size, np.int32), np.empty(index.size, np.float32)
    _spread_bags(index, offsets, sum(each.numel() for each in unique), mean, bag, share)
    return tuple(map(torch.from_numpy, (index, offsets, bag, share)))


def _offsets_of(inverse: torch.Tensor, offsets: torch.Tensor) -> NDArray[np.int64]:
    """The offsets[B] that cut inverse[n] into bags: loops trust them. Raises DataError where they do not."""
    own = offsets.numpy()
    ends = np.concatenate([[0], own[1:], [inverse.numel()]]) if own.size else own
    if not is_list(own) or (own[:1] != 0).any() or (np.diff(ends) < 0).any():
        rows, bags = np.empty((0, 1), np.float32), np.empty((own.size, 1), np.float32)
        raise bags_out_of_range(inverse.numpy(), own, np.empty(0, np.float32), rows, bags)
    return own


def _places(inverse: Sequence[torch.Tensor], unique: Sequence[torch.Tensor]) -> Indices:
    """The rows, among those of all tables, of the inverse indices of each."""
    ends = np.cumsum([0, *(each.numel() for each in inverse)])
    index = np.empty(ends[-1], np.int32)
    _put_all(inverse, _bases(unique), index, starts=ends[:-1], stride=1)
    return index


def _bases(unique: Sequence[torch.Tensor]) -> NDArray[np.int64]:
    """The first row of each table, and behind all of them the row of padding."""
    return np.cumsum([0, *(each.numel() for each in unique)])


def _put_all(
    inverse: Sequence[torch.Tensor], bases: NDArray[np.int64], index: Indices, *, starts: Iterable[int], stride: int
) -> None:
    """Put the rows of each table's inverse indices into the index, from its start on, `stride` numbers apart."""
    whole = [each.contiguous() for each in inverse]
    assert all(each.dtype == torch.int64 for each in whole)
    sizes = [each.numel() for each in whole]
    addresses, begins = (np.array(list(each), np.int64) for each in ((i.data_ptr() for i in whole), starts))
    counts = np.array(sizes, np.int64)

    def some(first: int, last: int) -> None:
        _put_some(addresses, counts, bases, index=index, starts=begins, stride=stride, first=first, last=last)

    side_by_side(some, sizes)


@njit(nogil=True, cache=True)
def _put_some(addresses, counts, bases, index, starts, stride, first, last):  # type: ignore[no-untyped-def]
    padding = bases[bases.size - 1]
    for t in range(first, last):
        inverse = array_at(addresses[t], (counts[t],), np.int64(0))
        for i in range(inverse.size):
            index[starts[t] + i * stride] = inverse[i] + bases[t] if inverse[i] >= 0 else padding


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

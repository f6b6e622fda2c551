"""ATen ops that pick elements by index tensors and masks, and that put elements where these say.

How many elements are picked must not depend on the values of a batch. So masks are constants, and index tensors either run over dimensions other than the
batch, or the first of them says "this example": `x[arange(B)[:, None], places]`, which is a gather within each example.
"""

from collections.abc import Sequence
from functools import reduce
from math import prod

import torch
from torch import fx

from htrain.frontend.aten_forms import Call, Handler, argument, mixes_batch, refuse
from htrain.frontend.aten_picks import PICKS, is_pick, is_place, pick, put, select
from htrain.frontend.own_example import is_own_example, is_own_row
from htrain.frontend.translation import Translation
from htrain.net.net import Attr, BatchDim, Dim

Index = (
    fx.Node | torch.Tensor | None
)  # of one dimension: a node that depends on an input, or the value of one that does not
_NONE = 1 << 62  # a place that no batch has
_OF_EXAMPLES = (
    "several index tensors must run over adjacent dimensions other than the batch, or the first must be torch.arange over the batch, "
    "as x[torch.arange(x.shape[0])[:, None], places]"
)
_BY_MASK = "how many elements a mask picks depends on the batch: keep them all, and use torch.where to give the others no weight"


def _indices(t: Translation, call: Call) -> list[Index]:
    """The index of each dimension; a constant mask as the places where it is true. Raises ModelError for another mask."""
    found: list[Index] = []
    for index in call.args[1]:
        if index is None:
            found.append(None)
            continue
        value = t.static.get(index)
        if index.meta["val"].dtype not in (torch.bool, torch.uint8):
            found.append(index if value is None else value)
        elif value is None:
            raise refuse(t, call, _BY_MASK)
        else:
            found += value.bool().nonzero(as_tuple=True)
    return found


def _index(t: Translation, call: Call) -> None:
    """x[:, i, j] over adjacent dimensions other than the batch; x[b, i, ...], where b is each example itself, or any; or x[mask]."""
    if is_pick(t, call):
        pick(t, call)
        return
    source, indices = call.args[0], _indices(t, call)
    assert isinstance(source, fx.Node)
    places = [d for d, index in enumerate(indices) if index is not None]
    first, past = places[0], places[-1] + 1
    shape, given = t.shape(source), [index for index in indices if index is not None]
    if len(given) != past - first:
        raise refuse(t, call, _OF_EXAMPLES)
    if len(given) == 1 and isinstance(shape[first], BatchDim):
        _examples(t, call, first, given[0])
        return
    if _pick_of_rows(t, call, given):
        return
    sizes = [size for size in shape[first:past] if isinstance(size, int)]
    if len(sizes) == len(given):
        flat = _flat(t, call, given, sizes)
        _learn_sizes(t, call, (*shape[:first], *_size_of(t, flat), *shape[past:]))
        merged = _merged(t, call, first, past)
        t.add(call.node, "Gather", (merged, _named(t, call, flat)), {"axis": first})
        return
    if first or len(sizes) != len(given) - 1:
        raise refuse(t, call, _OF_EXAMPLES)
    _pick_of_each(t, call, given, sizes)


def _examples(t: Translation, call: Call, axis: int, index: Index) -> None:
    """x[i] along the batch: the tensor itself where i is each example, else what a batch is has a meaning."""
    source = call.args[0]
    if isinstance(index, fx.Node) and t.shape(index) == (BatchDim(),) and is_own_example(t, index, (BatchDim(),)):
        t.alias(call.node, source)
        return
    mixes_batch(t, call, (axis,))
    t.add(call.node, "Gather", (t.blob(source), _of_batch(t, call, index, axis)), {"axis": axis})


def _flat(t: Translation, call: Call, indices: Sequence[Index], sizes: Sequence[int]) -> str | torch.Tensor:
    """The places in row-major order that indices of several dimensions stand for: a constant where they are, or else a blob.

    Places below 0 count from the end. One that is beyond its dimension is made one beyond all, which no lookup has: it would be another's.
    """
    if all(isinstance(index, torch.Tensor) for index in indices):
        flat = torch.zeros((), dtype=torch.int64)
        for index, size in zip(indices, sizes, strict=True):
            assert isinstance(index, torch.Tensor)
            flat = flat * size + _checked(t, call, index, size)
        return flat
    parts = [_within(t, call, index, size) for index, size in zip(indices, sizes, strict=True)]
    name = parts[0]
    for part, size in zip(parts[1:], sizes[1:], strict=True):
        name = t.step(call.node, "Add", (t.step(call.node, "Mul", (name, t.blob(size))), part))
    if len(parts) == 1:
        return name
    return _none_if_beyond(t, call, name, list(zip(parts, indices, sizes, strict=True)), prod(sizes))


def _none_if_beyond(t: Translation, call: Call, name: str, parts: Sequence[tuple[str, Index, int]], none: int) -> str:
    """Places, of which those are `none` where a computed part is beyond its dimension."""
    beyond = [
        t.step(call.node, "NotEqual", (part, t.step(call.node, "Mod", (part, t.blob(size)))))
        for part, index, size in parts
        if isinstance(index, fx.Node)
    ]
    if not beyond:
        return name
    any_beyond = reduce(lambda x, y: t.step(call.node, "Or", (x, y)), beyond)
    return t.step(call.node, "Where", (any_beyond, t.blob(none), name))


def _within(t: Translation, call: Call, index: Index, size: int) -> str:
    """A dimension's index from 0 on. What is beyond the dimension stays so."""
    if isinstance(index, torch.Tensor):
        return _named(t, call, _checked(t, call, index, size))
    name = _named(t, call, index)
    from_end = t.step(call.node, "Add", (name, t.blob(size)))
    return t.step(call.node, "Where", (t.step(call.node, "Less", (name, t.blob(0))), from_end, name))


def _checked(t: Translation, call: Call, index: torch.Tensor, size: int) -> torch.Tensor:
    """Constant places from 0 on. Raises ModelError for one that a dimension of `size` has not: torch.export looks at no value."""
    beyond = index[(index < -size) | (index >= size)]
    if len(beyond):
        raise refuse(t, call, f"a dimension of {size} has no place {int(beyond[0])}")
    return index % size


def _named(t: Translation, call: Call, index: Index | str) -> str:
    if isinstance(index, torch.Tensor):
        return t.constant(index, module=t.module_of(call.node))
    return index if isinstance(index, str) else t.blob(index)


def _size_of(t: Translation, index: str | torch.Tensor) -> tuple[Dim, ...]:
    return tuple(index.shape) if isinstance(index, torch.Tensor) else t.builder.blob(index).shape


def _learn_sizes(t: Translation, call: Call, shape: Sequence[Dim]) -> None:
    """The sizes of what a constant mask picks, for which torch has symbols."""
    for size, known in zip(call.meta["val"].shape, shape, strict=True):
        t.learn(size, known)


def _merged(t: Translation, call: Call, first: int, past: int) -> str:
    """The source with the dimensions from `first` to before `past` as one."""
    source = call.args[0]
    if past - first == 1:
        return t.blob(source)
    shape = t.shape(source)
    total = (
        -1
        if first == 0 and not isinstance(shape[0], int)
        else prod(size for size in shape[first:past] if isinstance(size, int))
    )
    merged = tuple(d if isinstance(d, int) else -1 for d in (*shape[:first], total, *shape[past:]))
    return t.step(call.node, "Reshape", (t.blob(source),), {"shape": merged})


def _pick_of_each(t: Translation, call: Call, indices: Sequence[Index], sizes: Sequence[int]) -> None:
    """x[B,L,...] at places that are the same for each example, or differ."""
    own, *others = indices
    shape = t.shape(call.args[0])
    kept, of_index = shape[len(indices) :], _broadcast(t, call, indices)
    if not isinstance(own, fx.Node) or shape[0] != BatchDim() or not is_own_example(t, own, of_index):
        _pick_of_any(t, call, indices, sizes)
        return
    flat = _flat(t, call, others, sizes) if len(others) > 1 else _only(t, call, others[0], sizes[0])
    merged = _merged(t, call, 1, len(indices))
    if isinstance(flat, torch.Tensor):
        constant = t.constant(_of_one(flat, of_index), module=t.module_of(call.node))
        picked = t.step(call.node, "Gather", (merged, constant), {"axis": 1})
    else:
        place = _of_each(t, call, flat, of_index, kept)
        picked = t.step(call.node, "GatherElements", (merged, place), {"axis": 1})
    if t.builder.blob(picked).shape == t.shape(call.node):
        t.names[call.node] = picked
    else:
        t.add(call.node, "Reshape", (picked,), {"shape": t.open_shape(call.node)})


def _pick_of_rows(t: Translation, call: Call, indices: Sequence[Index]) -> bool:
    """x[row, place] of x[n,m], for each of its rows, of which there are as many as a mask has picked, or which come along another dimension than the first."""
    source, rows, places = call.args[0], indices[0], indices[-1]
    if (
        len(indices) != 2
        or len(t.shape(source)) != 2
        or not (isinstance(rows, fx.Node) and isinstance(places, fx.Node))
    ):
        return False
    if isinstance(t.shape(source)[0], int) or t.shape(source)[0] == BatchDim() or not is_own_row(rows, source):
        return False
    shape = _broadcast(t, call, indices)
    axis = next(a for a, size in enumerate(_padded(t.shape(rows), len(shape))) if size != 1)
    others = [a for a in range(len(shape)) if a != axis]
    if len(others) > 1 or t.shape(places) != shape:
        return False
    name = t.blob(places) if others else t.step(call.node, "Reshape", (t.blob(places),), {"shape": (-1, 1)})
    name = t.step(call.node, "Transpose", (name,), {"perm": (1, 0)}) if axis else name
    picked = t.step(call.node, "GatherElements", (t.blob(source), name), {"axis": 1})
    if not others:
        picked = t.step(call.node, "Reshape", (picked,), {"shape": (-1,)})
    t.names[call.node] = t.step(call.node, "Transpose", (picked,), {"perm": (1, 0)}) if axis else picked
    return True


def _padded(shape: Sequence[Dim], rank: int) -> tuple[Dim, ...]:
    return (*(1,) * (rank - len(shape)), *shape)


def _pick_of_any(t: Translation, call: Call, indices: Sequence[Index], sizes: Sequence[int]) -> None:
    """x[B,L,...] at places of any example."""
    name, parts = _of_batch(t, call, indices[0], 0), []
    for index, size in zip(indices[1:], sizes, strict=True):
        part = (
            _named(t, call, index) if isinstance(index, fx.Node) and is_place(index) else _within(t, call, index, size)
        )
        parts.append((part, index, size))
        name = t.step(call.node, "Add", (t.step(call.node, "Mul", (name, t.blob(size))), part))
    name = _none_if_beyond(t, call, name, parts, _NONE)
    mixes_batch(t, call, (0,))
    t.add(call.node, "Gather", (_merged(t, call, 0, len(indices)), name), {"axis": 0})


def _of_batch(t: Translation, call: Call, index: Index, axis: int) -> str:
    """Places along a dimension that depends on the batch, of which those below 0 count from its end."""
    name = _named(t, call, index)
    if isinstance(index, fx.Node) and is_place(index):
        return name
    count = t.length(call.node, call.args[0].meta["val"].shape[axis])
    below = t.step(call.node, "Less", (name, t.blob(0)))
    return t.step(call.node, "Where", (below, t.step(call.node, "Add", (name, count)), name))


def _only(t: Translation, call: Call, index: Index, size: int) -> str | torch.Tensor:
    return _checked(t, call, index, size) if isinstance(index, torch.Tensor) else _within(t, call, index, size)


def _broadcast(t: Translation, call: Call, indices: Sequence[Index]) -> tuple[Dim, ...]:
    """The shape that index tensors have together. torch has checked that they have one."""
    shapes = [t.shape(index) if isinstance(index, fx.Node) else tuple(_shape_of(index)) for index in indices]
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))


def _shape_of(index: Index) -> torch.Size:
    assert isinstance(index, torch.Tensor)
    return index.shape


def _per_example(of_index: Sequence[Dim]) -> int:
    """How many elements of a shape belong to an example."""
    return prod(size if isinstance(size, int) else size.per_example for size in of_index)


def _of_one(flat: torch.Tensor, of_index: Sequence[Dim]) -> torch.Tensor:
    """The constant places[J] of one example, which are those of all."""
    return flat.expand([d if isinstance(d, int) else d.per_example for d in of_index]).reshape(-1)


def _of_each(t: Translation, call: Call, flat: str, of_index: Sequence[Dim], kept: Sequence[Dim]) -> str:
    """The places[B,J,...] of each example, the same for all that is behind them: `kept`."""
    count = _per_example(of_index)
    if t.builder.blob(flat).shape != tuple(of_index):
        flat = t.step(call.node, "BroadcastTo", (flat,), {"shape": t.batch_shape(of_index)})
    place = t.step(call.node, "Reshape", (flat,), {"shape": (-1, count, *(1 for _ in kept))})
    if not kept:
        return place
    return t.step(call.node, "BroadcastTo", (place,), {"shape": t.batch_shape((BatchDim(), count, *kept))})


def _index_put(t: Translation, call: Call) -> None:
    """x[mask] = number, x[:, mask] = number; x[:, i] = values, along one dimension; or x[b, i, ...] = values, where b is each example itself."""
    given = [axis for axis, index in enumerate(call.args[1]) if index is not None]
    masks = [index for index in call.args[1] if index is not None and index.meta["val"].dtype == torch.bool]
    several = _is_several(call)
    if is_pick(t, call) and (several or not masks):
        put(t, call)
    elif len(given) == 1 and masks and not several:
        _put_by_mask(t, call, masks[0], given[0])
    elif masks and given == [0]:
        raise refuse(t, call, "what is assigned to by a mask must be given one number: use torch.where")
    elif len(given) == 1 and given[0] and isinstance(t.shape(call.args[0])[given[0]], int):
        _put_along(t, call, given[0])
    elif given == [0] and _is_of_rows(t, call):
        _put_rows(t, call)
    else:
        _put_of_each(t, call)


def _is_several(call: Call) -> bool:
    """Whether more than one number is assigned, or one is added."""
    sizes = call.args[2].meta["val"].shape if isinstance(call.args[2], fx.Node) else (0,)
    return not all(isinstance(d, int) and d == 1 for d in sizes) or bool(argument(call, 3, "accumulate", False))


def _put_by_mask(t: Translation, call: Call, mask: fx.Node, first: int) -> None:
    """One number, by a mask over the dimensions from `first` on."""
    source, value = call.args[0], call.args[2]
    name = t.blob(mask)
    missing = len(source.meta["val"].shape) - first - len(mask.meta["val"].shape)
    if missing:
        shape = (*(d if isinstance(d, int) else -1 for d in t.shape(mask)), *(1,) * missing)
        name = t.step(call.node, "Reshape", (name,), {"shape": shape})
    t.add(call.node, "Where", (name, t.blob(value), t.blob(source)))


def _put_along(t: Translation, call: Call, axis: int) -> None:
    """Values at the places of one dimension that is not the batch, the same for all others. Raises ModelError for a place that may come twice: which value
    stays is not said."""
    source, value, adds = call.args[0], call.args[2], argument(call, 3, "accumulate", False)
    indices, shape = _indices(t, call), t.shape(source)
    places = indices[axis] if len(indices) == axis + 1 else None
    size = shape[axis]
    assert isinstance(size, int)
    if not isinstance(places, torch.Tensor) or places.dim() > 1:
        raise refuse(t, call, f"what is assigned to: {_OF_EXAMPLES}")
    places = places.reshape(-1) % size
    if not adds and len(places.unique()) < len(places):
        raise refuse(t, call, "it assigns to one place twice: give each place once")
    wanted = (*shape[:axis], len(places), *shape[axis + 1 :])
    behind = places.reshape(-1, *[1] * (len(shape) - axis - 1))
    index = t.step(
        call.node, "BroadcastTo", (t.constant(behind, module=t.module_of(call.node)),), {"shape": t.batch_shape(wanted)}
    )
    name = t.blob(value)
    if t.builder.blob(name).shape != wanted:
        name = t.step(call.node, "BroadcastTo", (name,), {"shape": t.batch_shape(wanted)})
    t.add(call.node, "ScatterAdd" if adds else "Scatter", (t.blob(source), index, name), {"dim": axis})


def _is_of_rows(t: Translation, call: Call) -> bool:
    """Whether the only index is a list of numbers that are computed, as many as there are examples, or a multiple."""
    (index,) = (index for index in call.args[1] if index is not None)
    return t.static.get(index) is None and len(t.shape(index)) == 1 and isinstance(t.shape(index)[0], BatchDim)


def _put_rows(t: Translation, call: Call) -> None:
    """Rows at computed places, as of a batch that was sorted and is to have its own order again: `y[order] = x`."""
    source, value, adds = call.args[0], call.args[2], argument(call, 3, "accumulate", False)
    (index,) = (index for index in call.args[1] if index is not None)
    behind = t.shape(source)[1:]
    wanted = (t.shape(index)[0], *behind)
    place = t.step(call.node, "Reshape", (t.blob(index),), {"shape": (-1, *(1 for _ in behind))})
    place = t.broadcast(call.node, place, wanted) if behind else place
    name = t.broadcast(call.node, t.blob(value), wanted) if t.shape(value) != wanted else t.blob(value)
    mixes_batch(t, call, (0,))
    t.add(call.node, "ScatterAdd" if adds else "Scatter", (t.blob(source), place, name), {"dim": 0})


def _put_of_each(t: Translation, call: Call) -> None:
    source, value, adds = call.args[0], call.args[2], argument(call, 3, "accumulate", False)
    indices, shape = _indices(t, call), t.shape(source)
    own, *others = indices
    sizes = [size for size in shape[1 : len(indices)] if isinstance(size, int)]
    if (
        not isinstance(own, fx.Node)
        or shape[0] != BatchDim()
        or None in others
        or len(sizes) != len(others)
        or not others
    ):
        raise refuse(t, call, f"what is assigned to: {_OF_EXAMPLES}")
    of_index, kept = _broadcast(t, call, indices), shape[len(indices) :]
    if not is_own_example(t, own, of_index):
        raise refuse(t, call, f"what is assigned to: {_OF_EXAMPLES}")
    flat = _flat(t, call, others, sizes) if len(others) > 1 else _only(t, call, others[0], sizes[0])
    place = _of_each(t, call, _named(t, call, flat), of_index, kept)
    values = _spread(t, call, value, (*of_index, *kept), (-1, _per_example(of_index), *_numbers(kept)))
    put = t.step(
        call.node, "ScatterAdd" if adds else "Scatter", (_merged(t, call, 1, len(indices)), place, values), {"dim": 1}
    )
    if len(others) == 1:
        t.names[call.node] = put
    else:
        t.add(call.node, "Reshape", (put,), {"shape": t.open_shape(call.node)})


def _numbers(shape: Sequence[Dim]) -> list[int]:
    return [size for size in shape if isinstance(size, int)]


def _spread(t: Translation, call: Call, value: fx.Node, wanted: Sequence[Dim], shape: tuple[int, ...]) -> str:
    """A value broadcast to a shape, and reshaped."""
    name = t.blob(value)
    if t.builder.blob(name).shape != tuple(wanted):
        name = t.step(call.node, "BroadcastTo", (name,), {"shape": t.batch_shape(wanted)})
    return t.step(call.node, "Reshape", (name,), {"shape": shape})


def _masked_select(t: Translation, call: Call) -> None:
    """The elements of each example where a constant mask is true, one after another."""
    source, given = call.args
    assert isinstance(source, fx.Node)
    mask, shape = t.static.get(given), t.shape(source)
    if mask is None:
        select(t, call)
        return
    rank = max(len(shape), mask.dim())
    shape = (1,) * (rank - len(shape)) + shape
    batch, *rest = shape
    sizes = _numbers(rest)
    padded = mask.reshape((1,) * (rank - mask.dim()) + tuple(mask.shape))
    if not isinstance(batch, BatchDim) or len(sizes) != rank - 1 or padded.shape[0] != 1:
        raise refuse(t, call, "the batch must be the first dimension, and no dimension of the mask")
    whole = torch.broadcast_shapes(tuple(sizes), tuple(padded.shape[1:]))
    places = padded[0].expand(whole).reshape(-1).nonzero()[:, 0]
    t.learn(call.meta["val"].shape[0], BatchDim(batch.per_example * places.numel()))
    name = _spread(t, call, source, (batch, *whole), (-1, prod(whole)))
    picked = t.step(call.node, "Gather", (name, t.constant(places, module=t.module_of(call.node))), {"axis": 1})
    t.add(call.node, "Reshape", (picked,), {"shape": (-1,)})


def _index_add(t: Translation, call: Call) -> None:
    """x with the rows of another tensor added at the places of an index along a dimension."""
    source, axis, index, rows = call.args
    shape, axis = t.shape(rows), int(axis) % len(call.meta["val"].shape)
    alpha = argument(call, 4, "alpha", 1)
    name = t.blob(rows)
    if alpha != 1:
        name = t.step(call.node, "Mul", (name, t.blob(alpha, like=call.meta["val"])))
    behind = tuple((d if isinstance(d, int) else -1) if i == axis else 1 for i, d in enumerate(shape))
    place = t.step(call.node, "Reshape", (t.blob(index),), {"shape": behind})
    place = t.broadcast(call.node, place, shape)
    mixes_batch(t, call, (axis,))
    t.add(call.node, "ScatterAdd", (t.blob(source), place, name), {"dim": axis})


def _along(type: str) -> Handler:
    """Elements along an axis, by an index tensor."""

    def handle(t: Translation, call: Call) -> None:
        attrs: dict[str, Attr] = {"axis": int(call.args[1]) % len(call.meta["val"].shape)}
        t.add(call.node, type, (t.blob(call.args[0]), t.blob(call.args[2])), attrs)

    return handle


INDEX: dict[str, Handler] = {
    **PICKS,
    "index.Tensor": _index,
    "index_put.default": _index_put,
    "index_add.default": _index_add,
    "index_select.default": _along("Gather"),
    "gather.default": _along("GatherElements"),
    "masked_select.default": _masked_select,
}

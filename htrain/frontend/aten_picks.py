"""ATen ops by which the values of a batch say which elements are picked, and how many: masks, and the places where something is not zero.

What is picked is as long as it is in a batch, and at most as long as what it is picked from (`BatchDim.bound`).
"""

from math import prod
from operator import getitem

from torch import fx

from htrain.errors import ModelError
from htrain.frontend.aten_forms import Call, Handler, argument, mixes_batch, refuse
from htrain.frontend.translation import Translation
from htrain.net.net import BatchDim, Shape

_PARTS = tuple(
    f"aten.{name}"
    for name in ("unbind.int", "select.int", "index_select.default", "slice.Tensor", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default",
                 "view.default", "reshape.default", "flatten.using_ints", "transpose.int", "t.default")
)  # fmt: skip
_ONE_BATCH = "a mask that depends on the batch must have it as one dimension, and pick from it"


def is_pick(t: Translation, call: Call) -> bool:
    """Whether one mask that depends on the batch, and nothing else, says which elements an index is about."""
    given = [index for index in call.node.args[1] if index is not None]  # type: ignore[union-attr]
    return len(given) == 1 and _is_mask(t, given[0])


def is_place(node: fx.Node) -> bool:
    """Whether places were looked for, or are those among distinct numbers: none is below 0."""
    name = str(node.target)
    if name == "aten.nonzero.default":
        return True
    if node.target is getitem:
        source, part = node.args
        assert isinstance(source, fx.Node)
        return bool(part) if str(source.target) == "aten._unique2.default" else is_place(source)
    return name in _PARTS and is_place(node.all_input_nodes[0])


def _is_mask(t: Translation, index: object) -> bool:
    return (
        isinstance(index, fx.Node)
        and index not in t.static
        and str(index.meta["val"].dtype) in ("torch.bool", "torch.uint8")
    )


def pick(t: Translation, call: Call) -> None:
    """x[mask], x[:, mask]: the elements of x where a mask over adjacent dimensions of it is true. Raises ModelError for a mask without the batch."""
    source, first, mask = call.args[0], *_mask_of(call)
    name, _ = _flattened(t, call, t.blob(source), first, mask)
    places = _places(t, call, mask)
    size = call.meta["val"].shape[first]
    if not isinstance(size, int):
        t.pick(size, places)
    t.add(call.node, "Gather", (name, places), {"axis": first})


def put(t: Translation, call: Call) -> None:
    """x[mask] = values: as many as the mask picks, or what fits each of them. Raises ModelError for a mask that has no batch, or not the first dimensions."""
    source, value, adds = call.args[0], call.args[2], argument(call, 3, "accumulate", False)
    first, mask = _mask_of(call)
    if first:
        raise refuse(
            t,
            call,
            "what is assigned to by a mask that depends on the batch must have its dimensions first: use torch.where",
        )
    flat, behind = _flattened(t, call, t.blob(source), 0, mask)
    places = _places(t, call, mask)
    wanted = (*t.builder.blob(places).shape, *behind)
    index = t.step(call.node, "Reshape", (places,), {"shape": (-1, *(1 for _ in behind))})
    given = t.blob(value)
    if _is_one_for_all(t.builder.blob(given).shape, wanted):
        everywhere = t.step(call.node, "Equal", (index, index))
        given = t.step(call.node, "Where", (everywhere, given, given))
    name, own = t.broadcast(call.node, index, wanted), t.broadcast(call.node, given, wanted)
    put = t.step(call.node, "ScatterAdd" if adds else "Scatter", (flat, name, own), {"dim": 0})
    if t.builder.blob(put).shape == t.shape(call.node):
        t.names[call.node] = put
    else:
        t.add(call.node, "Reshape", (put,), {"shape": t.open_shape(call.node)})


def _is_one_for_all(shape: Shape, wanted: Shape) -> bool:
    """Whether a value has not what is assigned to each place, but one for all."""
    return len(shape) < len(wanted) or shape[0] == 1


def select(t: Translation, call: Call) -> None:
    """masked_select(x, mask): the elements, one after another, of both together where the mask is true. Raises ModelError without one batch."""
    source, mask = call.args
    shape = _together(t.shape(source), t.shape(mask))
    if sum(isinstance(d, BatchDim) for d in shape) != 1:
        raise refuse(t, call, _ONE_BATCH)
    name, of_mask = (t.broadcast(call.node, t.blob(node), shape) for node in (source, mask))
    places = t.step(call.node, "FlatNonZero", (of_mask,))
    t.pick(call.meta["val"].shape[0], places)
    flat = t.step(call.node, "Reshape", (name,), {"shape": (-1,)})
    t.add(call.node, "Gather", (flat, places), {"axis": 0})


def _masked_scatter(t: Translation, call: Call) -> None:
    """x with the elements of a source, one after another, where a mask is true. Raises ModelError for one that no batch changes."""
    source, mask, given = call.args
    shape = t.shape(call.node)
    if not any(isinstance(d, BatchDim) for d in shape):
        raise refuse(t, call, "what it assigns to must have the batch as a dimension: use torch.where")
    mixes_batch(t, call, (0,))
    name, of_mask = (t.broadcast(call.node, t.blob(node), shape) for node in (source, mask))
    places = t.step(call.node, "FlatNonZero", (of_mask,))
    ones = t.step(call.node, "Cast", (t.step(call.node, "Equal", (places, places)),), {"to": "int64"})
    counted = t.step(call.node, "Sub", (t.step(call.node, "CumSum", (ones,), {"axis": 0}), t.blob(1)))
    flat, elements = (t.step(call.node, "Reshape", (each,), {"shape": (-1,)}) for each in (name, t.blob(given)))
    values = t.step(call.node, "Gather", (elements, counted), {"axis": 0})
    put = t.step(call.node, "Scatter", (flat, places, values), {"dim": 0})
    t.add(call.node, "Reshape", (put,), {"shape": t.open_shape(call.node)})


def _together(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (a, b)]
    return tuple(next((d for d in sizes if d != 1), 1) for sizes in zip(*padded, strict=True))


def _mask_of(call: Call) -> tuple[int, fx.Node]:
    indices = call.args[1]
    return next((place, index) for place, index in enumerate(indices) if index is not None)


def _places(t: Translation, call: Call, mask: fx.Node) -> str:
    """int64[n], where a mask is true in the order of its elements: found once for each mask."""
    if mask not in t.places:
        try:
            t.places[mask] = t.step(call.node, "FlatNonZero", (t.blob(mask),))
        except ModelError as error:
            raise refuse(t, call, _ONE_BATCH) from error
    return t.places[mask]


def _flattened(t: Translation, call: Call, name: str, first: int, mask: fx.Node) -> tuple[str, Shape]:
    """A blob with the dimensions of a mask, from `first` on, as one; and the dimensions behind them."""
    shape, of_mask = t.builder.blob(name).shape, t.shape(mask)
    past = first + len(of_mask)
    if shape[first:past] != of_mask or sum(isinstance(d, BatchDim) for d in of_mask) != 1:
        raise refuse(t, call, _ONE_BATCH)
    if len(of_mask) == 1:
        return name, shape[past:]
    if any(isinstance(d, BatchDim) for d in (*shape[:first], *shape[past:])):
        raise refuse(t, call, _ONE_BATCH)
    wanted = tuple(d if isinstance(d, int) else -1 for d in (*shape[:first], *shape[past:]))
    return t.step(call.node, "Reshape", (name,), {"shape": (*wanted[:first], -1, *wanted[first:])}), shape[past:]


def _nonzero(t: Translation, call: Call) -> None:
    """int64[n,rank]: the places of each element that is not zero, in each dimension."""
    source = call.args[0]
    assert isinstance(source, fx.Node)
    shape = t.shape(source)
    places = _places(t, call, source)
    t.pick(call.meta["val"].shape[0], places)
    if any(isinstance(d, BatchDim) for d in shape[1:]):
        raise refuse(t, call, "the batch must be the first dimension of what it looks for")
    columns = []
    for axis in range(len(shape)):
        behind = prod(d for d in shape[axis + 1 :] if isinstance(d, int))
        column = places if behind == 1 else t.step(call.node, "FloorDiv", (places, t.blob(behind)))
        size = shape[axis]
        columns.append(t.step(call.node, "Mod", (column, t.blob(size))) if isinstance(size, int) and axis else column)
    t.add(call.node, "Stack", columns, {"axis": 1})


def _unique(t: Translation, call: Call) -> None:
    """The distinct numbers of a tensor, the place among them of each, and how often each comes. They come in order, whether that was asked for or not."""
    source = call.args[0]
    call.told_by_shape()
    names = t.builder.add("Unique", (t.blob(source),), module=t.module_of(call.node))
    t.pick(call.meta["val"][0].shape[0], names[0])
    mixes_batch(t, call, (0,))
    t.parts[call.node] = names


PICKS: dict[str, Handler] = {
    "masked_scatter.default": _masked_scatter,
    "nonzero.default": _nonzero,
    "_unique2.default": _unique,
}

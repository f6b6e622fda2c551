"""Parts of batches that were joined, as contrastive losses join two views of one: k batches of B examples are k * B."""

from torch import fx

from htrain.frontend.aten_forms import Call, argument, refuse
from htrain.frontend.aten_torch import TORCH
from htrain.frontend.translation import Translation
from htrain.net.net import BatchDim


def cut(t: Translation, call: Call) -> None:
    """x[b * B : e * B] along the batch. Raises ModelError where it cuts within one."""
    source = call.args[0]
    assert isinstance(source, fx.Node)
    shape = t.shape(source)
    axis = argument(call, 1, "dim", 0) % len(shape)
    size = shape[axis]
    assert isinstance(size, BatchDim)
    begin = _batches(t, call, argument(call, 2, "start", 0) or 0, axis)
    end = _batches(t, call, argument(call, 3, "end", None), axis)
    if argument(call, 4, "step", 1) != 1 or t.shape(call.node)[axis] != BatchDim(end - begin, size.bound):
        raise refuse(t, call, _CUTS)
    if sum(isinstance(d, BatchDim) for d in shape) > 1:
        t.add(call.node, "Gather", (t.blob(source), _places(t, call, begin, end)), {"axis": axis})
        return
    name = _apart(t, call, t.blob(source), axis)
    if end - begin == 1:
        t.add(call.node, "Select", (name,), {"axis": axis, "index": begin})
    else:
        name = t.step(call.node, "Slice", (name,), {"axis": axis, "start": begin, "end": end, "step": 1})
        t.add(call.node, "Reshape", (name,), {"shape": t.open_shape(call.node)})


def assign(t: Translation, call: Call) -> None:
    """x[b * B : e * B] = values along the batch, or a part of another dimension. Raises ModelError where it cuts within a batch."""
    source, values = call.args[:2]
    assert isinstance(source, fx.Node)
    shape = t.shape(source)
    axis = argument(call, 2, "dim", 0) % len(shape)
    size = shape[axis]
    if not isinstance(size, BatchDim):
        TORCH["slice_scatter.default"](t, call)
        return
    begin = _batches(t, call, argument(call, 3, "start", 0) or 0, axis)
    end = _batches(t, call, argument(call, 4, "end", None), axis)
    several = sum(isinstance(d, BatchDim) for d in shape) > 1
    if several or argument(call, 5, "step", 1) != 1 or t.shape(values)[axis] != BatchDim(end - begin, size.bound):
        raise refuse(t, call, _CUTS)
    name, given = (_apart(t, call, t.blob(node), axis) for node in (source, values))
    parts = [
        given
        if (first, last) == (begin, end)
        else t.step(call.node, "Slice", (name,), {"axis": axis, "start": first, "end": last, "step": 1})
        for first, last in ((0, begin), (begin, end), (end, size.per_example))
        if first < last
    ]
    name = t.step(call.node, "Concat", parts, {"axis": axis})
    t.add(call.node, "Reshape", (name,), {"shape": t.open_shape(call.node)})


_CUTS = (
    "it cuts the batch: a part of it must be whole batches that were joined, as z[: len(x)] of z = torch.cat([x, y])"
)


def _batches(t: Translation, call: Call, bound: object, axis: int) -> int:
    """A bound of a slice as a number of batches, or of as many as a mask picks, of which there are several along an axis."""
    source = call.args[0]
    assert isinstance(source, fx.Node)
    size, whole = t.shape(source)[axis], source.meta["val"].shape[axis]
    assert isinstance(size, BatchDim)
    if bound is None or (isinstance(bound, int) and bound >= 1 << 40):
        return size.per_example
    if bound == 0:
        return 0
    if not isinstance(bound, fx.Node):
        raise refuse(t, call, _CUTS)
    count = bound.meta["val"].node.expr * size.per_example / whole.node.expr
    if not count.is_Integer:
        raise refuse(t, call, _CUTS)
    return int(count) + (size.per_example if count < 0 else 0)


def _places(t: Translation, call: Call, begin: int, end: int) -> str:
    """b * B, ... to before e * B."""
    ones = t.step(call.node, "Fill", (), {"shape": (begin - end,), "value": 1.0, "dtype": "int64"})
    name = t.step(call.node, "Sub", (t.step(call.node, "CumSum", (ones,), {"axis": 0}), t.blob(1)))
    if not begin:
        return name
    before = t.step(call.node, "Fill", (), {"shape": (-begin,), "value": 1.0, "dtype": "int64"})
    count = t.step(call.node, "ReduceSum", (before,), {"axes": (0,), "keepdims": False})
    return t.step(call.node, "Add", (name, count))


def _apart(t: Translation, call: Call, name: str, axis: int) -> str:
    """[..,k*B,..] as [..,k,B,..], of a tensor without another dimension of the batch."""
    shape = t.builder.blob(name).shape
    size = shape[axis]
    assert isinstance(size, BatchDim)
    rest = [[d for d in part if isinstance(d, int)] for part in (shape[:axis], shape[axis + 1 :])]
    return t.step(call.node, "Reshape", (name,), {"shape": (*rest[0], size.per_example, -1, *rest[1])})

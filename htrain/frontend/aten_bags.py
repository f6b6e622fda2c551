"""Embedding bags: of a table an op of its own, and of any other matrix its rows, gathered and pooled."""

import torch
from torch import fx

from htrain.frontend.aten_forms import Call, Handler, refuse
from htrain.frontend.translation import Translation, dtype_name
from htrain.net.net import Attr, Dim


def _embedding_bag(t: Translation, call: Call) -> None:
    weight, ids, offsets, weights, mode, padding, closed = call.args
    name = t.blob(weight)
    if name not in t.tables:
        _pooled(t, call)
        return
    inputs = [name, t.blob(ids)]
    if offsets is not None:
        starts = t.blob(offsets)
        if closed:
            raise refuse(t, call, "include_last_offset: give the starts of the bags only")
        inputs.append(starts)
    if weights is not None:
        inputs.append(t.blob(weights))
    t.add(
        call.node,
        "EmbeddingBag",
        inputs,
        {"mode": str(mode), "padding_idx": int(padding), "weighted": weights is not None},
    )


def _pooled(t: Translation, call: Call) -> None:
    """The rows of ids[B,W] in a matrix that is no table, as it is computed or read elsewhere, too. Padding counts for nothing; a bag of it alone is zeros."""
    weight, ids, offsets, weights, mode, padding, _ = call.args
    if offsets in t.static and ids in t.static:
        _of_known_bags(t, call, t.static[ids], t.static[offsets])
        return
    if offsets is not None:
        raise refuse(
            t,
            call,
            f"bags by offsets of '{t.blob(weight)}', which is also used outside of lookups, or computed: give it ids[B,W], filled up with its padding_idx",
        )
    assert isinstance(ids, fx.Node)
    shape, like = t.shape(ids), call.meta["val"]
    rows = t.step(call.node, "Gather", (t.blob(weight), t.blob(ids)), {"axis": 0})
    if weights is not None:
        rows = t.step(call.node, "Mul", (rows, _column(t, call, t.blob(weights), shape)))
    if padding < 0:
        t.add(call.node, "ReduceSum" if mode == "sum" else "ReduceMean", (rows,), {"axes": (1,), "keepdims": False})
        return
    counts = _column(t, call, t.step(call.node, "NotEqual", (t.blob(ids), t.blob(int(padding)))), shape)
    rows = t.step(call.node, "Where", (counts, rows, t.blob(0.0, like=like)))
    summed = t.step(call.node, "ReduceSum", (rows,), {"axes": (1,), "keepdims": False})
    if mode == "sum":
        t.names[call.node] = summed
        return
    number = t.step(call.node, "Cast", (counts,), {"to": t.builder.blob(rows).dtype})
    number = t.step(call.node, "ReduceSum", (number,), {"axes": (1,), "keepdims": False})
    t.add(call.node, "Div", (summed, t.step(call.node, "Max", (number, t.blob(1.0, like=like)))))


def _of_known_bags(t: Translation, call: Call, ids: torch.Tensor, starts: torch.Tensor) -> None:
    """The rows of bags that are the same in every batch, as of the features of all items: gathered, and added up by bag. Padding counts for nothing."""
    weight, _, _, weights, mode, padding, _ = call.args
    like, width = call.meta["val"], t.shape(weight)[1]
    kept = (ids != padding).nonzero()[:, 0]
    bags = torch.searchsorted(starts, torch.arange(len(ids), dtype=starts.dtype), right=True)[kept] - 1
    module = t.module_of(call.node)
    rows = t.step(call.node, "Gather", (t.blob(weight), t.constant(ids[kept], module=module)), {"axis": 0})
    if weights is not None:
        scales = t.step(call.node, "Gather", (t.blob(weights), t.constant(kept, module=module)), {"axis": 0})
        rows = t.step(call.node, "Mul", (rows, t.step(call.node, "Reshape", (scales,), {"shape": (-1, 1)})))
    places = t.broadcast(call.node, t.constant(bags[:, None], module=module), (len(kept), width))
    filled: dict[str, Attr] = {"shape": (len(starts), width), "value": 0.0, "dtype": dtype_name(like.dtype)}
    zeros = t.step(call.node, "Fill", (), filled)
    summed = t.step(call.node, "ScatterAdd", (zeros, places, rows), {"dim": 0})
    if mode == "sum":
        t.names[call.node] = summed
        return
    counts = torch.bincount(bags, minlength=len(starts)).clamp(min=1)[:, None].to(like.dtype)
    t.add(call.node, "Div", (summed, t.constant(counts, module=module)))


def _column(t: Translation, call: Call, name: str, shape: tuple[Dim, ...]) -> str:
    """A blob[B,W] with one more dimension."""
    return t.step(call.node, "Reshape", (name,), {"shape": (*(d if isinstance(d, int) else -1 for d in shape), 1)})


BAGS: dict[str, Handler] = {"htrain.embedding_bag.default": _embedding_bag}

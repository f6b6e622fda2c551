"""ATen ops of what a module does while it trains alone: dropout, and batch norms that move their running statistics."""

import torch
from torch import fx

from htrain.frontend.aten_forms import Call, Handler, mixes_batch, refuse
from htrain.frontend.translation import Translation
from htrain.net.net import Attr


def dropped(t: Translation, call: Call, x: str, p: float) -> str:
    """`x` with a share `p` of its values dropped, others in each batch."""
    attrs: dict[str, Attr] = {"p": p, "seed": 0}
    return t.builder.add("Dropout", (x, t.batch_key()), attrs=attrs, module=t.module_of(call.node))[0]


def _batch_norm(t: Translation, call: Call) -> None:
    """While training: (y, mean, 1 / deviation, and the running statistics, which the op changes by itself)."""
    source, scale, bias, *statistics, training, momentum, epsilon = call.args
    assert isinstance(source, fx.Node)
    if not training:
        raise refuse(t, call, "a batch norm whose statistics are not those of the model: give it running statistics")
    x, width = source.meta["val"], source.meta["val"].shape[1]
    if any(set(node.users) - {call.node} and not _only_kept(node, call.node) for node in statistics):
        raise refuse(t, call, "its running statistics are read elsewhere, too")
    affine = [
        t.constant(fill((width,), dtype=x.dtype), module=t.module_of(call.node)) if given is None else t.blob(given)
        for given, fill in ((scale, torch.ones), (bias, torch.zeros))
    ]
    held = [t.statistic(node) for node in statistics]
    attrs: dict[str, Attr] = {"eps": float(epsilon), "momentum": float(momentum)}
    outputs = t.builder.add("BatchNorm", (t.blob(source), *affine, *held), attrs=attrs, module=t.module_of(call.node))
    t.parts[call.node] = (*outputs, *held)
    mixes_batch(t, call, (0,), "a batch norm")


def _only_kept(node: fx.Node, norm: fx.Node) -> bool:
    """Whether a buffer has no reader but a norm and the graph's end, which says what becomes of it."""
    return all(user is norm or user.op == "output" for user in node.users)


def _dropout(t: Translation, call: Call) -> None:
    source, p, training = call.args
    if training and p:
        t.names[call.node] = dropped(t, call, t.blob(source), float(p))
    else:
        t.alias(call.node, source)
    t.parts[call.node] = (t.names[call.node],)


TRAINING: dict[str, Handler] = {
    **dict.fromkeys(("dropout.default", "native_dropout.default"), _dropout),
    **dict.fromkeys(("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.no_stats"), _batch_norm),
}

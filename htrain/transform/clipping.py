"""Clipping of all gradients of dense weights by one norm (htrain.spec.clipping)."""

from collections.abc import Mapping

from htrain.net.net import Net
from htrain.ops.builder import NetBuilder
from htrain.spec.clipping import Clip, ClipGlobalNorm


def clip_together(net: Net, gradients: Mapping[str, str], clip: Clip) -> tuple[Net, Mapping[str, str]]:
    """Append an op that bounds the norm of all gradients of dense weights together, where `clip` does.

    Requires: `gradients` as a step takes them, over all trainers where these are in lockstep; no optimizer steps yet.
    Ensures:  the second result names, for each weight, its gradient behind that op; those of rows stay as they are.
    """
    weights = [name for name, p in net.parameters.items() if p.kind == "weight" and p.trained and name in gradients]
    if not isinstance(clip, ClipGlobalNorm) or not weights:
        return net, gradients
    builder = NetBuilder.of(net)
    names = [builder.fresh(f"{weight}_clipped") for weight in weights]  # two weights may have one gradient
    before = [gradients[weight] for weight in weights]
    clipped = builder.add("ClipTogether", before, attrs={"max_norm": clip.max_norm}, module="dense_clip", outputs=names)
    return builder.build(net.outputs), {**gradients, **dict(zip(weights, clipped, strict=True))}

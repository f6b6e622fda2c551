"""The classic parameter server: trainers compute with a copy of the dense weights that they fetch for every step (HET 5, its baseline)."""

from htrain.net import Net
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder


def pull_weights(net: Net) -> Net:
    """Let every reader of a trained weight but its optimizer step read a snapshot of it, taken when the step begins."""
    builder = NetBuilder(net.name)
    for name in net.inputs:
        builder.input(net.blobs[name])
    for parameter in net.parameters.values():
        builder.parameter(parameter)
    weights = [name for name, p in net.parameters.items() if p.kind == "weight" and p.trained]
    copies = {w: builder.add("Snapshot", (w,), module=w, outputs=(builder.fresh(f"{w}_pulled"),))[0] for w in weights}
    for op in net.ops:
        inputs = op.inputs if OPS[op.type].steps_weights else tuple(copies.get(name, name) for name in op.inputs)
        builder.add(op.type, inputs, attrs=op.attrs, module=op.module, outputs=op.outputs)
    return builder.build(net.outputs)

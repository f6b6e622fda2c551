"""The classic parameter server: trainers compute with a copy of the dense weights that they fetch for every step (HET 5, its baseline)."""

from collections.abc import Mapping

from htrain.net import Net, Op
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder

TRAINER = "trainer"


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


def pulled_tags(net: Net, fixed: Mapping[int, str], num_group_ps: int) -> dict[int, str]:
    """Weights with their snapshots and steps on group PSs, balanced by bytes, the largest first; all else on the trainer."""
    loads, owners = [0] * num_group_ps, {}
    weights = [p for p in net.parameters.values() if p.kind == "weight" and p.trained]
    for weight in sorted(weights, key=lambda w: (-w.num_bytes, w.name)):
        k = min(range(num_group_ps), key=lambda k: (loads[k], k))
        loads[k] += weight.num_bytes
        owners[weight.name] = f"group_ps:{k}"
    return {i: fixed.get(i) or _device(op, owners) for i, op in enumerate(net.ops)}


def _device(op: Op, owners: Mapping[str, str]) -> str:
    return next((owners[name] for name in op.inputs if name in owners), TRAINER)

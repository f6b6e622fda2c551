"""Heads: what a model returns beside what is scored. The ops that only they need stand in a net of their own, which only evaluation runs.

They may be scores of other tasks, probabilities, and vectors of users and items. A step computes none of them that its loss does not need.
"""

from dataclasses import dataclass, replace

from htrain.net.names import head_blob
from htrain.net.net import Blob, Net, Op
from htrain.net.rewriting import only_needed
from htrain.net.slices import leading_to, led_from
from htrain.ops.builder import NetBuilder


@dataclass(frozen=True)
class Parted:
    """A forward net in two: `trained`, whose last outputs are those that `heads` has as inputs; None where the model has none."""

    trained: Net
    heads: Net | None = None


def part(net: Net, names: tuple[str, ...], left_out: Op | None) -> Parted:
    """Cut a forward net whose last outputs are heads, of these `names`. A head may read what the op that steps have `left_out`, a sigmoid, makes.

    Ensures: `trained` leads to the other outputs, and to what `heads` takes of it; `heads` has an output `heads/NAME` for each, and parameters where it takes
    some by itself, as it may in evaluation's own net.
    """
    if not names:
        return Parted(net)
    mains, others = net.outputs[: -len(names)], net.outputs[-len(names) :]
    apart = led_from(net.ops, left_out.outputs) if left_out else set[str]()
    core = {place for place in leading_to(net.ops, mains) if apart.isdisjoint(net.ops[place].outputs)}
    ops = [net.ops[place] for place in leading_to(net.ops, others) if place not in core]
    made = {name for op in ops for name in op.outputs}
    taken = dict.fromkeys(name for name in [*others, *(n for op in ops for n in op.inputs)] if name not in made)
    frontier = tuple(name for name in taken if name not in net.inputs and name not in net.parameters)
    trained = only_needed(replace(net, outputs=(*mains, *frontier)))
    return Parted(trained, _net_of(net, ops, [*taken], dict(zip(names, others, strict=True))))


def _net_of(net: Net, ops: list[Op], taken: list[str], outputs: dict[str, str]) -> Net:
    """Ops as a net; values that it makes have names that no other net gives."""
    builder = NetBuilder("heads")
    new = {name: head_blob(f":{name}") for op in ops for name in op.outputs}
    for name in taken:
        if name in net.parameters:
            builder.parameter(net.parameters[name])
        else:
            blob = net.blob(name)
            builder.input(Blob(name, blob.shape, blob.dtype))
    for op in ops:
        inputs = tuple(new.get(name, name) for name in op.inputs)
        builder.copy(replace(op, inputs=inputs, outputs=tuple(new[name] for name in op.outputs)))
    for name, blob_name in outputs.items():
        builder.add("Identity", (new.get(blob_name, blob_name),), module="heads", outputs=(head_blob(name),))
    return builder.build([head_blob(name) for name in outputs])

"""The backward pass: gradients are ops in the net, made op by op, last to first (HT 2.1; Caffe2's way)."""

from collections.abc import Mapping

from htrain.errors import ModelError
from htrain.net.net import Attr, Net, Op
from htrain.net.slices import led_from, readers
from htrain.ops import OPS
from htrain.ops.builder import NetBuilder


def add_gradients(net: Net, scale: float = 1.0) -> tuple[Net, Mapping[str, str]]:
    """Append the gradient ops of `scale` times the loss, the net's first output.

    Requires: lookups are lowered; the net computes a loss.
    Ensures:  the second result names the gradient blob of every trained weight and of the rows of every lookup. A weight
              that does not reach the loss is not in it.
    Raises ModelError when an op between the loss and a trained weight has no gradient.
    """
    wanted = _reached_from_parameters(net)
    builder = NetBuilder.of(net)
    parts: dict[str, list[str]] = {}
    loss = net.outputs[0]
    attrs: dict[str, Attr] = {} if scale == 1 else {"scale": scale}
    names = (builder.gradient_name(loss),)
    parts[loss] = list(builder.add("GradientSeed", (loss,), attrs=attrs, module="loss", outputs=names))
    for op in reversed(net.ops):
        if op.outputs and wanted.intersection(op.outputs) and any(parts.get(o) for o in op.outputs):
            _differentiate(builder, op, wanted, parts)
    modules = {op.outputs[0]: op.outputs[0] for op in net.ops if op.type == "Lookup"} | _first_readers(net)
    gradients = {name: _summed(builder, name, parts[name], module) for name, module in modules.items() if name in parts}
    return builder.build(net.outputs), gradients


def _first_readers(net: Net) -> dict[str, str]:
    """The module that reads each weight first, itself where none does: the sum of a shared weight's gradients is placed with it."""
    read_by = readers(net.ops)
    weights = [name for name, p in net.parameters.items() if p.kind == "weight"]
    return {name: net.ops[read_by[name][0]].module if name in read_by else name for name in weights}


def _reached_from_parameters(net: Net) -> set[str]:
    """Blobs whose gradient somebody needs: computed from a trained weight or a looked-up row."""
    trained = (name for name, p in net.parameters.items() if p.trained and p.kind != "state")
    return led_from(net.ops, trained, lambda name: net.blobs[name].dtype.startswith(("float", "bfloat")))


def _differentiate(builder: NetBuilder, op: Op, wanted: set[str], parts: dict[str, list[str]]) -> None:
    rule = OPS[op.type].gradient
    if op.type == "Lookup":
        return
    if rule is None:
        raise ModelError(
            f"{op.label} has no gradient, but trained parameters come before it: detach its input or replace it"
        )
    dys = [_summed(builder, o, parts.pop(o), op.module) if o in parts else "" for o in op.outputs]
    needs = [name in wanted for name in op.inputs]
    for name, need, part in zip(op.inputs, needs, rule(builder, op, dys, needs), strict=True):
        if need and part:
            parts.setdefault(name, []).append(part)


def _summed(builder: NetBuilder, name: str, parts: list[str], module: str) -> str:
    """The gradient blob of `name`: a sum where several readers contribute."""
    if len(parts) == 1:
        return parts[0]
    return builder.add("Sum", parts, module=module, outputs=(builder.gradient_name(name),))[0]

"""Sgd(w, dw), Sgd(b, db) of dw, db, dx = FCGradient(x, w, dy) as dx = FCInputGradient(w, dy); FCSgd(w, b, x, dy): no gradient in memory."""

from dataclasses import replace

from htrain.net.net import Net, Op
from htrain.net.pattern import Pattern
from htrain.net.rewriting import Rewriting


def fuse_steps(net: Net) -> Net:
    """SGD steps of an FC's weight and bias in the product that makes their gradient, where nobody else reads that and all is on one device.

    Requires: a train net whose ops have their devices.
    Ensures:  every parameter takes the step that it took, behind the last op that reads it. That is right behind the gradient of the FC's input
              where nobody reads the weight later: it and dy are still in the caches.
    """
    pattern, changed = Pattern(net), Rewriting(net)
    for gradient in pattern.ops("FCGradient"):
        names = gradient.outputs[: 1 + bool(gradient.attrs["bias"])]
        found = [_steps_by(pattern, name) for name in names]
        steps = [ops[-1] for ops in found if ops]
        if len(steps) < len(names) or not _are_alike(gradient, steps):
            continue
        x, w, dy = gradient.inputs
        step = replace(steps[0], type="FCSgd", inputs=(*(s.inputs[0] for s in steps), x, dy))
        dx = replace(gradient, type="FCInputGradient", inputs=(w, dy), outputs=gradient.outputs[-1:], attrs={})
        before = [dx] if gradient.attrs["wants_x"] else []
        changed.drop(*(op for ops in found for op in ops))
        if any(_is_read_behind(pattern, s.inputs[0], gradient) for s in steps):
            changed.put(gradient, *before)
            changed.put(steps[-1], step)
        else:
            changed.put(gradient, *before, step)
    return changed.net()


def _steps_by(pattern: Pattern, gradient: str) -> list[Op]:
    """The Sgd that alone reads a gradient, behind the Cast to float32 of one in bfloat16; empty where that is not so."""
    cast = pattern.only_reader("Cast", gradient)
    name = cast.outputs[0] if cast else gradient
    step = pattern.only_reader("Sgd", name)
    return [*([cast] if cast else []), step] if step and step.inputs[1] == name else []


def _are_alike(gradient: Op, steps: list[Op]) -> bool:
    """Whether the steps have one rate and are on the device of the gradient."""
    return all((s.node_name, s.attrs) == (gradient.node_name, steps[0].attrs) for s in steps)


def _is_read_behind(pattern: Pattern, parameter: str, place: Op) -> bool:
    """Whether anything but its step reads a parameter behind an op."""
    return any(op.type != "Sgd" and pattern.place(op) > pattern.place(place) for op in pattern.readers(parameter))

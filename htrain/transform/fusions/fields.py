"""Concat(x, Stack(TakeRows(r, p), ..)) as StackRows(x, r, .., p, ..): rows of many tables in one pass."""

from dataclasses import replace

from htrain.net.net import Net, Op
from htrain.net.pattern import Pattern
from htrain.net.rewriting import Rewriting
from htrain.ops.effects import without_unread


def fuse_fields(net: Net) -> Net:
    """Stack rows of several tables, one of each for an example, in one op; with a value of the example before them
    where there is one.

    Requires: a forward net whose lookups are lowered.
    Ensures:  every output has the values that it had.
    """
    pattern, changed = Pattern(net), Rewriting(net)
    stacked: dict[str, Op] = {}
    for stack in pattern.ops("Stack"):
        if takes := _taken(pattern, stack):
            rows, inverse = zip(*(take.inputs for take in takes), strict=True)
            stacked[stack.outputs[0]] = replace(stack, type="StackRows", inputs=(*rows, *inverse), attrs={"dense": 0})
            changed.put(stack, stacked[stack.outputs[0]])
    for concat in pattern.ops("Concat"):
        rest = pattern.only_for_one("Stack", concat.inputs[-1])
        row = _row_before(pattern, concat) if rest and rest.outputs[0] in stacked else None
        if rest and row:
            inputs = (row.inputs[0], *stacked[rest.outputs[0]].inputs)
            changed.put(concat, replace(concat, type="StackRows", inputs=inputs, attrs={"dense": 1}))
            changed.drop(rest)
    return without_unread(changed.net())


def _taken(pattern: Pattern, stack: Op) -> list[Op]:
    """The TakeRows of Stack(TakeRows(r[u,D], p[B]), .., axis=1), all as wide; empty for anything else."""
    net, takes = pattern.net, [pattern.only_for_one("TakeRows", name) for name in stack.inputs]
    found = [take for take in takes if take]
    shapes = {net.blob(take.outputs[0]).shape for take in found}
    alike = len(found) == len(takes) and len(shapes) == 1 and len(shapes.pop()) == 2
    floats = all(net.blob(take.inputs[0]).dtype == "float32" for take in found)
    return found if alike and floats and stack.attrs["axis"] == 1 else []


def _row_before(pattern: Pattern, concat: Op) -> Op | None:
    """The Reshape that makes x[B,1,D] of x[B,D], in Concat(x[B,1,D], stacked[B,F,D], axis=1); None for anything else."""
    reshape = pattern.maker("Reshape", concat.inputs[0])
    if reshape is None or len(concat.inputs) != 2 or concat.attrs["axis"] != 1:
        return None
    x, row, others = (pattern.net.blob(name) for name in (reshape.inputs[0], *concat.inputs))
    batch, _, width = others.shape
    fits = (x.shape, row.shape, x.dtype) == ((batch, width), (batch, 1, width), "float32")
    return reshape if fits else None

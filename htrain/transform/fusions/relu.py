"""Relu(FC(x)) as FCRelu(x)."""

from dataclasses import replace

from htrain.net.net import Net
from htrain.net.pattern import Pattern
from htrain.net.rewriting import Rewriting


def fuse_relu(net: Net) -> Net:
    """Relu in the FC before it, where nobody else reads what the FC gives.

    Requires: a forward net.
    Ensures:  every output has the values that it had.
    """
    pattern, changed = Pattern(net), Rewriting(net)
    for relu in pattern.ops("Relu"):
        if fc := pattern.only_for_one("FC", relu.inputs[0]):
            changed.put(fc, replace(fc, type="FCRelu", outputs=relu.outputs))
            changed.drop(relu)
    return changed.net()

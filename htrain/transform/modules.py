"""Modules: the units that are placed together (HT 3.2.1)."""

from collections import Counter
from dataclasses import replace

from htrain.net.net import Net


def name_modules(net: Net) -> Net:
    """Give every forward op that reads no parameter a module of its own; its gradient will inherit it.

    An op that reads parameters keeps the name of the user's module. Ops that share a user's module get
    `module/output` instead, so that each can be placed by itself.
    """
    shared = Counter(op.module for op in net.ops)
    ops = [
        op
        if any(name in net.parameters for name in op.inputs)
        or (op.module and shared[op.module] == 1)
        or op.type == "Dedupe"
        else replace(op, module=f"{op.module}/{op.outputs[0]}".lstrip("/"))
        for op in net.ops
    ]
    return net.with_ops(ops)

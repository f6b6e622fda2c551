"""Constants beside those who read them: they never travel, and no device has a constant and nothing else to do."""

from collections.abc import Mapping
from dataclasses import replace

from htrain.net.net import Blob, Net, Op
from htrain.net.rewriting import reading

Home = tuple[str, str]  # a module, and the device of its ops that have no choice


def copy_constants(net: Net, fixed: Mapping[int, str]) -> Net:
    """A Constant of its own for every module that reads one, in that module; `fixed` are the devices of ops that have no choice.

    Ensures: the net computes what it computed; all ops that read a Constant share its module, and its device if that is fixed.
    """
    constants = {op.outputs[0]: op for op in net.ops if op.type == "Constant"}
    if not constants:
        return net
    copies: dict[tuple[str, Home], str] = {}
    taken = set(net.blobs) | set(net.parameters)
    new: list[Blob] = []
    ops: list[Op] = []
    for index, op in enumerate(net.ops):
        if op.type == "Constant":
            continue
        home = op.module, fixed.get(index, "")
        for name in dict.fromkeys(op.inputs):
            if name in constants and (name, home) not in copies:
                copy = _unused(name, taken)
                copies[name, home] = copy
                taken.add(copy)
                new.append(replace(net.blobs[name], name=copy))
                ops.append(replace(constants[name], module=op.module, outputs=(copy,)))
        ops.append(reading(op, {name: copies[name, home] for name in op.inputs if (name, home) in copies}))
    ops += [constants[name] for name in net.outputs if name in constants]
    return net.with_ops(ops, new)


def _unused(name: str, taken: set[str]) -> str:
    return next(n for k in range(1, len(taken) + 2) if (n := f"{name}/{k}") not in taken)

"""Whether the names of a net hold together (docs/decisions/net.md)."""

from htrain.errors import ModelError
from htrain.net.net import Net, Op


def check(net: Net) -> Net:
    """`net` itself, if its names hold together.

    Ensures: every blob is written once, before it is read; every name is declared; no blob has a parameter's name.
    Raises ModelError naming the net and the first op that breaks this.
    """
    known = set(net.parameters) | set(net.inputs)
    for name in net.inputs:
        if name not in net.blobs:
            raise ModelError(f"net '{net.name}': input '{name}' is not declared")
    for op in net.ops:
        _check_op(net, op, known)
        known.update(op.outputs)
    for name in net.outputs:
        if name not in known:
            raise ModelError(f"net '{net.name}': nothing writes its output '{name}'")
    return net


def _check_op(net: Net, op: Op, known: set[str]) -> None:
    """Raises ModelError where an op reads what is not `known` before it, or writes what is."""
    for name in op.inputs:
        if name not in known:
            raise ModelError(f"net '{net.name}': {op.label} reads '{name}' before anything writes it")
    for place, name in enumerate(op.outputs):
        if name in known or name in op.outputs[:place]:
            raise ModelError(f"net '{net.name}': {op.label} writes '{name}', which is already written")
        if name not in net.blobs:
            raise ModelError(f"net '{net.name}': {op.label} writes '{name}', which is not declared")

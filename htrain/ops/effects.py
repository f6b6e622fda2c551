"""What may be left out of a net: ops whose outputs nobody reads, but for those with effects (docs/decisions/net.md)."""

from htrain.net.net import Net, Op
from htrain.net.rewriting import only_needed
from htrain.ops import OPS


def has_effects(op: Op) -> bool:
    """Whether an op does more than make its outputs."""
    return OPS[op.type].effects


def without_unread(net: Net) -> Net:
    """The net without the ops that neither its outputs nor any op with effects depend on."""
    return only_needed(net, has_effects)

"""FC and FCGradient as FastFC and FastFCGradient: by the library that is ahead on the role's CPU."""

from dataclasses import replace

from htrain.net.net import Net

_FAST = {"FC": "FastFC", "FCGradient": "FastFCGradient"}


def fast_products(net: Net) -> Net:
    """Compute the FCs that no other fusion took by the library that is ahead: FCs without ReLU, and gradients that are
    kept, as Adagrad and Adam do, or sent.

    Requires: a train net in which all other fusions are made.
    Ensures:  every blob has the values that it had, up to rounding.
    """
    return net.with_ops(replace(op, type=_FAST.get(op.type, op.type)) for op in net.ops)

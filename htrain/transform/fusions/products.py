"""FC and FCGradient as FastFC and FastFCGradient, by the library that is ahead on the role's CPU; convolutions of kernel 1 as products."""

from dataclasses import replace

from htrain.net.net import Net, Op
from htrain.ops.pointwise import is_pointwise

_FAST = {"FC": "FastFC", "FCGradient": "FastFCGradient"}
_CONVOLUTIONS = {"Convolution": "FastConvolution", "ConvolutionGradient": "FastConvolutionGradient"}


def fast_products(net: Net) -> Net:
    """Compute the FCs that no other fusion took by the library that is ahead: FCs without ReLU, and gradients that are
    kept, as Adagrad and Adam do, or sent.

    Requires: a train net in which all other fusions are made.
    Ensures:  every blob has the values that it had, up to rounding.
    """
    return net.with_ops(replace(op, type=_fast(net, op)) for op in net.ops)


def _fast(net: Net, op: Op) -> str:
    if op.type in _CONVOLUTIONS and is_pointwise(op, [net.blob(name) for name in op.inputs]):
        return _CONVOLUTIONS[op.type]
    return _FAST.get(op.type, op.type)

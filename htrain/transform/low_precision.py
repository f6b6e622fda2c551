"""FCs that compute their forward pass in low precision, over fp32 master weights (HT 5.1, Model-B)."""

from dataclasses import replace

from htrain.net import BatchDim, Net, Op
from htrain.options import FcDtype

LEAST_SIDE = 16  # a narrower FC gains nothing: converting its operands takes longer than its products
_TYPES: dict[FcDtype, str] = {"bfloat16": "FCBfloat16", "int8": "FCInt8"}


def lower_fcs(net: Net, dtype: FcDtype) -> Net:
    """Every FC whose inputs and outputs are at least LEAST_SIDE wide, in `dtype`.

    Requires: a forward net.
    Ensures:  the same blobs and parameters; gradients made afterwards are fp32.
    """
    if dtype == "float32":
        return net
    return net.with_ops(replace(op, type=_TYPES[dtype]) if _is_wide(net, op) else op for op in net.ops)


def _is_wide(net: Net, op: Op) -> bool:
    if op.type != "FC" or any(net.blob(name).dtype != "float32" for name in op.inputs):
        return False
    sides = net.blob(op.inputs[1]).shape
    return all(not isinstance(side, BatchDim) and side >= LEAST_SIDE for side in sides)

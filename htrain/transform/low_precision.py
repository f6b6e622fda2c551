"""FCs that compute in low precision, over fp32 master weights: their forward pass alone (HT 5.1, Model-B), or the backward pass too."""

from dataclasses import replace

from htrain.net.net import BatchDim, Blob, Net, Op, numel
from htrain.spec.cluster import Cluster
from htrain.spec.numerics import FcDtype, FcGradientDtype
from htrain.spec.options import Options

LEAST_SIDE = 16  # a narrower FC gains nothing: converting its operands takes longer than its products
BF16_GAIN = 1.5  # of a core's rate of products: less is lost to the conversions at the edges
LEAST_PRODUCTS = (
    1 << 22
)  # multiply-adds of an FC in a batch: below, bfloat16 gains nothing (the table that `htrain calibrate` prints)
_TYPES: dict[FcDtype, str] = {"bfloat16": "FCBfloat16", "int8": "FCInt8"}


def choose_fc_dtypes(net: Net, cluster: Cluster, options: Options) -> Options:
    """`options` with a dtype where they say `auto`. It is bfloat16 where cores have been measured to multiply it much
    faster (BF16_GAIN), and FCs that are large enough to gain by it have most of the net's products; else float32. It
    is never int8. What bfloat16 costs in quality is in docs/numbers.md.

    Requires: a forward net.
    """
    asked = options.numerics
    if asked.fc_dtype == "auto":
        pays = cluster.core_bf16_flops >= BF16_GAIN * cluster.core_flops and _are_large(net, options.batch_size)
        chosen: FcGradientDtype = "bfloat16" if pays or asked.fc_gradient_dtype == "bfloat16" else "float32"
        backward = chosen if asked.fc_gradient_dtype == "auto" else asked.fc_gradient_dtype
        return replace(options, numerics=replace(asked, fc_dtype=chosen, fc_gradient_dtype=backward))
    backward = "float32" if asked.fc_gradient_dtype == "auto" else asked.fc_gradient_dtype
    return replace(options, numerics=replace(asked, fc_gradient_dtype=backward))


def _are_large(net: Net, batch_size: int) -> bool:
    """Whether FCs of at least LEAST_PRODUCTS have half of all FCs' products."""
    products = [
        numel(net.blob(op.outputs[0]).shape, batch_size) * numel(net.blob(op.inputs[1]).shape[1:], 1)
        for op in net.ops
        if op.type == "FC"
    ]
    return 2 * sum(count for count in products if count >= LEAST_PRODUCTS) > sum(products)


def lower_fcs(net: Net, options: Options) -> Net:
    """FCs with their forward pass in `fc_dtype`, where the backward pass is in fp32 (HT 5.1, Model-B).

    Requires: a forward net. Ensures: the same blobs and parameters.
    """
    return net if options.numerics.fc_gradient_dtype == "bfloat16" else _lowered(net, options.numerics.fc_dtype)


def _lowered(net: Net, dtype: FcDtype) -> Net:
    """Every FC whose inputs and outputs are at least LEAST_SIDE wide, in `dtype`.

    Requires: a forward net.
    Ensures:  the same blobs and parameters; gradients made afterwards are fp32.
    """
    if dtype not in _TYPES:
        return net
    return net.with_ops(replace(op, type=_TYPES[dtype]) if _is_wide(net, op) else op for op in net.ops)


def _is_wide(net: Net, op: Op) -> bool:
    if op.type not in ("FC", "FCRelu") or any(net.blob(name).dtype != "float32" for name in op.inputs):
        return False
    sides = net.blob(op.inputs[1]).shape
    return all(not isinstance(side, BatchDim) and side >= LEAST_SIDE for side in sides)


def narrow_fcs(net: Net, options: Options) -> Net:
    """With `fc_gradient_dtype` bfloat16, make wide FCs ops over bfloat16 blobs; gradients that are made afterwards are
    bfloat16, too.

    A weight is rounded once a step, for both passes; what one FC gives the next stays bfloat16. Steps are made in fp32.

    Requires: a forward net, FCs and ReLUs fused where they will be.
    """
    return _Narrowing(net).run() if options.numerics.fc_gradient_dtype == "bfloat16" else net


class _Narrowing:
    def __init__(self, net: Net) -> None:
        self._net = net
        self._ops: list[Op] = []
        self._made: list[Blob] = []
        self._narrow: dict[str, str] = {}  # of a blob, the one that is it in bfloat16

    def run(self) -> Net:
        for op in self._net.ops:
            if _is_wide(self._net, op):
                self._add(op)
            else:
                self._ops.append(op)
        read = {name for op in self._ops for name in op.inputs} | set(self._net.outputs)
        return self._net.with_ops((op for op in self._ops if op.type != "Cast" or op.outputs[0] in read), self._made)

    def _add(self, op: Op) -> None:
        (y,) = op.outputs
        self._narrow[y] = narrow = f"{y}_bf16"
        inputs = tuple(self._rounded(name, op) for name in op.inputs)
        self._declare(y, narrow)
        self._ops.append(replace(op, inputs=inputs, outputs=(narrow,)))
        self._ops.append(Op("Cast", (narrow,), (y,), {"to": "float32"}, module=op.module))

    def _rounded(self, name: str, op: Op) -> str:
        if name not in self._narrow:
            self._narrow[name] = narrow = f"{name}_bf16"
            self._declare(name, narrow)
            self._ops.append(Op("Cast", (name,), (narrow,), {"to": "bfloat16"}, module=op.module))
        return self._narrow[name]

    def _declare(self, name: str, narrow: str) -> None:
        self._made.append(replace(self._net.blob(name), name=narrow, dtype="bfloat16"))

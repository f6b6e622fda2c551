"""FCs whose forward GEMM runs in bfloat16 or in 8-bit integers, over fp32 master weights (HT 5.1, Model-B).

The backward pass is FC's own, in fp32: gradients are sensitive to precision (HT 4.2).
"""

from collections.abc import Sequence

import torch
from torch.nn.functional import linear

from htrain.net.net import Blob, Op
from htrain.ops.base import Cost, OpDef
from htrain.ops.fc_rules import cost, gradient

_BYTES_SAVED: dict[str, int] = {"FCBfloat16": 2, "FCInt8": 3}  # of the 4 bytes of a number


def _bfloat16(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """FC with x and w rounded to bfloat16; products are summed in fp32."""
    y = linear(x.bfloat16(), w.bfloat16()).float()
    return y.add_(bias[0]) if bias else y


def _int8(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """FC of 8-bit integers: x quantized by row, w by output; sums of products are exact in int32."""
    if x.device.type == "meta":
        return linear(x, w, *bias)
    x_rows = x.reshape(-1, x.shape[-1])
    x_int, x_step = _rounded(x_rows)
    w_int, w_step = _rounded(w)
    # with one column torch 2.13's _int_mm gives numbers that have nothing to do with its operands
    y = (torch._int_mm(x_int, w_int.t()) if x.shape[-1] > 1 else x_int.int() * w_int.t().int()).float()
    y = y.mul_(x_step).mul_(w_step.view(1, -1)).view(*x.shape[:-1], w.shape[0])
    return y.add_(bias[0]) if bias else y


def _rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8[R,K] in -127..127 and step[R,1] of x[R,K]."""
    step = x.abs().amax(1, keepdim=True).div_(127.0)
    inverse = torch.where(step > 0, step.reciprocal(), step)
    return x.mul(inverse).round_().to(torch.int8), step


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """FC's products; x and w are read, and written once more at their lower precision."""
    full = cost(op, inputs, outputs, batch_size)
    narrow = sum(b.num_bytes(batch_size) / 4 * (4 - _BYTES_SAVED[op.type]) for b in inputs[:2])
    return Cost(full.flops, full.bytes + 2 * narrow)


def _infer_like_fc(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[tuple[tuple, str]]:
    return [((*inputs[0].shape[:-1], inputs[1].shape[0]), "float32")]


DEFINITIONS = (
    OpDef("FCBfloat16", _bfloat16, _infer_like_fc, _cost, gradient=gradient, work="gemm_bf16"),
    OpDef("FCInt8", _int8, _infer_like_fc, _cost, gradient=gradient, work="gemm_int8"),
)

"""Reductions, Softmax and normalization, under ONNX's names; `axes` empty means all of them.

y = Reduce..(x)                            x without `axes`, or with `keepdims` of size 1 along them
i = ArgMax(x)                              int64; along `axis`
y = CumSum(x), Softmax(x), LogSoftmax(x)   of x's shape; along `axis`
y = LayerNormalization(x, scale, bias)     over the dimensions from `axis` on, which scale and bias have, if given
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional as F

from htrain.net.net import Op
from htrain.ops.base import Builder, OpDef, same_as_input


def _over(reduce: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A torch reduction over several axes, as an ONNX kernel."""

    def kernel(x: torch.Tensor, *, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
        over = axes or tuple(range(x.dim()))
        if not x.numel():  # an empty batch has no largest value; nothing is learned from what stands for it
            return x.sum(dim=over, keepdim=keepdims)
        return reduce(x, dim=over, keepdim=keepdims)

    return kernel


def _spread_over(x: torch.Tensor, dy: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    """`dy` for every number of x that it was made of: a view."""
    if not keepdims:
        for axis in sorted(a % x.dim() for a in axes or range(x.dim())):
            dy = dy.unsqueeze(axis)
    return dy.expand(x.shape)


def _reduce_sum_gradient(
    x: torch.Tensor, dy: torch.Tensor, *, axes: tuple[int, ...], keepdims: bool, **_: object
) -> tuple[torch.Tensor, ...]:
    """What autograd gives, without the sum that it would make first."""
    return (_spread_over(x, dy, axes, keepdims),)


def _reduce_mean_gradient(
    x: torch.Tensor, dy: torch.Tensor, *, axes: tuple[int, ...], keepdims: bool, **_: object
) -> tuple[torch.Tensor, ...]:
    """What autograd gives: each quotient is made once, not for every number that it goes to."""
    count = math.prod(x.shape[a] for a in axes or range(x.dim()))
    return (_spread_over(x, dy / count if count else dy, axes, keepdims),)


def _arg_max(x: torch.Tensor, *, axis: int, keepdims: bool) -> torch.Tensor:
    return x.argmax(axis, keepdim=keepdims)


def _reduce_prod(x: torch.Tensor, *, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    for axis in sorted((a % x.dim() for a in axes or range(x.dim())), reverse=True):
        x = x.prod(axis, keepdim=keepdims)
    return x


def _norm(x: torch.Tensor, dim: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim)


def _cumulative_sum(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    return x.cumsum(axis)


def _softmax(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    return torch.softmax(x, axis)


def _log_softmax(x: torch.Tensor, *, axis: int) -> torch.Tensor:
    return torch.log_softmax(x, axis)


def _softmax_gradient(y: torch.Tensor, dy: torch.Tensor, *, axis: int) -> torch.Tensor:
    return torch.ops.aten._softmax_backward_data(dy, y, axis, y.dtype)


def _softmax_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    names = (builder.gradient_name(op.inputs[0]),)
    return builder.add("SoftmaxGradient", (op.outputs[0], dys[0]), attrs=op.attrs, module=op.module, outputs=names)


def _layer_normalization(x: torch.Tensor, *scale_bias: torch.Tensor, axis: int, epsilon: float) -> torch.Tensor:
    weight, bias = (*scale_bias, None, None)[:2]
    return F.layer_norm(x, list(x.shape[axis:]), weight, bias, epsilon)


def _variance(x: torch.Tensor, dim: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    return x.var(dim=dim, keepdim=keepdim, correction=0)


DEFINITIONS = (
    OpDef("ReduceSum", _over(torch.sum)),
    OpDef("ReduceSumGradient", _reduce_sum_gradient, same_as_input(0), gradient=None, many=True),
    OpDef("ReduceMean", _over(torch.mean)),
    OpDef("ReduceMeanGradient", _reduce_mean_gradient, same_as_input(0), gradient=None, many=True),
    OpDef("ReduceMax", _over(torch.amax)),
    OpDef("ReduceMin", _over(torch.amin)),
    OpDef("ReduceProd", _reduce_prod),
    OpDef("ReduceL2", _over(_norm)),
    OpDef("ReduceVariance", _over(_variance)),
    OpDef("ReduceLogSumExp", _over(torch.logsumexp)),
    OpDef("ArgMax", _arg_max, gradient=None, onnx=True),
    OpDef("CumSum", _cumulative_sum),
    OpDef("Softmax", _softmax, gradient=_softmax_rule, onnx=True),
    OpDef("SoftmaxGradient", _softmax_gradient, same_as_input(0), gradient=None),
    OpDef("LogSoftmax", _log_softmax, onnx=True),
    OpDef("LayerNormalization", _layer_normalization, onnx=True),
)

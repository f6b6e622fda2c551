"""Convolutions of kernel 1 as matrix products of each example, as in the compressed interactions of xDeepFM (`htrain.transform.fusions.products`).

y[B,O,..] = FastConvolution(x[B,C,..], w[O,C,1..][, b[O]])     and its gradient, up to rounding those of Convolution, whose attributes it has

A convolution copies x into blocks first, and its gradient takes several times what the products take.
"""

from collections.abc import Sequence

import torch

from htrain.net.net import BatchDim, Blob, Op
from htrain.ops.base import Cost, OpDef, Signature, infer_by_kernel
from htrain.ops.torch_ops import DEFINITIONS as TORCH_OPS

_TORCH = {definition.type: definition for definition in TORCH_OPS}


def is_pointwise(op: Op, inputs: Sequence[Blob]) -> bool:
    """Whether a Convolution, or its gradient, of these inputs multiplies the channels of each position alone, in float32."""
    x, w = inputs[:2]
    plain = not op.attrs["transposed"] and op.attrs["groups"] == 1 and len(x.shape) == len(w.shape) >= 3
    moved = {*_numbers(op, "stride"), *w.shape[2:]} | {1 + number for number in _numbers(op, "padding")}
    return plain and moved == {1} and x.dtype == w.dtype == "float32" and isinstance(x.shape[0], BatchDim)


def _numbers(op: Op, name: str) -> tuple[int, ...]:
    numbers = op.attrs[name]
    assert isinstance(numbers, tuple)
    return numbers


def _flat(x: torch.Tensor) -> torch.Tensor:
    """x[B,C,..] as [B,C,L]."""
    return x if x.dim() == 3 else x.flatten(2)


def _convolution(
    x: torch.Tensor,
    w: torch.Tensor,
    *bias: torch.Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> torch.Tensor:
    factor = w.flatten(1).expand(x.shape[0], w.shape[0], w.shape[1])
    y = torch.baddbmm(bias[0].unsqueeze(1), factor, _flat(x)) if bias else torch.bmm(factor, _flat(x))
    return y.reshape(x.shape[0], w.shape[0], *x.shape[2:])


def _gradient(*tensors: torch.Tensor, wrt: tuple[int, ...], **_: object) -> tuple[torch.Tensor, ...]:
    (x, w), dy = tensors[:2], _flat(tensors[-1])
    return tuple(_gradient_of(place, x, w, dy) for place in wrt)


def _gradient_of(place: int, x: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """The gradient of the input at a place: x, w or the bias; dy is [B,O,L]."""
    if place == 0:
        factor = w.flatten(1).t().expand(x.shape[0], w.shape[1], w.shape[0])
        return torch.bmm(factor, dy).reshape(x.shape)
    if place == 1:
        dw = dy.new_zeros(w.shape[:2])
        return dw.addbmm_(dy, _flat(x).transpose(1, 2)).reshape(w.shape)
    return dy.sum((0, 2))


def _gradient_infer(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [(inputs[place].shape, inputs[place].dtype) for place in _numbers(op, "wrt")]


def _cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    return _TORCH["Convolution"].cost(op, inputs, outputs, batch_size)


def _gradient_cost(op: Op, inputs: Sequence[Blob], outputs: Sequence[Blob], batch_size: int) -> Cost:
    """A product as large as the forward pass for each of the input and the weight."""
    once = _cost(op, inputs, inputs[-1:], batch_size)
    return Cost(len(outputs[:2]) * once.flops, len(outputs[:2]) * once.bytes)


DEFINITIONS = (
    OpDef("FastConvolution", _convolution, infer_by_kernel, _cost, None, work="batched"),
    OpDef("FastConvolutionGradient", _gradient, _gradient_infer, _gradient_cost, None, many=True, work="batched"),
)

"""Losses over a batch, their gradients, and the seed from which the backward pass starts."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numba import njit
from torch.nn import functional as F

from htrain.net import Blob, Op
from htrain.ops.base import Builder, OpDef, Signature, same_as_input


@njit(nogil=True, cache=True, error_model="numpy")
def _bce_loop(logit, label):  # type: ignore[no-untyped-def]
    """Mean of log(1 + exp(x)) - label * x, with no exp that could overflow."""
    total = 0.0
    for b in range(logit.size):
        x = np.float64(logit[b])
        total += max(x, 0.0) - x * label[b] + math.log1p(math.exp(-abs(x)))
    return total / logit.size


@njit(nogil=True, cache=True, error_model="numpy")
def _bce_gradient_loop(logit, label, scale, gradient):  # type: ignore[no-untyped-def]
    for b in range(logit.size):
        gradient[b] = (1.0 / (1.0 + math.exp(-np.float64(logit[b]))) - label[b]) * scale


def _fits_loop(logit: torch.Tensor, label: torch.Tensor) -> bool:
    """The loops are one call where torch makes ten: most of a small batch's loss is calling."""
    kinds = {logit.dtype, label.dtype}
    return logit.is_cpu and label.is_cpu and kinds == {torch.float32} and logit.numel() == label.numel() and logit.is_contiguous() and label.is_contiguous()


def _bce_with_logits(logit: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Mean binary cross entropy; `label` float32[B] takes the logit's shape, [B] or [B,1]."""
    if _fits_loop(logit, label):
        return torch.tensor(_bce_loop(logit.numpy().reshape(-1), label.numpy().reshape(-1)), dtype=torch.float32)
    return F.binary_cross_entropy_with_logits(logit, label.reshape(logit.shape))


def _bce_gradient(logit: torch.Tensor, label: torch.Tensor, dloss: torch.Tensor) -> torch.Tensor:
    if _fits_loop(logit, label):
        gradient = torch.empty_like(logit)
        scale = float(dloss) / max(1, logit.numel())
        _bce_gradient_loop(logit.numpy().reshape(-1), label.numpy().reshape(-1), scale, gradient.numpy().reshape(-1))
        return gradient
    return (torch.sigmoid(logit) - label.reshape(logit.shape)) * (dloss / logit.numel())


def _mse(prediction: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(prediction, label.reshape(prediction.shape))


def _mse_gradient(prediction: torch.Tensor, label: torch.Tensor, dloss: torch.Tensor) -> torch.Tensor:
    return (prediction - label.reshape(prediction.shape)) * (2 * dloss / prediction.numel())


def _rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    names = (builder.gradient_name(op.inputs[0]),)
    return [builder.add(op.type + "Gradient", (*op.inputs, dys[0]), module=op.module, outputs=names)[0], ""]


def _scalar(definition: OpDef, op: Op, inputs: Sequence[Blob]) -> Sequence[Signature]:
    return [((), inputs[0].dtype)]


def _seed(loss: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
    """The gradient of `scale` times the loss with respect to the loss: a share of it where trainers sum their gradients."""
    return torch.full_like(loss, scale)


DEFINITIONS = (
    OpDef("BceWithLogits", _bce_with_logits, _scalar, gradient=_rule),
    OpDef("BceWithLogitsGradient", _bce_gradient, same_as_input(0), gradient=None),
    OpDef("MeanSquaredError", _mse, _scalar, gradient=_rule),
    OpDef("MeanSquaredErrorGradient", _mse_gradient, same_as_input(0), gradient=None),
    OpDef("GradientSeed", _seed, same_as_input(0), gradient=None),
)

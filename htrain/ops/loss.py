"""Losses over a batch, their gradients, and the seed from which the backward pass starts.

    loss = BceWithLogits(logit, label)         the mean binary cross entropy, a scalar; sigmoid is in it
    loss = Bce(probability, label)             the same of a probability; its logarithms are at least -100, as PyTorch's are
    loss = MeanSquaredError(prediction, label)
    loss = OwnLoss(loss, score)                what the model's own code computes; the score, float32[B], is what it is evaluated by
    dlogit = <Loss>Gradient(logit, label, dloss)

Logits and predictions are float32[B] or [B,1], labels float32[B]; gradients have the shape of the logit.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from htrain.net.net import Blob, Op
from htrain.ops.base import Builder, OpDef, Signature, same_as_input


def _bce_with_logits(logit: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """The mean binary cross entropy of logit[B] or [B,1]; label[B] is brought to the same shape."""
    return F.binary_cross_entropy_with_logits(logit, label.reshape(logit.shape))


def _bce_gradient(logit: torch.Tensor, label: torch.Tensor, dloss: torch.Tensor) -> torch.Tensor:
    return (torch.sigmoid(logit) - label.reshape(logit.shape)) * (dloss / logit.numel())


def _bce(probability: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """What rounding has carried beyond 0 or 1 is 0 or 1."""
    return F.binary_cross_entropy(probability.clamp(0, 1), label.reshape(probability.shape))


def _bce_of_probability_gradient(probability: torch.Tensor, label: torch.Tensor, dloss: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.binary_cross_entropy_backward(
        dloss, probability.clamp(0, 1), label.reshape(probability.shape)
    )


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


def _own(loss: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    return loss.clone()


def _own_rule(builder: Builder, op: Op, dys: Sequence[str], wanted: Sequence[bool]) -> Sequence[str]:
    return [dys[0], ""]


DEFINITIONS = (
    OpDef("OwnLoss", _own, _scalar, gradient=_own_rule, place="reader"),
    OpDef("BceWithLogits", _bce_with_logits, _scalar, gradient=_rule, place="reader"),
    OpDef("BceWithLogitsGradient", _bce_gradient, same_as_input(0), gradient=None, place="reader"),
    OpDef("Bce", _bce, _scalar, gradient=_rule, place="reader"),
    OpDef("BceGradient", _bce_of_probability_gradient, same_as_input(0), gradient=None, place="reader"),
    OpDef("MeanSquaredError", _mse, _scalar, gradient=_rule, place="reader"),
    OpDef("MeanSquaredErrorGradient", _mse_gradient, same_as_input(0), gradient=None, place="reader"),
    OpDef("GradientSeed", _seed, same_as_input(0), gradient=None, place="reader"),
)

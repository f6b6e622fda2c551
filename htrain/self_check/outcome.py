"""What one pass over a batch gives, ours or the reference's: the loss, the outputs, and a gradient for every parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class Rows:
    """The gradient of a table: `rows[u,D]` of the distinct `ids[u]`, in ascending order; all others are zero."""

    ids: torch.Tensor
    rows: torch.Tensor


Gradient = torch.Tensor | Rows


@dataclass(frozen=True)
class Outcome:
    """`outputs[B]` are what is scored, and `heads` what the model returns besides; a parameter without a gradient is not in `gradients`."""

    loss: float
    outputs: torch.Tensor
    gradients: Mapping[str, Gradient]
    heads: Mapping[str, torch.Tensor] = field(default_factory=dict)


def summed_rows(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> Rows:
    """The gradient of a table from ids[n] and rows[n,D] of each time that it was read."""
    ids, inverse = torch.cat([part for part, _ in parts]).unique(return_inverse=True)
    rows = torch.cat([part for _, part in parts]).float()
    return Rows(ids, rows.new_zeros(len(ids), rows.shape[1]).index_add_(0, inverse, rows))


def loss_of(outputs: torch.Tensor, label: torch.Tensor, loss: str, *, probability: bool) -> torch.Tensor:
    """The mean loss as a user of PyTorch computes it; `probability`: the outputs have been through a sigmoid."""
    if loss == "mse":
        return F.mse_loss(outputs, label)
    if loss == "bce_probability":
        return F.binary_cross_entropy(outputs.clamp(0, 1), label)
    return F.binary_cross_entropy(outputs, label) if probability else F.binary_cross_entropy_with_logits(outputs, label)

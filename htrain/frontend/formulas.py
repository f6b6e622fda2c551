"""Functions of torch that look at the values of a batch to check them, which no graph can: while a model is captured they are their formulas."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class Formulas(TorchFunctionMode):
    """Within, F.gaussian_nll_loss, torch.cov and torch.corrcoef compute what they would, and check nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _FORMULAS.get(func, func)(*args, **(kwargs or {}))


def _gaussian_nll(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """A variance below `eps` counts as that, and has its gradient all the same."""
    var = var if isinstance(var, torch.Tensor) else var * torch.ones_like(input)
    if var.dim() + 1 == input.dim():  # one for all numbers of an example
        var = var.unsqueeze(-1)
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _covariance(input: torch.Tensor, *, correction: int = 1, **weights: Any) -> torch.Tensor:
    """Of variables along the first dimension."""
    if any(weight is not None for weight in weights.values()):
        return torch.cov(input, correction=correction, **weights)
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    centred = rows - rows.mean(1, keepdim=True)
    found = centred @ centred.transpose(0, 1) / (rows.shape[1] - correction)
    return found if input.dim() == 2 else found.reshape(())


def _correlation(input: torch.Tensor) -> torch.Tensor:
    found = _covariance(input)
    if input.dim() < 2:
        return found / found
    deviation = torch.sqrt(torch.diagonal(found))
    return (found / deviation[:, None] / deviation[None]).clamp(-1, 1)


_FORMULAS: dict[Any, Callable[..., Any]] = {
    F.gaussian_nll_loss: _gaussian_nll,
    **dict.fromkeys((torch.cov, torch.Tensor.cov), _covariance),
    **dict.fromkeys((torch.corrcoef, torch.Tensor.corrcoef), _correlation),
}

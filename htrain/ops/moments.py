"""Adam's arithmetic, as torch.optim has it: for steps that count their updates, and for those that need not."""

import torch


def adam_step(
    w: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    step: torch.Tensor,
    *,
    dw: torch.Tensor,
    rate: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Step w, of any shape, along its gradient dw; the moments have its shape, and `step`, float32[1], counts for the correction of their bias."""
    beta1, beta2 = betas
    t = float(step.add_(1))
    mean.lerp_(dw, 1 - beta1)
    square.mul_(beta2).addcmul_(dw, dw, value=1 - beta2)
    denominator = square.sqrt().div_((1 - beta2**t) ** 0.5).add_(eps)
    w.addcdiv_(mean, denominator, value=-rate / (1 - beta1**t))

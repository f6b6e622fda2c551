"""FTRL-Proximal's arithmetic (McMahan et al. 2013, Algorithm 1), of one number in a compiled loop, and of whole tensors.

The paper keeps z and n of a weight w, steps them by a gradient g,

    sigma = (sqrt(n + g^2) - sqrt(n)) / alpha;  z += g - sigma w;  n += g^2

and has w = -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2), or 0 where |z| <= l1. Where w is not 0 that says what z is, so z is taken from w there: with
s = (beta + sqrt(n + g^2)) / alpha + l2 it is -(w s + sign(w) l1) + g after the step. What w is 0 for keeps its z, at most l1 in size. In exact arithmetic that
is the paper's; it also goes on from weights that others have changed, or that do not begin with 0.
"""

import numpy as np
import torch

from htrain.jit import njit

LEAST_RATE = 1e-20  # below it a weight of float32 cannot be moved, and the product of weight and s is out of range


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy", inline="always")
def ftrl_number(w, z, n, grad, lr, beta, l1, l2):  # type: ignore[no-untyped-def]
    """A weight and its z after a step; n has the square of this gradient. All are float32."""
    if lr < LEAST_RATE and w != np.float32(0.0):
        return w, z
    scale = (beta + np.sqrt(n)) / lr + l2
    kept = min(max(-z, -l1), l1) if w == np.float32(0.0) else w * scale + np.copysign(l1, w)
    kept -= grad
    return (kept - min(max(kept, -l1), l1)) / scale, -kept


def ftrl_step(
    w: torch.Tensor, z: torch.Tensor, n: torch.Tensor, dw: torch.Tensor, *, lr: float, beta: float, l1: float, l2: float
) -> None:
    """Step w, z and n, of one shape, along the gradient dw."""
    scale = n.addcmul_(dw, dw).sqrt().add_(beta).div_(lr).add_(l2)
    if lr < LEAST_RATE:
        z.copy_(torch.where(w == 0, z.clamp(-l1, l1) + dw, z))
        return
    kept = torch.where(w == 0, z.neg().clamp_(-l1, l1), w * scale + l1 * w.sign()).sub_(dw)
    z.copy_(kept).neg_()
    w.copy_(kept.sub_(kept.clamp(-l1, l1)).div_(scale))

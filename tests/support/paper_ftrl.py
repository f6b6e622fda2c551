"""FTRL-Proximal as McMahan et al. 2013 write it, Algorithm 1: z and n of each weight, and weights made of them. NumPy, in double precision."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass
class PaperFtrl:
    """The paper's learner of some weights, any shape; `alpha`, `beta`, `l1` and `l2` as there.

    Its weights begin with 0, as the paper's do, or with `first`: then z begins with what gives these.
    """

    first: Numbers
    alpha: float
    beta: float
    l1: float
    l2: float
    z: Numbers = field(init=False)
    n: Numbers = field(init=False)

    def __post_init__(self) -> None:
        self.n = np.zeros_like(self.first)
        self.z = -self.first * (self.beta / self.alpha + self.l2) - np.sign(self.first) * self.l1

    @property
    def weights(self) -> Numbers:
        """w_{t,i} of line 6."""
        held = (self.beta + np.sqrt(self.n)) / self.alpha + self.l2
        return np.where(np.abs(self.z) <= self.l1, 0.0, -(self.z - np.sign(self.z) * self.l1) / held)

    def step(self, gradient: Numbers, places: slice | NDArray[np.int64] = slice(None)) -> None:
        """Lines 8 to 13: the weights at `places`, rows or all, learn from their gradient."""
        w = self.weights[places]
        sigma = (np.sqrt(self.n[places] + gradient**2) - np.sqrt(self.n[places])) / self.alpha
        self.z[places] += gradient - sigma * w
        self.n[places] += gradient**2

    def at(self, alpha: float) -> "PaperFtrl":
        """With another alpha from now on, which says anew what z gives the weights that are not 0."""
        weights, self.alpha = self.weights, alpha
        held = (self.beta + np.sqrt(self.n)) / self.alpha + self.l2
        self.z = np.where(
            weights == 0, np.clip(self.z, -self.l1, self.l1), -weights * held - np.sign(weights) * self.l1
        )
        return self

"""Whether a run still gets better: decided on the values of its validations alone, of which a lower one is better."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Standing:
    """After some validations: the `best` value so far, infinity before the first, and how many in a row came since without a better one.

    A value that is no number, or as good as the best, is not better.
    """

    best: float = math.inf
    without_better: int = 0

    def is_better(self, value: float) -> bool:
        """Whether a value that comes next would be the best."""
        return value < self.best

    def after(self, value: float) -> "Standing":
        """The standing once a value has come."""
        return Standing(value, 0) if self.is_better(value) else Standing(self.best, self.without_better + 1)

    def ends(self, patience: int) -> bool:
        """Whether a run ends that goes on for fewer than `patience` validations in a row without a better value; 0: no run does."""
        return 0 < patience <= self.without_better


def standing_of(values: Iterable[float]) -> Standing:
    """The standing after all of the values, in their order: a resumed run goes on from it."""
    standing = Standing()
    for value in values:
        standing = standing.after(value)
    return standing

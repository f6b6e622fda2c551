"""The learning rate of an update, by its number: a share of the rate at which training begins (torch.optim.lr_scheduler)."""

from dataclasses import dataclass
from math import cos, pi


@dataclass(frozen=True)
class Rates:
    """Rate `lr` over updates: it grows linearly in the first `warmup` of them, and then goes as `schedule` says.

    `constant` stays. `linear` and `cosine` fall to `share` of `lr` within `decay` updates, and stay there. `steps` multiplies by `gamma` behind each of
    `milestones`, which ascend. `decay` and `milestones` are updates behind the warm-up.
    """

    lr: float
    schedule: str = "constant"
    warmup: int = 0
    decay: int = 1
    share: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 1.0

    def at(self, update: int) -> float:
        """The rate of an update; the first is number 0."""
        if update < self.warmup:
            return self.lr * (update + 1) / self.warmup
        return self.lr * self._share(update - self.warmup)

    def _share(self, update: int) -> float:
        done = min(update / self.decay, 1.0)
        if self.schedule == "linear":
            return 1.0 - (1.0 - self.share) * done
        if self.schedule == "cosine":
            return self.share + (1.0 - self.share) * (1.0 + cos(pi * done)) / 2.0
        if self.schedule == "steps":
            return float(self.gamma ** sum(update >= milestone for milestone in self.milestones))
        return 1.0

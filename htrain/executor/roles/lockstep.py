"""A trainer that steps together with all others: what it says with each step, and what all have said (HET 3)."""

from collections.abc import Callable

import torch

from htrain.net.net import Net
from htrain.ops.base import dtype_of
from htrain.sync.agreement import Verdict, Word

_GO_ON = Verdict(over=False, pause=False)


class Lockstep:
    """`verdict` sums up what was heard since training began or went on; `wants_pause` says whether the trainer has been told to pause."""

    def __init__(self, wants_pause: Callable[[], bool]) -> None:
        self.verdict = _GO_ON
        self._wants_pause = wants_pause
        self._has_data: dict[int, bool] = {}

    def opened(self, step: int, *, has_data: bool) -> None:
        """A batch is on its way, or an empty one; the trainer `has_data` for the step behind it, or has none."""
        self._has_data[step] = has_data

    def word(self, step: int) -> Word:
        """What this trainer says with a step."""
        return Word(self._has_data.pop(step), self._wants_pause())

    def heard(self, verdict: Verdict) -> Verdict:
        """All have said this with a step; what was heard so far, with it."""
        self.verdict = Verdict(self.verdict.over or verdict.over, self.verdict.pause or verdict.pause)
        return self.verdict

    def go_on(self) -> None:
        """After a pause."""
        self.verdict = _GO_ON


def no_examples(net: Net) -> dict[str, torch.Tensor]:
    """The inputs of a batch of no examples."""
    blobs = [net.blobs[name] for name in net.inputs]
    shapes = [[dim if isinstance(dim, int) else 0 for dim in blob.shape] for blob in blobs]
    return {b.name: torch.zeros(shape, dtype=dtype_of(b.dtype)) for b, shape in zip(blobs, shapes, strict=True)}

"""A trainer that steps together with all others: what it says with each step, and what all have said (HET 3)."""

from collections.abc import Callable
from typing import Any

import torch

from htrain.net.net import Net
from htrain.ops.base import dtype_of
from htrain.sync.agreement import Verdict, Word

_GO_ON = Verdict(over=False, pause=False)


class Lockstep:
    """`verdict` sums up what was heard since training began or went on; `wants_pause` says whether the trainer has been told to pause.

    `await_verdict` is called to wait for what all said with a step, a Verdict.
    """

    def __init__(self, await_verdict: Callable[[int], Any], wants_pause: Callable[[], bool]) -> None:
        self.verdict = _GO_ON
        self._await_verdict = await_verdict
        self._wants_pause = wants_pause
        self._has_data: dict[int, bool] = {}

    def opened(self, step: int, *, has_data: bool) -> None:
        """A batch is on its way, or an empty one."""
        self._has_data[step] = has_data

    def word(self, step: int) -> Word:
        """What this trainer says with a step."""
        return Word(self._has_data.pop(step), self._wants_pause())

    def hear(self, step: int) -> Callable[[], Any]:
        """What waits for what all said with a step that has been run."""
        return lambda: self._await_verdict(step)

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

"""A trainer that steps together with all others: what it says with each step, and what all have said (HET 3)."""

import time
from collections.abc import Callable

import torch

from htrain.executor.host.patience import Patience
from htrain.executor.transport.collective import CollectiveLoop
from htrain.net.net import Net
from htrain.ops.base import dtype_of
from htrain.sync.agreement import Verdict, Word

_GO_ON = Verdict(over=False, pause=False)


class Lockstep:
    """`verdict` sums up what was heard since training began or went on; `wants_pause` says whether the trainer has been told to pause.

    `seconds_waited` is the time spent waiting for what the others say.
    """

    def __init__(self, collective: CollectiveLoop, patience: Patience, wants_pause: Callable[[], bool]) -> None:
        self.verdict = _GO_ON
        self.seconds_waited = 0.0
        self._collective = collective
        self._wants_pause = wants_pause
        self._patience = patience
        self._has_data: dict[int, bool] = {}
        collective.word = self.word

    def opened(self, step: int, *, has_data: bool) -> None:
        """A batch is on its way, or an empty one."""
        self._has_data[step] = has_data

    def word(self, step: int) -> Word:
        """What this trainer says with a step."""
        return Word(self._has_data.pop(step), self._wants_pause())

    def hear(self, step: int) -> Verdict:
        """What all said with a step that has been run. Raises PeerLost."""
        began = time.monotonic()
        verdict = self._collective.verdict(step, self._patience.seconds)
        self.seconds_waited += time.monotonic() - began
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

"""The losses of steps, read from where they are computed: those of an accelerator some at a time, so that no step waits for it (cDLRM 5)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from htrain.executor.host.watch import Activity

_AT_ONCE = 16  # losses that are read together, once a run is under way


@dataclass(frozen=True)
class CountedStep:
    """What a step adds to its trainer's totals. `positives` are the labels' sum; `replica` and `step` say whose it was."""

    replica: int
    step: int
    examples: int
    positives: float


class Losses:
    """Steps whose losses have not been read, in order. For one thread, which is busy with `activity` while it waits for an accelerator.

    The first losses are read soon, since a run whose first steps have been seen is known to be under way.
    """

    def __init__(self, activity: Activity) -> None:
        self._activity = activity
        self._at_once = 1
        self._computed: list[tuple[CountedStep, torch.Tensor]] = []
        self._coming: tuple[list[CountedStep], torch.Tensor, Any] | None = None

    def add(self, counted: CountedStep, loss: torch.Tensor) -> Iterator[tuple[CountedStep, float]]:
        """A step has been run, or asked of an accelerator, with this scalar loss. The steps whose losses are known by now, with these."""
        if _is_at_hand(loss):
            yield counted, float(loss)
            return
        self._computed.append((counted, loss))
        if len(self._computed) >= self._at_once:
            self._at_once = min(2 * self._at_once, _AT_ONCE)
            yield from self._arrived()
            self._begin()

    def rest(self) -> Iterator[tuple[CountedStep, float]]:
        """All others, when the accelerator has computed them."""
        yield from self._arrived()
        if self._computed:
            self._begin()
            yield from self._arrived()

    def _begin(self) -> None:
        """Bring the losses so far to the host, beside the next steps."""
        steps, losses = zip(*self._computed, strict=True)
        there = torch.stack(losses)
        is_cuda = there.device.type == "cuda"
        here = torch.empty(there.shape, dtype=there.dtype, pin_memory=is_cuda).copy_(there, non_blocking=True)
        copied = torch.cuda.Event() if is_cuda else None
        if copied:
            copied.record(torch.cuda.current_stream(there.device))
        self._coming, self._computed = (list(steps), here, copied), []

    def _arrived(self) -> Iterator[tuple[CountedStep, float]]:
        if self._coming:
            steps, here, copied = self._coming
            self._coming = None
            if copied:
                with self._activity.at("waiting for the accelerator"):
                    copied.synchronize()
            yield from zip(steps, here.tolist(), strict=True)


def _is_at_hand(loss: torch.Tensor) -> bool:
    """Whether it can be read without waiting for an accelerator."""
    return loss.device.type == "cpu"

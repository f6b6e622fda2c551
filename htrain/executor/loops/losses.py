"""The losses of steps, read from where they are computed: those of an accelerator some at a time, so that no step waits for it (cDLRM 5)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_AT_ONCE = 16  # losses that are read together


@dataclass(frozen=True)
class CountedStep:
    """What a step adds to its trainer's totals. `positives` are the labels' sum; `replica` and `step` say whose it was."""

    replica: int
    step: int
    examples: int
    positives: float


class Losses:
    """Steps whose losses have not been read, in order. For one thread."""

    def __init__(self) -> None:
        self._computed: list[tuple[CountedStep, torch.Tensor]] = []
        self._coming: tuple[list[CountedStep], torch.Tensor, Any] | None = None

    def add(self, counted: CountedStep, loss: torch.Tensor) -> Iterator[tuple[CountedStep, float]]:
        """A step has been run, or asked of an accelerator, with this scalar loss. The steps whose losses are known by now, with these."""
        if loss.device.type == "cpu":
            yield counted, float(loss)
            return
        self._computed.append((counted, loss))
        if len(self._computed) >= _AT_ONCE:
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
        here = torch.empty(there.shape, dtype=there.dtype, pin_memory=True).copy_(there, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(there.device))
        self._coming, self._computed = (list(steps), here, copied), []

    def _arrived(self) -> Iterator[tuple[CountedStep, float]]:
        if self._coming:
            steps, here, copied = self._coming
            self._coming = None
            copied.synchronize()
            yield from zip(steps, here.tolist(), strict=True)

"""When trainers average the rows of their look-ahead caches: every so many steps, or when a share of the caches has been updated (cDLRM 6.1: lambda).

All trainers come to the same answer, since all know what is asked by every step of a window before the window begins.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol


class Averaging(Protocol):
    """Asked after every step of a window. `wants_updates` says whether it has to know how many rows steps update."""

    wants_updates: bool

    def begin_window(self, updates: Sequence[float]) -> None:
        """The next window's steps update so many rows, each: the sum over all trainers."""

    def ended(self) -> bool:
        """A step has been run: whether rows are to be averaged now."""

    def averaged(self) -> None:
        """They were, for another reason."""


class EverySteps:
    """After every `steps` steps."""

    wants_updates = False

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._done = 0

    def begin_window(self, updates: Sequence[float]) -> None:
        """Steps are counted across windows."""

    def ended(self) -> bool:
        """Every so many times."""
        self._done += 1
        return self._done % self._steps == 0

    def averaged(self) -> None:
        """Steps are counted from the beginning, so that a checkpoint changes nothing."""


class ByUpdates:
    """When `rows` updates have been made since the last time, one for each row that a trainer's step has updated."""

    wants_updates = True

    def __init__(self, rows: float) -> None:
        self._rows = max(1.0, rows)
        self._updates = 0.0
        self._window: deque[float] = deque()

    def begin_window(self, updates: Sequence[float]) -> None:
        """Requires: the window before is over."""
        assert not self._window, "a window has begun before the one before it was over"
        self._window.extend(updates)

    def ended(self) -> bool:
        """Whether the updates of this step make them enough. One behind the last window, at the end of the data, has none."""
        self._updates += self._window.popleft() if self._window else 0
        if self._updates < self._rows:
            return False
        self._updates = 0.0
        return True

    def averaged(self) -> None:
        """Counting begins anew."""
        self._updates = 0.0


def averaging_of(average: int | str, slots: int) -> Averaging:
    """Of `average` as the spec has it: steps, or the share of all `slots` of the caches, such as 5%."""
    if isinstance(average, int):
        return EverySteps(average)
    return ByUpdates(share_of(average) * slots)


def share_of(text: str) -> float:
    """0.05 of 5%."""
    return float(text.removesuffix("%")) / 100

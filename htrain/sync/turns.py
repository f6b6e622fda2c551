"""Whose turn it is among the buckets of a step that all trainers reduce together; decided without threads or clocks (HET 3, 4.1).

A backward pass makes the values of buckets in whatever order, and those of the next step may come before a step is over. Collectives have no names: all
trainers must call them in one order, which is that of the net, bucket by bucket and step by step.

    Came(step, names)   -> Turn(step, bucket) for each bucket that is to be reduced now, in order
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """A bucket, by its number, that is to be reduced now."""

    step: int
    bucket: int


class Turns:
    """The turns of one trainer. `buckets` are the names of the values of each, of which there is at least one."""

    def __init__(self, buckets: Sequence[Sequence[str]]) -> None:
        self._buckets = [frozenset(names) for names in buckets]
        self._came: dict[int, set[str]] = {}
        self._bucket = 0
        self.ended = -1  # the last step all of whose buckets have had their turn

    def came(self, step: int, names: Sequence[str]) -> list[Turn]:
        """Values of a step are there. What comes a second time, of a step that is over, is nobody's turn."""
        if step <= self.ended:
            return []
        self._came.setdefault(step, set()).update(names)
        turns: list[Turn] = []
        while self._came:
            step = min(self._came)  # a flush of the caches is a step without a bucket
            if not self._buckets[self._bucket] <= self._came[step]:
                break
            turns.append(Turn(step, self._bucket))
            self._bucket += 1
            if self._bucket == len(self._buckets):
                del self._came[step]
                self._bucket, self.ended = 0, step
        return turns

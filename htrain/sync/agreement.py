"""What trainers in lockstep agree on before the first step and with every one: whether anybody has data for the next, and whether anybody was told to pause.

All see the same sums, so that all stop behind the same step; a trainer without data goes along with empty batches until then. A step of which nobody has an
example is not run: momentum, decay and counts of updates would move weights along it.
"""

from dataclasses import dataclass

BEFORE = -1  # the first step, in the place of a step's number


@dataclass(frozen=True)
class Word:
    """What one trainer says with a step: `has_data` is of the batch behind it."""

    has_data: bool
    wants_pause: bool

    def numbers(self) -> tuple[float, float]:
        """Both as 1 or 0, of which the sums over all trainers make a Verdict."""
        return float(self.has_data), float(self.wants_pause)


@dataclass(frozen=True)
class Verdict:
    """What all have said: no batch is opened after a step with either; the one that is open already, as it may be at a `pause`, is still run."""

    over: bool
    pause: bool

    @classmethod
    def of(cls, has_data: float, wants_pause: float) -> "Verdict":
        """From the sums of everybody's numbers."""
        return cls(has_data == 0, wants_pause > 0)

    @property
    def stops(self) -> bool:
        """Whether no further batch is opened."""
        return self.over or self.pause

"""Whether what a launcher and a role have said has come to the other; decided without a clock (docs/decisions/recovery.md).

A connection that is lost and made anew loses what was on its way, and neither end is told. So both number what they say: who hears 5 behind 3 knows that 4 is
lost. The last word of all is known by what a role's signs of life say: how much it has said, and how much it has heard.

    heard      a role's word has come          -> whether it is the next; one before it may be lost
    reported   its sign of life has come
    listened   time has passed
    lost                                       -> the roles of which something has been missing for too long
"""

from dataclasses import dataclass

from htrain.sync.liveness import MOST_SECONDS


class Numbers:
    """What one end has heard of what the other numbers 1, 2, 3 and so on, from the one behind `last` on: that is the number of the last word that has come."""

    def __init__(self, last: int = 0) -> None:
        self.last = last

    def admit(self, number: int) -> bool | None:
        """True for the next word, False for one that comes again, None where one before it is lost."""
        if number <= self.last:
            return False
        is_next = number == self.last + 1
        self.last = number
        return True if is_next else None


@dataclass
class _Missing:
    """A role had said so much, or was to hear so much, when its sign of life said that something was missing; the last one of these came at a time `at`."""

    said: int
    ordered: int
    at: float
    seconds: float = 0.0


class Exchanges:
    """The launcher's side: `ordered` counts the orders that all roles have been given."""

    def __init__(self) -> None:
        self.ordered = 0
        self._seconds = 0.0
        self._heard: dict[str, Numbers] = {}
        self._missing: dict[str, _Missing] = {}

    def heard(self, role: str, number: int) -> bool | None:
        """A role's word of this number has come: as `Numbers.admit` has it. Words without a number, 0, are all new."""
        return True if not number else self._heard.setdefault(role, Numbers()).admit(number)

    def reported(self, role: str, *, said: int, heard: int) -> None:
        """A sign of life: the role has said, and heard, so many words; what is on its way is not missing yet.

        A role that was stopped has not heard for as long: of the time between two signs of life, MOST_SECONDS count.
        """
        missing = self._missing.get(role)
        has_come = self._heard[role].last if role in self._heard else 0
        if missing and (has_come < missing.said or heard < missing.ordered):
            missing.seconds += min(self._seconds - missing.at, MOST_SECONDS)
            missing.at = self._seconds
            return
        self._missing.pop(role, None)
        if has_come < said or heard < self.ordered:
            self._missing[role] = _Missing(said, self.ordered, at=self._seconds)

    def begins_again(self, role: str) -> None:
        """The role is begun again, and counts its words from 1 on."""
        self._heard.pop(role, None)
        self._missing.pop(role, None)

    def listened(self, seconds: float) -> None:
        """Time has passed, in which all that had come was heard."""
        self._seconds += seconds

    def lost(self, limit_seconds: float) -> list[str]:
        """The roles of which something has been missing for longer than this."""
        return sorted(role for role, missing in self._missing.items() if missing.seconds > limit_seconds)

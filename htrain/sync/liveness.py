"""Who has fallen silent, as a launcher sees it; decided without a clock (docs/decisions/runs-and-resumes.md).

A role says about twice a second that it lives. What counts is the time for which the launcher has listened and heard nothing: while it was itself stopped,
or had no CPU, nobody could be heard. On a busy host a role may be late by seconds; until the first steps are done loops are compiled, and everything is late.

    Listened(seconds)   -> Silent(role) once for a role that may be slow, Lost(role) for one that is given up
    Heard(role)         -> nothing: the role lives
"""

from collections.abc import Iterable
from dataclasses import dataclass

MOST_SECONDS = 1.0  # of one Listened: a launcher that slept has not listened
_SLOW_SHARE = 0.5  # of the limit, after which a role is called slow


@dataclass(frozen=True)
class Silent:
    """A role has not been heard for a while, and may be slow."""

    role: str
    seconds: float


@dataclass(frozen=True)
class Lost:
    """A role has not been heard for longer than it may be silent."""

    role: str
    seconds: float


class Liveness:
    """The silence of every role. `limit_seconds` is how long one may be silent, `warm_up_seconds` while the run warms up.

    A word of a role, and time that passes, cost the same however many roles there are: they are looked at one by one only when one of them may be late.
    """

    def __init__(self, roles: Iterable[str], *, limit_seconds: float, warm_up_seconds: float) -> None:
        self._heard_at = dict.fromkeys(roles, 0.0)  # in seconds of listening
        self._listened = 0.0
        self._due = 0.0  # before which there is no news: to hear somebody never makes it sooner
        self._told: set[str] = set()
        self._limit_seconds = limit_seconds
        self._warm_up_seconds = max(limit_seconds, warm_up_seconds)
        self._warm = False

    def warm(self) -> None:
        """Every role has done its first step."""
        if not self._warm:
            self._warm, self._due = True, 0.0

    def heard(self, role: str) -> None:
        """The role has said that it lives: its silence begins anew. A role that is not watched is ignored."""
        if role in self._heard_at:
            self._heard_at[role] = self._listened
            self._told.discard(role)

    @property
    def _limit(self) -> float:
        return self._limit_seconds if self._warm else self._warm_up_seconds

    @property
    def seconds_left(self) -> float:
        """There is no news before one has listened for longer than this."""
        if self._due <= self._listened:
            limits = {True: self._limit, False: self._limit * _SLOW_SHARE}
            self._due = min(heard_at + limits[role in self._told] for role, heard_at in self._heard_at.items())
        return self._due - self._listened

    def listened(self, seconds: float) -> list[Silent | Lost]:
        """Time has passed, in which all that had come was heard. What that means, the longest silence first."""
        self._listened += min(seconds, MOST_SECONDS)
        if self._listened <= self._due:
            return []
        limit = self._limit
        news: list[Silent | Lost] = []
        for role, heard_at in sorted(self._heard_at.items(), key=lambda item: (item[1], item[0])):
            silence = self._listened - heard_at
            if silence > limit:
                news.append(Lost(role, silence))
            elif silence > limit * _SLOW_SHARE and role not in self._told:
                self._told.add(role)
                news.append(Silent(role, silence))
        return news

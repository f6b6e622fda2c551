"""Messages that a connection may lose when it breaks: numbered, kept until they are heard, said again, and taken once (docs/decisions/sessions.md).

    Sent       one sender's side: what it has said to one receiver      keep -> heard; broke -> due -> said_again
    Arrivals   a receiver's side, of all senders                        arrived -> what can be taken now

A sender knows when its connection breaks. What was not heard by then may be lost, or be on its way still: it is said again, once, by another connection, and
once more where that breaks. The receiver takes messages of one session in the order of their numbers; those behind a gap wait for it, those that come again
are dropped.

Decisions alone: who carries messages, and what time it is, is the caller's business. Not thread-safe.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

SETTLING_SECONDS = 0.05  # once a connection stands again: what was given to the one before is lost by then, or has come

M = TypeVar("M")


class Sent(Generic[M]):
    """What was said in one session, as far as nobody has said that it was heard. `last` is the number of the last message, the first has 1; `stands` whether
    the session's own connection does."""

    def __init__(self) -> None:
        self.last = 0
        self.num_bytes = 0  # of what is kept
        self.stands = False
        self._kept: deque[tuple[int, int, M]] = deque()
        self._heard_at = 0.0  # when something was, or when the first was said that is kept
        self._suspected = 0  # the last of those that may be lost
        self._said = 0  # the last of those that were said again by a connection that is not known to have broken
        self._most_said = 0  # the last of those that were said again at all
        self._was_in_vain = False  # the connection has broken, or has not taken a message
        self._due = math.inf

    def keep(self, message: M, num_bytes: int, now: float) -> None:
        """A message of so many bytes is about to be sent, under the next number."""
        if not self._kept:
            self._heard_at = now
        self.last += 1
        self.num_bytes += num_bytes
        self._kept.append((self.last, num_bytes, message))

    def untaken(self, now: float) -> None:
        """The connection has not taken the last message: it is to be said again as soon as the connection stands."""
        self._was_in_vain = True
        if self.stands:  # it was made, or has broken, at this moment
            self._suspect(now)

    def take_back(self) -> bool:
        """The connection has not taken the last message, and it is not to be sent any more: whether it will not come. One that was said again may."""
        if self._most_said >= self.last or not self._kept:
            return False
        self.num_bytes -= self._kept.pop()[1]
        self.last -= 1
        self._suspected = min(self._suspected, self.last)
        self._look_whether_due()
        return True

    def heard(self, number: int, now: float) -> None:
        """All up to this number have come."""
        while self._kept and self._kept[0][0] <= number:
            self.num_bytes -= self._kept.popleft()[1]
            self._heard_at = now
        self._look_whether_due()

    def broke(self, now: float) -> None:
        """The connection is lost: whatever was not heard may be."""
        self.stands, self._was_in_vain = False, True
        self._suspect(now)

    def stood(self, now: float) -> None:
        """The connection is made, or made again. What was sent in between went to the one that was lost."""
        self.stands = True
        if self._was_in_vain:
            self._suspect(now + SETTLING_SECONDS)

    def way_broke(self, now: float) -> None:
        """The connection by which messages are said again is lost, or made again: what was said by it may be lost."""
        self._said = 0
        self._due = min(self._due, now)
        self._look_whether_due()

    def _suspect(self, due: float) -> None:
        self._suspected, self._due = self.last, min(self._due, due)
        self._look_whether_due()

    def _look_whether_due(self) -> None:
        if not self._kept or max(self._kept[0][0], self._said + 1) > self._suspected:
            self._due = math.inf

    @property
    def next_due(self) -> float:
        """When something is to be said again; infinity where nothing is."""
        return self._due

    def due(self, now: float) -> Sequence[tuple[int, M]]:
        """What is to be said again now, in order, with its numbers."""
        if now < self._due:
            return ()
        return [(number, message) for number, _, message in self._kept if self._said < number <= self._suspected]

    def said_again(self, number: int) -> None:
        """All that was due up to this number was given to a connection: it is due again if that breaks, and not before."""
        self._said, self._most_said = number, max(number, self._most_said)
        self._look_whether_due()

    def unheard_seconds(self, now: float) -> float:
        """For how long nothing has been heard of what is kept; 0 where all was."""
        return now - self._heard_at if self._kept else 0.0


class Arrivals(Generic[M]):
    """What has come in sessions of any number of senders. `heard` is the number up to which all of a session has come."""

    def __init__(self) -> None:
        self.heard: dict[bytes, int] = {}
        self._waiting: dict[bytes, dict[int, M]] = {}

    def arrived(self, session: bytes, number: int, message: M) -> Sequence[M]:
        """A message has come: those that can be taken now, in order."""
        last = self.heard.get(session, 0)
        if number <= last:
            return ()
        if number > last + 1:
            self._waiting.setdefault(session, {})[number] = message
            return ()
        taken = [message]
        waiting = self._waiting.get(session)
        while waiting and (following := waiting.pop(number + 1, None)) is not None:
            number += 1
            taken.append(following)
        if waiting is not None and not waiting:
            del self._waiting[session]
        self.heard[session] = number
        return taken

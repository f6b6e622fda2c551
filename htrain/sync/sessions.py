"""Messages that a connection may lose when it breaks: numbered, kept until they are heard, said again, and taken once (docs/decisions/sessions.md).

    Sent       one sender's side: what it has said to one receiver      keep -> heard; broke -> due -> said_again
    Arrivals   a receiver's side, of all senders                        arrived -> what can be taken now

A sender knows when its connection breaks. What was not heard by then may be lost, or be on its way still: it is said again, by another connection, until it is
heard. The receiver takes messages of one session in the order of their numbers; those behind a gap wait for it, those that come again are dropped.

Decisions alone: who carries messages, and what time it is, is the caller's business. Not thread-safe.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

SETTLING_SECONDS = 0.05  # once a connection stands again: what was given to the one before is lost by then, or has come
FIRST_PAUSE_SECONDS = 0.2  # before what was said again is said once more
MOST_PAUSE_SECONDS = 5.0
_BYTES_PER_SECOND = 50e6  # of a link that is slow: what is said again is not said once more while it may be under way

M = TypeVar("M")


class Sent(Generic[M]):
    """What was said in one session, as far as nobody has said that it was heard. `last` is the number of the last message, the first has 1."""

    def __init__(self) -> None:
        self.last = 0
        self.num_bytes = 0  # of what is kept
        self._kept: deque[tuple[int, float, int, M]] = deque()
        self._suspected = 0  # the last of those that may be lost
        self._has_broken = False
        self._due = math.inf
        self._pause = FIRST_PAUSE_SECONDS

    def keep(self, message: M, num_bytes: int, now: float) -> None:
        """A message of so many bytes is about to be sent, under the next number."""
        self.last += 1
        self.num_bytes += num_bytes
        self._kept.append((self.last, now, num_bytes, message))

    def heard(self, number: int) -> None:
        """All up to this number have come."""
        while self._kept and self._kept[0][0] <= number:
            self.num_bytes -= self._kept.popleft()[2]
        if not self._kept or self._kept[0][0] > self._suspected:
            self._due = math.inf

    def broke(self, now: float) -> None:
        """The connection is lost: whatever was not heard may be."""
        self._has_broken = True
        self._suspect(now)

    def stands(self, now: float) -> None:
        """The connection is made, or made again. What was sent in between went to the one that was lost."""
        if self._has_broken:
            self._suspect(now + SETTLING_SECONDS)

    def _suspect(self, due: float) -> None:
        self._suspected, self._pause = self.last, FIRST_PAUSE_SECONDS
        if self._kept:
            self._due = min(self._due, due)

    @property
    def next_due(self) -> float:
        """When something is to be said again; infinity where nothing is."""
        return self._due

    def due(self, now: float) -> Sequence[M]:
        """What is to be said again now, in order."""
        return (
            [message for number, _, _, message in self._kept if number <= self._suspected] if now >= self._due else ()
        )

    def said_again(self, now: float) -> None:
        """All that was due was sent. It is due again after a pause, which grows, until it is heard."""
        self._due = now + max(self._pause, self.num_bytes / _BYTES_PER_SECOND)
        self._pause = min(2 * self._pause, MOST_PAUSE_SECONDS)

    def postpone(self, due: float) -> None:
        """What is due cannot be sent yet."""
        self._due = due

    def unheard_seconds(self, now: float) -> float:
        """For how long the oldest message has not been heard; 0 where all were."""
        return now - self._kept[0][1] if self._kept else 0.0


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

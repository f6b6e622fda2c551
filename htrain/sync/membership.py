"""Which workers from outside a plan may work with the rows of one server, and each of their requests once (docs/reference/client-protocol.md).

A worker joins under a name, as one incarnation of it, and asks in order: request n + 1 when n has been answered. A request that comes again is not carried out
again: it is answered with what it was answered before. Who is not heard for as long as a lease lasts has left. Behind a barrier (a staleness of 0) the request
that brings a step's updates is answered when every member has come with its own: a round.

    joined     a worker is a member from now on        -> Drop for its earlier incarnation, Answer for those who waited for that
    asked      a request has come                      -> Push, Answer for whom it is their turn, Repeat, Refuse
    left       a worker goes by itself                 -> Answer for those who waited for it alone
    expire     time has passed                         -> Vanished for each that was not heard, Answer as above

Decisions alone: who carries messages, and what time it is, is the caller's business. Not thread-safe.
"""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class Member:
    """A worker that has joined.

    - `answered` is the number of its last request that was answered, 0 before the first.
    - `waiting` is the number of a request that has come and was not answered, else 0; its updates have been pushed.
    - Others wait for it, behind a barrier, once it has asked for the first time: `steps`. Who only looks at rows steps never.
    - `unsent` rows have updates at the worker which it has not pushed, as it last said.
    """

    worker: str
    session: int
    place: str
    heard: float
    answered: int = 0
    waiting: int = 0
    unsent: int = 0

    @property
    def steps(self) -> bool:
        """Whether it has asked for anything."""
        return self.answered > 0 or self.waiting > 0


class Push(NamedTuple):
    """Instruction: take what this request pushes, and keep it for its answer."""

    member: Member


class Answer(NamedTuple):
    """Instruction: look up what the member's waiting request asks for, and answer it; at the end of a round behind the updates of all."""

    member: Member
    ends_round: bool


class Repeat(NamedTuple):
    """Instruction: send the last answer again."""

    member: Member


class Refuse(NamedTuple):
    """Instruction: tell whoever has asked that this cannot be, and why."""

    reason: str


class Drop(NamedTuple):
    """Instruction: forget what is kept for a member that is none any more."""

    member: Member


class Vanished(NamedTuple):
    """Instruction: tell that a member was not heard for a lease; what it had not sent is lost."""

    member: Member


Instruction = Push | Answer | Repeat | Refuse | Drop | Vanished
UNKNOWN = "it is no member here: its lease has run out, another process has joined under its name, or the server was started anew"


class Membership:
    """The members of one server, by session; a session is one incarnation of a worker."""

    def __init__(self, *, lease_seconds: float, barrier: bool) -> None:
        self.lease_seconds = lease_seconds
        self.members: dict[int, Member] = {}
        self._barrier = barrier

    def joined(self, worker: str, session: int, place: str, now: float) -> list[Instruction]:
        """A worker has joined. An earlier incarnation of it is a member no more; to join again as the same changes nothing."""
        if session in self.members:
            self.members[session].heard = now
            return []
        earlier = [member for member in self.members.values() if member.worker == worker]
        for member in earlier:
            del self.members[member.session]
        self.members[session] = Member(worker, session, place, now)
        return [*(Drop(member) for member in earlier), *self._due()]

    def asked(self, session: int, number: int, now: float, *, in_round: bool) -> list[Instruction]:
        """A member's request of a number has come; `in_round` where it brings what the member has written since its last, which others may wait for."""
        member = self.members.get(session)
        if member is None:
            return [Refuse(UNKNOWN)]
        member.heard = now
        if number and number == member.waiting:
            return []
        if number and number == member.answered:
            return [Repeat(member)]
        if number != member.answered + 1:
            return [Refuse(f"request {number} is out of turn: {member.answered} were answered")]
        member.waiting = number
        if self._barrier and in_round:
            return [Push(member), *self._due()]
        member.answered, member.waiting = number, 0
        return [Push(member), Answer(member, ends_round=not self._barrier)]

    def heard(self, session: int, unsent: int, now: float) -> list[Instruction]:
        """A member lives, and has updates of so many rows which it has not pushed."""
        member = self.members.get(session)
        if member is None:
            return [Refuse(UNKNOWN)]
        member.heard, member.unsent = now, unsent
        return []

    def left(self, session: int) -> list[Instruction]:
        """A member goes; what it waited for is not answered."""
        member = self.members.pop(session, None)
        return [Drop(member), *self._due()] if member else []

    def expire(self, now: float) -> list[Instruction]:
        """Let those go who were not heard for as long as a lease lasts."""
        gone = [member for member in self.members.values() if now - member.heard > self.lease_seconds]
        for member in gone:
            del self.members[member.session]
        told: list[Instruction] = [Vanished(member) for member in gone]
        return [*told, *(Drop(member) for member in gone), *self._due()] if gone else []

    @property
    def next_expiry(self) -> float:
        """When somebody's lease runs out if nobody is heard; infinity where nobody is a member."""
        return min((member.heard + self.lease_seconds for member in self.members.values()), default=float("inf"))

    @property
    def missing(self) -> list[str]:
        """The workers that others wait for, behind a barrier."""
        waits = self._barrier and any(member.waiting for member in self.members.values())
        return sorted(
            member.worker for member in self.members.values() if waits and member.steps and not member.waiting
        )

    def _due(self) -> list[Instruction]:
        """Whose turn it is to be answered."""
        waiting = [member for member in self.members.values() if member.waiting]
        if any(member.steps and not member.waiting for member in self.members.values()):
            return []
        for member in waiting:
            member.answered, member.waiting = member.waiting, 0
        return [Answer(member, ends_round=True) for member in waiting]

"""Background rounds between a holder of dense weights and their centres on dense PSs: what happens when (HT 3.1.2, ShadowSync).

    group PS    snapshot its weights                 when SyncRounds says StartRound; training goes on
    dense PS    absorb the snapshot, and answer      if AppliedRounds admits the round
    group PS    take the answer                      when SyncRounds says ApplyRound

Where a round is one of all groups, the dense PS keeps its answers back until all have come to it. The first to come opens the round, the others are invited
and come at once, whether their own is due or not: one that trains slowly, is at the end of its data, or has been paused keeps nobody waiting.

    dense PS    collect the snapshot                 JointRounds says whom to invite, and when all have come
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from htrain.errors import ClusterError


@dataclass(frozen=True)
class StartRound:
    """Instruction: snapshot the replica and send it to the dense PS as this round."""

    round: int


@dataclass(frozen=True)
class ApplyRound:
    """Instruction: take from the replica the diff that the reply of this round carries."""

    round: int


@dataclass(frozen=True)
class Quiet:
    """Instruction to whoever paused: no round is in flight, none starts before `resume`; a checkpoint is whole."""


Instruction = StartRound | ApplyRound | Quiet


class SyncRounds:
    """One background sync net: which round to start and when, at most one in flight, each reply applied once.

    One machine stands for one holder of weights. It never delays a step: a sync that falls due while a round is in flight starts when that
    round's reply comes, and so does one that it is invited to. An invitation holds while it is paused, too: whoever opened the round was not.

    `next_round` and `last_synced_step` are all that a checkpoint must keep, and hold exactly that while it is quiet;
    `in_flight` is the round whose reply is awaited, or None.
    """

    def __init__(self, period_steps: int, *, next_round: int = 0, last_synced_step: int = 0) -> None:
        if period_steps < 1:
            raise ClusterError(f"a period of {period_steps} steps: want at least 1 step between two rounds")
        self.period_steps = period_steps
        self.next_round = next_round
        self.last_synced_step = last_synced_step
        self.in_flight: int | None = None
        self._current_step = self._seen_step = last_synced_step
        self._invited = next_round - 1
        self._paused = False

    def go_on_from(self, next_round: int) -> None:
        """Those before this one have been another process's. Requires: none has begun here, and nobody has invited to one."""
        self.next_round, self._invited = next_round, next_round - 1

    def steps_done(self, n: int) -> list[Instruction]:
        """The group has done `n` steps in all since the run began. Late news of fewer steps change nothing."""
        self._seen_step = max(self._seen_step, n)
        self._current_step = self._current_step if self._paused else self._seen_step
        return self._next()

    def invited(self, round: int) -> list[Instruction]:
        """Others have opened `round`, which ends when this holder has come to it. A late invitation changes nothing."""
        self._invited = max(self._invited, round)
        return self._next()

    def reply(self, round: int) -> list[Instruction]:
        """The dense PS has answered `round`. A second or foreign reply is ignored."""
        if round != self.in_flight:
            return []
        self.in_flight = None
        follow_up = self._next()
        return [ApplyRound(round), *(follow_up or ([Quiet()] if self._paused else []))]

    def pause(self) -> list[Instruction]:
        """Let no more rounds fall due. Quiet comes now, or after the reply of the round in flight and of the one that was due behind it; again after each
        that it is invited to."""
        self._paused = True
        return [Quiet()] if self.in_flight is None else []

    def resume(self) -> list[Instruction]:
        """Go on; a sync that fell due meanwhile starts now."""
        self._paused = False
        self._current_step = self._seen_step
        return self._next()

    def _next(self) -> list[Instruction]:
        is_due = self._current_step - self.last_synced_step >= self.period_steps
        if self.in_flight is not None or not (is_due or self._invited >= self.next_round):
            return []
        self.in_flight = self.next_round
        self.next_round += 1
        self.last_synced_step = self._current_step
        return [StartRound(self.in_flight)]


Source = TypeVar("Source", bound=Hashable)


class AppliedRounds(Generic[Source]):
    """Which rounds a dense PS has absorbed, so that a message that comes twice is absorbed once.

    A source, the sync net of one group PS, has one round in flight and counts up, so the last absorbed round of each
    says it all. `last_round` is what a checkpoint keeps and what the machine starts from.
    """

    def __init__(self, last_round: Mapping[Source, int]) -> None:
        self.last_round = dict(last_round)

    def admit(self, source: Source, round: int) -> bool:
        """True once per round of a source: absorb it. False: a duplicate, or older than one absorbed; drop it."""
        if round <= self.last_round.get(source, -1):
            return False
        self.last_round[source] = round
        return True


@dataclass(frozen=True)
class Invite(Generic[Source]):
    """Instruction: tell these that others have come to the round."""

    sources: frozenset[Source]
    round: int


@dataclass(frozen=True)
class AnswerAll(Generic[Source]):
    """Instruction: all have come to the round, and each may have its answer."""

    sources: frozenset[Source]
    round: int


class JointRounds(Generic[Source]):
    """Rounds that end when all of `members` have come to them, as the dense PS sees them. Requires: each comes to a round once (AppliedRounds)."""

    def __init__(self, members: Collection[Source]) -> None:
        self._members = frozenset(members)
        self._come: dict[int, frozenset[Source]] = {}

    def begun(self, source: Source, round: int) -> list[Invite[Source]]:
        """A member's snapshot is here, or on its way. The first one's opens the round."""
        if round in self._come:
            return []
        self._come[round] = frozenset()
        others = self._members - {source}
        return [Invite(others, round)] if others else []

    def comes_back(self, source: Source) -> list[Invite[Source]]:
        """A member that was away may have missed invitations. Requires: it had ended each round that it had come to."""
        return [Invite(frozenset({source}), round) for round, come in self._come.items() if source not in come]

    def collected(self, source: Source, round: int) -> list[AnswerAll[Source]]:
        """A member's snapshot has been collected. Requires: its round has begun."""
        self._come[round] |= {source}
        if self._come[round] != self._members:
            return []
        del self._come[round]
        return [AnswerAll(self._members, round)]

"""Background rounds between a holder of dense weights and their centres on dense PSs: what happens when (HT 3.1.2, ShadowSync).

    group PS    snapshot its weights                 when SyncRounds says StartRound; training goes on
    dense PS    absorb the snapshot, and answer      if AppliedRounds admits the round
    group PS    take the answer                      when SyncRounds says ApplyRound
"""

from collections.abc import Hashable, Mapping
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

    One machine stands for one pair of group PS and dense PS. It never delays a step: a sync that falls due while a
    round is in flight starts when that round's reply comes.

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
        self._current_step = last_synced_step
        self._paused = False

    def steps_done(self, n: int) -> list[Instruction]:
        """The group has done `n` steps in all since the run began. Late news of fewer steps change nothing."""
        self._current_step = max(self._current_step, n)
        return self._next()

    def reply(self, round: int) -> list[Instruction]:
        """The dense PS has answered `round`. A second or foreign reply is ignored."""
        if round != self.in_flight:
            return []
        self.in_flight = None
        follow_up: list[Instruction] = [Quiet()] if self._paused else self._next()
        return [ApplyRound(round), *follow_up]

    def pause(self) -> list[Instruction]:
        """Start no more rounds. Quiet comes now, or after the reply of the round in flight."""
        self._paused = True
        return [Quiet()] if self.in_flight is None else []

    def resume(self) -> list[Instruction]:
        """Go on; a sync that fell due meanwhile starts now."""
        self._paused = False
        return self._next()

    def _next(self) -> list[Instruction]:
        if self._paused or self.in_flight is not None:
            return []
        if self._current_step - self.last_synced_step < self.period_steps:
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

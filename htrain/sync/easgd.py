"""Elastic averaging SGD in the background (EASGD of Zhang et al., run as ShadowSync does; HT 2.2, 3.1.1).

Each group keeps a replica x of the dense parameters, the dense PSs keep the centre c. A round of a sync net is

    group PS    snapshot x                           when SyncRounds says StartRound; training goes on
    dense PS    diff = alpha * (x - c); c += diff    if AppliedRounds admits the round
    group PS    x -= diff                            when SyncRounds says ApplyRound

The group subtracts from what x is *by then*, so the updates that its trainers made in between stay, and every round
conserves the sum of all replicas and the centre, up to rounding: what the centre gains, the group gives. The arithmetic is that
of the ops `ElasticDifference` and `Relax`; here is what happens when.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from htrain.errors import ClusterError
from htrain.spec.dense_sync import Easgd

RECOMMENDED_BETA = 0.9
LARGEST_DEFAULT_ALPHA = 0.5


def default_alpha(num_groups: int) -> float:
    """The elastic rate for `num_groups` groups where the user names none: 0.9 / num_groups, at most 0.5.

    HT names no rate. EASGD's authors set alpha = beta / p for p workers and recommend beta = 0.9: a sync of all workers
    at once moves the centre 0.9 of the way to their mean. A sync multiplies the distance of a group and the centre by
    1 - 2 alpha; above 0.5, which only a single group would get, they would jump past each other, hence the cap.
    Raises ClusterError if there is no group.
    """
    if num_groups < 1:
        raise ClusterError(f"{num_groups} groups: EASGD needs at least 1; set groups to 1 or more")
    return min(LARGEST_DEFAULT_ALPHA, RECOMMENDED_BETA / num_groups)


def alpha_of(easgd: Easgd, num_groups: int) -> float:
    """The elastic rate of `num_groups` groups: the user's own, or the default one."""
    return default_alpha(num_groups) if easgd.alpha == "auto" else easgd.alpha


@dataclass(frozen=True)
class SyncPolicy:
    """How strongly and how often a group is drawn to the centre: the elastic rate, and the group's steps between syncs.

    Raises ClusterError unless 0 < alpha < 1 and period_steps >= 1.
    """

    alpha: float
    period_steps: int

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ClusterError(f"EASGD alpha {self.alpha}: want 0 < alpha < 1, such as 0.9 / groups")
        if self.period_steps < 1:
            raise ClusterError(f"EASGD period of {self.period_steps} steps: want at least 1 step between syncs")

    def due(self, last_synced_step: int, current_step: int) -> bool:
        """Whether a period has passed since the step at which the last sync started."""
        return current_step - last_synced_step >= self.period_steps


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

    def __init__(self, policy: SyncPolicy, *, next_round: int = 0, last_synced_step: int = 0) -> None:
        self.policy = policy
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
        if not self.policy.due(self.last_synced_step, self._current_step):
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

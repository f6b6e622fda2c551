"""A holder of dense weights that exchanges them with their centres in the background, as a machine (HT 2.2, 3.1.2, ShadowSync).

    steps_done, pause, resume        from any of the role's threads         -> Play, Hold, Quiet
    rounds                           the rounds themselves, one after another: a generator like that of a net replica

A round takes a snapshot, sends it, and takes the answers; steps go on meanwhile. At a fixed rate they wait with their writes until it is over.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from htrain.executor.engine.context import SYNC_REPLICA, Context
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.program import Stage
from htrain.executor.roles.endpoints import centre_endpoint, holder_number, sync_endpoint
from htrain.net.names import Role
from htrain.sync.rounds import Instruction as Said
from htrain.sync.rounds import Quiet, StartRound, SyncRounds


@dataclass(frozen=True)
class RunStage:
    """Instruction: run a stage of a round's pass; answered by the stages that can start then."""

    state: Pass
    stage: Stage


@dataclass(frozen=True)
class Await:
    """Instruction: wait for a message, or until a round may be due; answered by the message's context and values, or by None.

    Of a round under way, `state` cannot go on without one.
    """

    state: Pass | None


@dataclass(frozen=True)
class Hold:
    """Instruction: let no step write weights, and wait until none does."""

    round: int


@dataclass(frozen=True)
class Release:
    """Instruction: let steps write again."""


@dataclass(frozen=True)
class RoundEnds:
    """Instruction to whoever counts them: so many rounds have ended."""

    rounds: int


Instruction = RunStage | Await | Hold | Release | RoundEnds
Machine = Generator[Instruction, Any, None]


class Recorded(Protocol):
    """Where it is written down whether a round is under way (htrain.executor.host.parameter_memory)."""

    def begins_round(self, number: int) -> None:
        """This one is, from now on."""

    def ends_round(self) -> None:
        """It has ended."""


class SyncMachine:
    """`rounds` says when; `engine` runs the sync net of the role `holder`. With `holds_writes`, the weights belong to a round while it lasts. It is
    written down where weights are `kept` whether one is under way.

    `quiet` says that no round is under way while the holder is paused. Not thread-safe.
    """

    def __init__(
        self, holder: str, engine: Engine, rounds: SyncRounds, *, holds_writes: bool, kept: Recorded | None = None
    ) -> None:
        self.endpoint = sync_endpoint(holder)
        self.quiet = False
        self.rounds_done = 0
        self.engine = engine
        self._holder = holder
        group, _ = Role.parse(holder).place
        self._place = group, holder_number(str(Role.parse(holder).device))
        self._rounds = rounds
        self._holds_writes = holds_writes
        self._kept = kept
        self._due: list[int] = []

    @property
    def is_due(self) -> bool:
        """Whether a round is to start now."""
        return bool(self._due)

    @property
    def waits_for_writes(self) -> bool:
        """Whether steps have to wait with their writes from now on: a round that has the weights to itself is due."""
        return self._holds_writes and self.is_due

    def steps_done(self, n: int) -> None:
        """The holder has done `n` steps in all."""
        self._take(self._rounds.steps_done(n))

    def pause(self) -> None:
        """Start no more rounds; `quiet` while none is under way."""
        self._take(self._rounds.pause())

    def resume(self) -> None:
        """Start rounds again; one that fell due meanwhile is due now."""
        self.quiet = False
        self._take(self._rounds.resume())

    def rounds(self) -> Machine:
        """Round after round; it never ends."""
        while True:
            if self._due:
                yield from self._round(self._due.pop(0))
            else:
                self._hear((yield Await(None)))

    def destination(self, peer: str) -> str:
        """The endpoint that answers this holder at a host of centres."""
        return centre_endpoint(peer, self._holder)

    def _round(self, number: int) -> Machine:
        if self._kept:
            self._kept.begins_round(number)
        state = self.engine.begin(Context(*self._place, SYNC_REPLICA, number), self.endpoint, 0, {})
        if self._holds_writes:
            yield Hold(number)
        ready = self.engine.start(state)
        while not self.engine.done(state):
            if ready:
                ready += yield RunStage(state, ready.pop(0))
            else:
                ready += self._hear((yield Await(state)), state)
        if self._holds_writes:
            yield Release()
        if self._kept:
            self._kept.ends_round()
        self._take(self._rounds.reply(number))
        self.rounds_done += 1
        yield RoundEnds(self.rounds_done)

    def _hear(
        self, message: tuple[Context, Mapping[str, torch.Tensor]] | None, state: Pass | None = None
    ) -> Sequence[Stage]:
        """Values of the round under way, of which each is taken once; or an invitation to one, a late answer, a call to look what is due."""
        if message is None:
            return ()
        context, values = message
        if state and context == state.context and values:
            return self.engine.receive(state, values)
        self._take(self._rounds.invited(context.step))
        return ()

    def _take(self, said: Sequence[Said]) -> None:
        for each in said:
            if isinstance(each, StartRound):
                self.quiet = False
                self._due.append(each.round)
            elif isinstance(each, Quiet):
                self.quiet = True

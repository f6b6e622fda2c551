"""Bugs that are planted, each by a method of the product that is replaced: who searches histories must find them."""

from dataclasses import dataclass
from typing import Any

import msgspec

from fault_histories.kept import Kept
from fault_histories.roles import Machines
from fault_histories.wires import Endpoint, Wires
from htrain.executor.engine.context import Context
from htrain.executor.roles.alone import gone_on_alone
from htrain.executor.roles.handed import GoesOn, Handed
from htrain.executor.roles.obeying import Line, Obedient, Obeying
from htrain.executor.roles.resting import Resting
from htrain.executor.roles.server import Instruction, ServerMachine
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Frame, Order


@dataclass(frozen=True)
class Planted:
    """What decides in a history."""

    machines: Machines = Machines()  # noqa: RUF009  frozen
    wires: type[Wires] = Wires


class _Forgetful(ServerMachine):
    """It does not know which steps it has served."""

    def _is_repeated(self, context: Context, source: str) -> bool:
        return False


class _Credulous(Wires):
    """Whatever token a message begins with, it is taken."""

    def behind(self, endpoint: Endpoint, frame: Frame) -> memoryview | None:
        return memoryview(frame)[len(endpoint.token) :]


class _AlwaysQuiet:
    """A role that says that it is at rest as soon as it is told to be."""

    quiet = True

    def __init__(self, role: Obedient) -> None:
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)


class _Hasty(Obeying):
    """It answers, and saves, before its steps under way have ended."""

    def __init__(self, role: Obedient, line: Line, book: Any, ordered: int = 0) -> None:
        super().__init__(_AlwaysQuiet(role), line, book, ordered)


class _Drowsy(Resting):
    """A replica that was told to go on, and has not seen it, counts as idle: a trainer's first code did so."""

    def told(self, *, paused: bool, owes: bool = False) -> None:
        idle = self.num_idle
        super().told(paused=paused, owes=owes)
        self.num_idle = idle

    def is_over(self, pause: int) -> bool:
        is_over = super().is_over(pause)
        self.num_idle -= is_over
        return is_over


class _Faithful(ServerMachine):
    """It waits for the steps of a trainer that is gone."""

    def forget(self, group: int, trainer: int, incarnation: int) -> list[Instruction]:
        return []


class _Further(Handed):
    """A trainer that is begun again goes on where a resumed run would: behind what was on its way."""

    def word(self, totals: Any) -> bytes:
        return msgspec.msgpack.encode(GoesOn(self.position, totals, [], self.num_open))


class _Eager(Obeying):
    """A trainer that was begun again begins when it is found, though others may not know yet where it is: the first code did so."""

    def told(self, order: Order) -> bool:
        is_own = order.role == self._role.name
        if is_own and order.verb == "found":
            self._role.start(self._book)
        if is_own and order.verb == "start":
            order = Order("found", number=order.number, role=order.role)
        return super().told(order)


class _Unaware(Obeying):
    """A sparse PS that is begun again does not hear which steps of trainers are gone: the first code did so."""

    def told(self, order: Order) -> bool:
        if order.verb == "found":
            order = Order("found", number=order.number, role=order.role, book=order.book)
        return super().told(order)


class _Restarted(Kept):
    """A group PS that goes on counts its rounds from 0."""

    def begins_round(self, number: int) -> None:
        super().begins_round(number)
        self.next_round = 0


class _Careless(Kept):
    """A group PS that dies in the middle of a round goes on, whatever its centre knows of it."""

    @property
    def is_whole(self) -> bool:
        return self.is_filled


class _Emptied(Kept):
    """A group PS that goes on has the weights of the last checkpoint."""

    @property
    def is_whole(self) -> bool:
        self.is_filled = False
        return not self.in_round


def _goes_on_anew(settings: RunSettings, role: str, incarnation: int, word: bytes, checkpoint: str) -> RunSettings:
    """A sparse PS that is begun again has its first rows."""
    return gone_on_alone(settings, role, incarnation, word, "")


NOTHING = Planted()
BUGS = {
    "a lost dedupe": Planted(Machines(server=_Forgetful)),
    "a stale incarnation is taken": Planted(wires=_Credulous),
    "a cut that is no cut": Planted(Machines(obeying=_Hasty)),
    "a rest that is over counts": Planted(Machines(resting=_Drowsy)),
    "a server that does not forget": Planted(Machines(server=_Faithful)),
    "a journal of positions": Planted(Machines(handed=_Further)),
    "a trainer that does not wait to be known": Planted(Machines(obeying=_Eager)),
    "a PS that does not know whose steps are gone": Planted(Machines(obeying=_Unaware)),
    "a group PS that goes on with other weights": Planted(Machines(kept=_Emptied)),
    "a group PS that counts its rounds anew": Planted(Machines(kept=_Restarted)),
    "a group PS that goes on in the middle of a round": Planted(Machines(kept=_Careless)),
    "a PS that goes back to no checkpoint": Planted(Machines(goes_on=_goes_on_anew)),
}

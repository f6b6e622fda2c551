"""Bugs that are planted, each by a method of the product that is replaced: who searches histories must find them."""

from dataclasses import dataclass
from typing import Any

from fault_histories.roles import Machines
from fault_histories.wires import Endpoint, Wires
from htrain.executor.engine.context import Context
from htrain.executor.roles.obeying import Line, Obedient, Obeying
from htrain.executor.roles.resting import Resting
from htrain.executor.roles.server import ServerMachine
from htrain.executor.transport.wire import Frame


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

    def __init__(self, role: Obedient, line: Line, book: Any) -> None:
        super().__init__(_AlwaysQuiet(role), line, book)


class _Drowsy(Resting):
    """A replica that was told to go on, and has not seen it, counts as idle: a trainer's first code did so."""

    def told(self, *, paused: bool) -> None:
        idle = self.num_idle
        super().told(paused=paused)
        self.num_idle = idle

    def is_over(self, pause: int) -> bool:
        is_over = super().is_over(pause)
        self.num_idle -= is_over
        return is_over


NOTHING = Planted()
BUGS = {
    "a lost dedupe": Planted(Machines(server=_Forgetful)),
    "a stale incarnation is taken": Planted(wires=_Credulous),
    "a cut that is no cut": Planted(Machines(obeying=_Hasty)),
    "a rest that is over counts": Planted(Machines(resting=_Drowsy)),
}

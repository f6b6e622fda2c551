"""A launcher's machine by hand: all roles train, and what it says to one event after another."""

from pathlib import Path
from typing import Any

import pytest
from small_dlrm import small_plan

from htrain.errors import PeerLost
from htrain.executor.roles.alone import Alone
from htrain.executor.roles.coordination import Await, Came, Instruction, Listened, Machine, RunResult, Tell, TellAll
from htrain.executor.roles.coordinator import CoordinatorMachine
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Beat, Failed, Hello, Message, Order, Ready, State

PLAN = small_plan(groups=1, trainers=2, group_ps=1, sparse_ps=1)
ROLES = PLAN.cluster.roles
SETTINGS = RunSettings(Path("plan"), "data", Path("runs/a"))
METRICS = {"steps": 0, "examples": 0, "cpu_seconds": 0.0, "repeated": 2}


class Driven:
    """What it says to each event until it waits for the next, but for news. It is always `now`."""

    now = 1.0

    def __init__(self, settings: RunSettings) -> None:
        alone = Alone(3)
        self.machine: Machine[RunResult] = CoordinatorMachine(PLAN, settings, tells_of_ends=True, alone=alone).run(0.0)
        next(self.machine)

    def fails(self, event: Any) -> str:
        """With which error, and an order to abort."""
        said = self.machine.send((1.0, _event(event)))
        while isinstance(said, Await):
            said = self.machine.send((9.0, Listened()))
        assert said == TellAll(Order("abort"))
        with pytest.raises(PeerLost) as error:
            self.machine.send((9.0, None))
        return str(error.value)

    def hear(self, event: Any, answer: Any = None) -> list[Instruction]:
        """To an event, or to a message that comes; whatever it asks for is answered so."""
        said, each = [], self.machine.send((self.now, _event(event)))
        while not isinstance(each, Await):
            said.append(each)
            each = self.machine.send((self.now, answer))
        return [each for each in said if not isinstance(each, Tell)]


def _event(event: Any) -> Any:
    return Came(event) if isinstance(event, Beat | Failed | Hello | Ready | State) else event


def hello(role: str, incarnation: int = 0) -> Message:
    """Of a role that is up."""
    return Hello(role, {f"{role}/control": f"tcp://{incarnation}"}, "here", 7, incarnation)


def training(settings: RunSettings) -> Driven:
    """All train."""
    made = Driven(settings)
    for role in ROLES:
        made.hear(hello(role))
    said = [each for role in ROLES for each in made.hear(Ready(role, METRICS))]
    assert said == [TellAll(Order("start", number=1))]
    return made

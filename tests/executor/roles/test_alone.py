"""What the launcher does about a trainer that dies while others go on: whatever comes late, and whoever hears of it late."""

from pathlib import Path

import pytest
from small_dlrm import small_plan

from htrain.errors import PeerLost
from htrain.executor.roles.alone import Alone, can_be_alone
from htrain.executor.roles.coordination import (  # fmt: skip
    Await,
    BeginAgain,
    Came,
    Ended,
    Event,
    Instruction,
    Machine,
    Reach,
    RunResult,
    Tell,
    TellAll,
)
from htrain.executor.roles.coordinator import CoordinatorMachine
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Beat, Failed, Hello, Message, Order, Ready, State

PLAN = small_plan(groups=1, trainers=2, group_ps=1, sparse_ps=1)
ROLES = PLAN.cluster.roles
SETTINGS = RunSettings(Path("plan"), "data", Path("runs/a"))
TRAINER, OTHER = can_be_alone(PLAN, SETTINGS)
KILLED = Ended(f"{TRAINER} (process 7) was killed by signal 9", is_replaceable=True)
METRICS = {"steps": 0, "examples": 0, "cpu_seconds": 0.0, "repeated": 2}


class Driven:
    """A launcher's machine: what it says to each event until it waits for the next."""

    def __init__(self) -> None:
        alone = Alone(3)
        self.machine: Machine[RunResult] = CoordinatorMachine(PLAN, SETTINGS, tells_of_ends=True, alone=alone).run(0.0)
        next(self.machine)

    def hear(self, event: Event | Message) -> list[Instruction]:
        said, each = [], self.machine.send((1.0, event if isinstance(event, Ended) else Came(event)))  # type: ignore[arg-type]
        while not isinstance(each, Await):
            said.append(each)
            each = self.machine.send((1.0, None))
        return [each for each in said if not isinstance(each, Tell)]


def hello(role: str, incarnation: int = 0) -> Hello:
    return Hello(role, {f"{role}/control": f"tcp://{incarnation}"}, "here", 7, incarnation)


@pytest.fixture
def driven() -> Driven:
    """All train."""
    made = Driven()
    for role in ROLES:
        made.hear(hello(role))
    said = [each for role in ROLES for each in made.hear(Ready(role, METRICS))]
    assert said == [TellAll(Order("start", number=1))]
    return made


def test_a_trainer_that_dies_is_begun_again_and_begins_once_all_others_know_where_it_is(driven: Driven) -> None:
    lost = Order("lost", number=2, role=TRAINER, incarnation=1)
    assert driven.hear(KILLED) == [TellAll(lost), BeginAgain(TRAINER)]
    (reach,) = driven.hear(hello(TRAINER, 1))
    assert isinstance(reach, Reach)
    assert (reach.role, reach.endpoints, reach.ordered) == (TRAINER, {f"{TRAINER}/control": "tcp://1"}, 2)
    assert set(reach.book) == {f"{role}/control" for role in ROLES}
    found = Order("found", number=3, role=TRAINER, book=reach.endpoints)
    assert driven.hear(Ready(TRAINER, METRICS, 1)) == [TellAll(found)]
    *some, last = [role for role in ROLES if role != TRAINER]
    assert [driven.hear(State(role, "found", {}, 3, 1)) for role in some] == [[]] * len(some)
    assert driven.hear(Beat(TRAINER, METRICS, 0, 3, 1)) == []
    assert driven.hear(State(last, "found", {}, 3, 1)) == [TellAll(Order("start", number=4, role=TRAINER))]


def test_what_a_trainer_has_said_before_it_died_is_not_taken_for_what_it_says_now(driven: Driven) -> None:
    driven.hear(KILLED)
    late = [
        hello(TRAINER), Ready(TRAINER, METRICS), Beat(TRAINER, METRICS, 9, 1), State(TRAINER, "finished", {}, 0, 5), Failed(TRAINER, "PeerLost", "gone"),
    ]  # fmt: skip
    assert [driven.hear(each) for each in late] == [[]] * len(late)
    (reach,) = driven.hear(hello(TRAINER, 1))
    assert isinstance(reach, Reach)


def test_of_two_that_are_away_the_one_that_comes_later_need_not_be_told_of_the_other(driven: Driven) -> None:
    driven.hear(KILLED)
    driven.hear(hello(TRAINER, 1))
    driven.hear(Ready(TRAINER, METRICS, 1))  # order 3
    for role in ROLES:
        if role not in (TRAINER, OTHER):
            assert driven.hear(State(role, "found", {}, 3, 1)) == []
    said = driven.hear(Ended(f"{OTHER} (process 8) ended", is_replaceable=True))
    assert [type(each) for each in said] == [TellAll, BeginAgain, TellAll]
    assert said[2] == TellAll(Order("start", number=5, role=TRAINER)), "it has waited for the other's answer alone"
    (reach,) = driven.hear(hello(OTHER, 1))
    assert isinstance(reach, Reach)


def test_who_is_lost_while_it_is_away_or_cannot_be_replaced_ends_the_try(driven: Driven) -> None:
    driven.hear(KILLED)
    assert driven.machine.send((1.0, KILLED)) == TellAll(Order("abort"))
    with pytest.raises(PeerLost, match=rf"^{TRAINER} \(process 7\) was killed by signal 9"):
        driven.machine.send((1.0, None))

"""What a role makes of orders that come again, or do not come, and in which order it answers."""

from pathlib import Path
from typing import Any

import pytest

from htrain.errors import PeerLost
from htrain.executor.roles.obeying import Obeying
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Order

RUN = Path("runs/a")
FOLDER = str(RUN / "checkpoints" / "examples_000000000001")


class Obedient:
    """A role that does what it is told, and keeps a list of it; `quiet` when its steps have ended."""

    name = "trainer:0:1"
    settings = RunSettings(Path("plan"), "data", RUN)
    finished = False
    error: Exception | None = None
    reader_error: Exception | None = None

    def __init__(self) -> None:
        self.done: list[str] = []
        self.quiet = False
        self._saved: dict[str, Any] = {}

    def start(self, book: dict[str, str]) -> None:
        self.done.append(f"start {book}")

    def lost(self, trainer: str, incarnation: int) -> None:
        self.done.append(f"lost {trainer} {incarnation}")

    def found(self, trainer: str, book: dict[str, str]) -> None:
        self.done.append(f"found {trainer} at {book}")

    def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")

    def save(self, folder: Path, last: str) -> None:
        self.done.append(f"save {folder}" + (f" on {last}" if last else ""))
        self._saved = {"saved": {"file": []}}

    def saved(self) -> dict[str, Any]:
        saved, self._saved = self._saved, {}
        return saved

    def publish(self, version: str, base: str) -> None:
        self.done.append(f"publish {version}")

    def published(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"steps": 3}

    def metrics(self) -> dict[str, Any]:
        return {}


class Line:
    """The launcher's end: states with their numbers and places."""

    def __init__(self) -> None:
        self.states: list[tuple[str, int, int]] = []
        self.refused = 0

    def beat(self, metrics: dict[str, Any]) -> None: ...

    def state(self, state: str, details: dict[str, Any], number: int, place: int) -> None:
        self.states.append((state, number, place))

    def refuse(self) -> None:
        self.refused += 1


@pytest.fixture
def role() -> Obedient:
    return Obedient()


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def obeying(role: Obedient, line: Line) -> Obeying:
    return Obeying(role, line, {"a": "tcp://a"})


def test_a_role_answers_and_saves_once_its_steps_have_ended(role: Obedient, line: Line, obeying: Obeying) -> None:
    for order in (Order("start", number=1), Order("pause", number=2), Order("save", FOLDER, number=3)):
        assert obeying.told(order)
        obeying.look()
    assert role.done == ["start {'a': 'tcp://a'}", "pause"]
    assert line.states == []
    role.quiet = True
    obeying.look()
    obeying.look()
    assert role.done[2:] == [f"save {FOLDER}"]
    assert line.states == [("paused", 2, 1), ("saving", 3, 2), ("saved", 3, 3)]
    assert obeying.exchanged() == (3, 3)


def test_orders_that_come_again_are_not_obeyed_again(role: Obedient, line: Line, obeying: Obeying) -> None:
    """Else a role would go on while others rest, or write a checkpoint that is closed."""
    role.quiet = True
    orders = [
        Order("start", number=1),
        Order("pause", number=2),
        Order("save", FOLDER, number=3),
        Order("resume", number=4),
    ]
    for order in (*orders, *orders, Order("pause", number=5), *orders):
        assert obeying.told(order)
        obeying.look()
    assert [done.split()[0] for done in role.done] == ["start", "pause", "save", "resume", "pause"]
    assert [state for state, _, _ in line.states] == ["paused", "saving", "saved", "paused"]


def test_an_order_behind_one_that_was_lost_is_an_error(role: Obedient, obeying: Obeying) -> None:
    obeying.told(Order("start", number=1))
    with pytest.raises(
        PeerLost, match=r"^an order of the launcher before that to save is lost, with the connection that"
    ):
        obeying.told(Order("save", FOLDER, number=3))
    assert [done.split()[0] for done in role.done] == ["start"]


def test_the_last_order_counts_whatever_was_lost_before(obeying: Obeying) -> None:
    obeying.told(Order("start", number=1))
    assert not obeying.told(Order("abort"))


def test_a_folder_that_is_none_of_the_run_is_refused(role: Obedient, line: Line, obeying: Obeying) -> None:
    role.quiet = True
    obeying.told(Order("save", "/etc", number=1))
    obeying.look()
    assert (role.done, line.refused) == ([], 1)


def test_a_role_hears_of_a_trainer_that_is_gone_and_where_another_is(
    role: Obedient, line: Line, obeying: Obeying
) -> None:
    obeying.told(Order("start", number=1))
    obeying.told(Order("lost", number=2, role="trainer:1:0", incarnation=3))
    obeying.told(Order("found", number=3, role="trainer:1:0", incarnation=3, book={"trainer:1:0/0": "tcp://b"}))
    assert role.done[1:] == [
        "lost trainer:1:0 3",
        "lost trainer:1:0 3",
        "found trainer:1:0 at {'trainer:1:0/0': 'tcp://b'}",
    ]
    for number, name in enumerate(("dense_ps:0", "trainer", "trainer:a:0", "trainer:0", ""), 4):
        obeying.told(Order("lost", number=number, role=name, incarnation=1))
    assert line.refused == 5
    assert len(role.done) == 4
    assert line.states == [("found", 3, 1)], "it knows where that is"
    obeying.told(Order("start", number=9, role="trainer:1:0"))
    assert len(role.done) == 4, "another is to start"


def test_a_role_that_comes_when_others_work_already_begins_when_it_is_told_to_and_not_when_it_is_found(
    role: Obedient, line: Line
) -> None:
    obeying = Obeying(role, line, {"a": "tcp://a"}, ordered=7)
    obeying.told(Order("lost", number=8, role="trainer:1:0", incarnation=1))
    obeying.told(Order("found", number=9, role="trainer:0:1", book={}))
    assert role.done == ["lost trainer:1:0 1"]
    obeying.told(Order("start", number=10, role="trainer:0:1"))
    assert role.done == ["lost trainer:1:0 1", "start {'a': 'tcp://a'}"]
    assert obeying.exchanged() == (1, 10)
    with pytest.raises(PeerLost, match=r"^an order of the launcher before that to pause is lost"):
        obeying.told(Order("pause", number=12))

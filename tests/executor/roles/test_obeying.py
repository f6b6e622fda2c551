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

    name = "trainer:0:0"
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
        self.done.append(f"found {trainer} {book}")

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


def test_a_role_says_that_it_knows_where_a_trainer_is_that_was_begun_again(
    role: Obedient, line: Line, obeying: Obeying
) -> None:
    other, book = "trainer:0:1", {"trainer:0:1/0": "tcp://b"}
    obeying.told(Order("lost", number=1, trainer=other, incarnation=2))
    obeying.told(Order("found", number=2, trainer=other, book=book))
    obeying.told(Order("start", number=3, trainer=other))
    assert role.done == [f"lost {other} 2", f"found {other} {book}"], "another is to start"
    assert line.states == [("found", 2, 1)]


def test_a_trainer_that_was_begun_again_starts_when_it_is_told_to_and_not_when_it_is_found(
    role: Obedient, line: Line
) -> None:
    obeying = Obeying(role, line, {"a": "tcp://a"}, ordered=7)
    obeying.told(Order("pause", number=7))
    assert role.done == [], "the order is of before it came"
    obeying.told(Order("found", number=8, trainer=role.name, book={"trainer:0:0/0": "tcp://b"}))
    assert role.done == []
    assert line.states == [("found", 8, 1)]
    obeying.told(Order("start", number=9, trainer=role.name))
    assert role.done == ["start {'a': 'tcp://a'}"]


@pytest.mark.parametrize("name", ["sparse_ps:0", "trainer:0", "trainer:x:0", ""])
def test_who_is_no_trainer_is_not_begun_again(role: Obedient, line: Line, obeying: Obeying, name: str) -> None:
    obeying.told(Order("lost", number=1, trainer=name, incarnation=1))
    assert (role.done, line.states, line.refused) == ([], [], 1)

"""What a role tells its launcher, in which order."""

from typing import Any

from htrain.errors import DataError
from htrain.executor.launch.play import _obey
from htrain.executor.transport.wire import Order


class EndsWhileLookedAt:
    """A role whose reader fails, and whose trainer has then nothing left to do, right after it was asked for its reader's error."""

    error: Exception | None = None
    quiet = False

    def __init__(self) -> None:
        self._asked = False

    @property
    def reader_error(self) -> Exception | None:
        was, self._asked = self._asked, True
        return DataError("broken.tsv, line 1: not a row") if was else None

    @property
    def finished(self) -> bool:
        return self._asked

    def look(self) -> None: ...

    def metrics(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}


class Told:
    """A link that stops the role after a few looks."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self._left = 4

    def order(self, seconds: float) -> Order | None:
        self._left -= 1
        return None if self._left else Order("stop", "")

    def beat(self, metrics: dict[str, Any]) -> None: ...

    def state(self, state: str, details: dict[str, Any]) -> None:
        self.states.append(state)


class Pulse:
    def check(self) -> None: ...


def test_what_ended_the_data_is_told_before_its_end() -> None:
    """Else the launcher, which has all trainers finished then, calls data that could not be read to its end a run to the end of the data."""
    told = Told()
    _obey(EndsWhileLookedAt(), told, Pulse(), {})  # type: ignore[arg-type]
    assert told.states == ["unreadable", "finished"]

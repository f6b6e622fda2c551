"""What a role tells its launcher, in which order."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from htrain.errors import DataError, PeerLost
from htrain.executor.host.bell import Bell
from htrain.executor.host.process import this_process
from htrain.executor.launch.play import _obey
from htrain.executor.transport.link import LAUNCHER, Launcher, Link
from htrain.executor.transport.port import Network
from htrain.executor.transport.wire import Addresses, Beat, Hello, Order, State


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

    def published(self) -> dict[str, Any]:
        return {}

    def saved(self) -> dict[str, Any]:
        return {}

    def metrics(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}


class Told:
    """A link that stops the role after a few looks."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self._left = 4

    def order(self) -> Order | None:
        self._left -= 1
        return None if self._left else Order("stop", "")

    def beat(self, metrics: dict[str, Any]) -> None: ...

    def state(self, state: str, details: dict[str, Any], number: int, place: int) -> None:
        self.states.append(state)
        assert place == len(self.states)


class Pulse:
    def check(self) -> None: ...


def test_what_ended_the_data_is_told_before_its_end() -> None:
    """Else the launcher, which has all trainers finished then, calls data that could not be read to its end a run to the end of the data."""
    told = Told()
    _obey(EndsWhileLookedAt(), told, Pulse(), Addresses({}))  # type: ignore[arg-type]
    assert told.states == ["unreadable", "finished"]


class Waits:
    """A role whose trainer ends while nobody gives it an order."""

    error: Exception | None = None
    reader_error: Exception | None = None
    quiet = finished = False

    def published(self) -> dict[str, Any]:
        return {}

    def saved(self) -> dict[str, Any]:
        return {}

    def metrics(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network("inproc")
    yield made
    made.close()


def test_a_role_that_nobody_gives_orders_looks_as_soon_as_its_threads_ring(network: Network) -> None:
    role, bell = Waits(), Bell()
    launcher = network.inbox(LAUNCHER)
    link = Link("trainer:0:0", network, Launcher(launcher.address, this_process()), bell)
    thread = threading.Thread(target=lambda: _obey(role, link, Pulse(), Addresses({})), daemon=True)  # type: ignore[arg-type]
    thread.start()
    assert launcher.receive(0.2) is None
    role.finished = True
    bell.ring()
    told = [got[0] for _ in range(2) if (got := launcher.receive(10))]
    assert told == [Beat("trainer:0:0", {}), State("trainer:0:0", "finished", {}, place=1)]
    role.error = PeerLost("trainer:0:0: the launcher is gone")
    thread_ends_with(thread, bell)
    link.close()
    launcher.close()
    bell.close()


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_role_that_waits_for_addresses_minds_no_word_to_the_one_before(network: Network, gives_up: bool) -> None:
    """An order to the process before it may come late, where it is one that was begun again; the launcher may give up the run, too."""
    bell, launcher = Bell(), network.inbox(LAUNCHER)
    link = Link("trainer:0:0", network, Launcher(launcher.address, this_process()), bell, incarnation=2)
    outbox = network.outbox({"trainer:0:0/control": link._inbox.address})
    for word in (
        Order("lost", number=3, role="trainer:0:0"),
        Addresses({"a": "c"}),
        Order("abort") if gives_up else Addresses({"a": "b"}, 3, incarnation=2),
    ):
        outbox.send("trainer:0:0/control", word)
    try:
        if gives_up:
            with pytest.raises(PeerLost, match=r"^trainer:0:0: the launcher has given up the run$"):
                link.hello({}, 10.0, lambda: None)
        else:
            assert link.hello({}, 10.0, lambda: None) == Addresses({"a": "b"}, 3, incarnation=2)
        got = launcher.receive(10)
        assert got
        assert isinstance(got[0], Hello)
        assert got[0].incarnation == 2
    finally:
        outbox.close()
        link.close()
        launcher.close()
        bell.close()


def thread_ends_with(thread: threading.Thread, bell: Bell) -> None:
    """An error that the bell tells of ends the loop."""
    with pytest.MonkeyPatch.context() as patch:
        raised: list[type[BaseException]] = []
        patch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))
        bell.ring()
        thread.join(10)
        assert raised == [PeerLost]

"""An agent whose launcher goes, is started again, or has something else in its place meanwhile."""

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from htrain.errors import Error, PeerLost, RunError
from htrain.executor.launch import agent, agent_pulse
from htrain.executor.launch.joining import Joining
from htrain.executor.launch.reception import Reception
from htrain.executor.roles.rendezvous import Rendezvous
from htrain.executor.transport.port import Keys, Network
from htrain.executor.transport.rendezvous import Over, own_version

SECRET = b"a secret that both have, of some length"
ROLE = "trainer:0:0"
WAIT_SECONDS = 30.0


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Place:
    """An address at which launchers come and go, or something else."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.port = int(server.getsockname()[1])
        self._here: Reception | None = None

    def launch(self) -> Reception:
        network = Network("tcp", "127.0.0.1", keys=Keys.of(SECRET))
        self._here = Reception(Rendezvous([[ROLE]], own_version(), 60.0), network, self.port, {})
        return self._here

    def end(self) -> None:
        if self._here:
            self._here.close()
            self._here = None


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.end()


class Playing:
    """An agent in a thread."""

    def __init__(self, place: Place, *, address: str = "", seconds: float = 3 * WAIT_SECONDS) -> None:
        self.news: list[str] = []
        self.error: Error | None = None
        joining = Joining("127.0.0.1", place.port, SECRET, "a file", address, wait_seconds=seconds)
        self.thread = threading.Thread(target=self._play, args=(joining,), daemon=True)
        self.thread.start()

    def _play(self, joining: Joining) -> None:
        try:
            agent.play_roles([ROLE], joining, num_threads=1, tell=self.news.append)
        except Error as error:
            self.error = error

    def ends(self) -> Error | None:
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive()
        return self.error


def agents(reception: Reception) -> list[str]:
    return reception.ask(lambda r: list(r.agents))


def finish(reception: Reception, playing: Playing) -> None:
    """The run is over, and the agent hears it."""
    reception.have(lambda r: r.end(Over()))
    assert playing.ends() is None


def joined(place: Place, playing: Playing) -> Reception:
    """A launcher that an agent has joined, and knows it."""
    launcher = place.launch()
    until(lambda: agents(launcher) and playing.news)
    return launcher


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, a launcher that is gone is missed at once."""
    monkeypatch.setattr(agent_pulse, "_GONE_SECONDS", 0.5)
    monkeypatch.setattr(agent, "_TAKEN_SECONDS", 0.5)
    monkeypatch.setattr(agent, "_ANSWER_SECONDS", 0.5)


@pytest.mark.parametrize("speaks", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_else_takes_connections_where_the_launcher_was_is_not_there_yet(
    place: Place, speaks: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(place, playing := Playing(place))
    quicken(monkeypatch)
    place.end()
    with socket.create_server(("127.0.0.1", place.port)) as other:
        other.settimeout(0.1)
        taken: list[socket.socket] = []
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline or len(taken) < 4:  # a look and a try to speak, twice
            with suppress(TimeoutError):
                taken.append(other.accept()[0])
                taken[-1].sendall(speaks)
            assert playing.thread.is_alive(), playing.error
        for each in taken:
            each.close()
    second = place.launch()
    until(lambda: agents(second))
    finish(second, playing)


def test_a_launcher_that_does_not_come_again_is_given_up_with_the_last_reason(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(place, playing := Playing(place, seconds=4.0))
    quicken(monkeypatch)
    place.end()
    with socket.create_server(("127.0.0.1", place.port)):
        error = playing.ends()
    where = f"127.0.0.1:{place.port}"
    assert isinstance(error, PeerLost)
    assert str(error).startswith(f"{where}: the launcher is gone, and no other has come: {where} (a file): somebody ")


def test_an_interface_without_an_address_is_one_that_has_it_not_yet(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards, asked = psutil.net_if_addrs, threading.Event()
    joined(place, playing := Playing(place, address="lo"))
    quicken(monkeypatch)

    def without() -> dict[str, list[object]]:
        asked.set()
        return {"lo": []}

    monkeypatch.setattr(psutil, "net_if_addrs", without)
    place.end()
    assert asked.wait(WAIT_SECONDS)
    second = place.launch()
    monkeypatch.setattr(psutil, "net_if_addrs", cards)
    until(lambda: agents(second))
    finish(second, playing)


def test_an_interface_without_an_address_is_said_at_once_to_who_has_just_come(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": []})
    error = Playing(place, address="lo").ends()
    assert isinstance(error, RunError)
    assert str(error).startswith("--address lo: this interface has no address of IPv4 yet")


def test_a_launcher_that_is_started_again_before_it_is_missed_is_joined(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of the agent's signs of life is made anew, and takes them: it asks whether it is known."""
    monkeypatch.setattr(agent_pulse, "_GONE_SECONDS", 1e9)
    monkeypatch.setattr(agent_pulse, "LAUNCHER_SECONDS", 1e9)
    (before,) = agents(joined(place, playing := Playing(place)))
    place.end()
    second = place.launch()
    until(lambda: agents(second))
    assert agents(second) != [before]
    assert f"127.0.0.1:{place.port}: the launcher declines: it does not know this agent, or not any more; {ROLE}: " in (
        "\n".join(playing.news)
    )
    finish(second, playing)


def test_an_agent_that_cannot_listen_says_by_which_flag_and_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place.launch()
    error = Playing(place, address="192.0.2.1", seconds=1.0).ends()
    assert isinstance(error, RunError)
    assert str(error) == (
        "cannot listen on tcp://192.0.2.1:*: Cannot assign requested address; choose an address of this host with --address"
    )
    monkeypatch.setattr(Network, "inbox", no_inbox)
    with pytest.raises(RunError, match="no socket"):
        raise Playing(place, seconds=1.0).ends() or AssertionError
    assert not list(tmp_path.iterdir())


def no_inbox(network: Network, name: str, **_: object) -> None:
    raise RunError(f"{name}: no socket can be opened")


def test_an_agent_without_a_place_for_the_plan_says_so_and_names_tmpdir(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    place.launch()
    error = Playing(place, seconds=1.0).ends()
    assert isinstance(error, RunError)
    assert str(error) == (
        "no folder for the plan: No such file or directory: let TMPDIR name one that can be written, such as /tmp"
    )

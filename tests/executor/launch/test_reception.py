"""The launcher's reception over real sockets: agents that join, fetch the plan, and vanish."""

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from htrain.errors import PeerLost, RunError
from htrain.executor.launch.reception import Reception
from htrain.executor.roles.rendezvous import Rendezvous
from htrain.executor.transport.port import Keys, Network
from htrain.executor.transport.rendezvous import (
    Begin,
    Declined,
    Fetch,
    Finish,
    FromAgent,
    Join,
    Piece,
    Prepare,
    Prepared,
    Present,
    Rested,
)
from tests.support.resets import Road

KEYS = Keys.of(b"a secret that both have, of some length")
ROLES = ("trainer:0:0", "dense_ps:0")


class Agent:
    """As much of an agent as talks."""

    def __init__(
        self,
        reception: Reception,
        name: str,
        *roles: str,
        keys: Keys = KEYS,
        by: Callable[[str], str] = lambda address: address,
    ) -> None:
        self.network = Network("tcp", keys=keys)
        self.name, self.inbox = name, self.network.inbox(name)
        self.outbox = self.network.outbox({"launcher": f"tcp://{reception.address}"}, deadline_seconds=2)
        self.outbox.send("launcher", Join(name, "1", list(roles), by(self.inbox.address), "host", os.getpid()))

    def say(self, message: FromAgent) -> None:
        self.outbox.send("launcher", message)

    def hears(self) -> object:
        """The next message that is more than a sign of life."""
        while got := self.inbox.receive(10.0):
            if not isinstance(got[0], Present):
                return got[0]
        return None

    def close(self) -> None:
        self.inbox.close()
        self.outbox.close()
        self.network.close()


@pytest.fixture
def reception(tmp_path: Path) -> Iterator[Reception]:
    (tmp_path / "large").write_bytes(os.urandom((5 << 20) // 2))
    files = {"nets/large.onnx": tmp_path / "large", "nets/gone.onnx": tmp_path / "gone"}
    rendezvous = Rendezvous([(role,) for role in ROLES], "1", 60.0)
    made = Reception(rendezvous, Network("tcp", keys=KEYS), 0, files)
    made.have(lambda r: r.prepare(b"task"))
    yield made
    made.close()


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def missing(reception: Reception) -> list[str]:
    return reception.ask(lambda r: r.missing)


def test_an_agent_fetches_files_of_the_plan_and_no_others(reception: Reception, tmp_path: Path) -> None:
    agent = Agent(reception, "a", ROLES[0])
    assert agent.hears() == Prepare(b"task")
    found = b""
    while True:
        agent.say(Fetch("a", "nets/large.onnx", len(found)))
        piece = agent.hears()
        assert isinstance(piece, Piece)
        assert piece.offset == len(found)
        if not piece.data:
            break
        found += piece.data
    assert found == (tmp_path / "large").read_bytes()
    for name in ("nets/gone.onnx", "../secret", str(tmp_path / "large")):
        agent.say(Fetch("a", name, 0))
        assert agent.hears() == Piece(name, 0, b"")
    agent.close()


def test_one_that_is_gone_is_missed_within_seconds_and_another_takes_its_place_at_once(reception: Reception) -> None:
    agent = Agent(reception, "a", ROLES[0])
    agent.hears()
    agent.say(Prepared("a"))
    until(lambda: missing(reception) == [ROLES[1]])
    agent.close()
    until(lambda: missing(reception) == list(ROLES))
    assert any("trainer:0:0 " in news and " is gone: " in news for news in reception.ask(lambda r: list(r.news)))
    second = Agent(reception, "b", ROLES[0])
    assert second.hears() == Prepare(b"task")
    second.close()
    third = Agent(reception, "c", ROLES[0])  # nobody has missed the second yet
    assert third.hears() == Prepare(b"task")
    fourth = Agent(reception, "d", ROLES[0])
    assert isinstance(fourth.hears(), Declined)
    third.close()
    fourth.close()


class Roads:
    """What an agent says that it is at, on the way to where it is."""

    def __init__(self) -> None:
        self.made: list[Road] = []

    def to(self, address: str) -> str:
        self.made.append(Road(address))
        return self.made[-1].address


@pytest.fixture
def roads() -> Iterator[Roads]:
    made = Roads()
    yield made
    for road in made.made:
        road.close()


@pytest.mark.parametrize("seed", range(3))
def test_what_an_agent_is_told_comes_once_and_in_order_though_connections_are_lost_with_it(
    seed: int, reception: Reception, roads: Roads
) -> None:
    """Orders and pieces, said at any moment of a connection that is cut, reset and made again."""
    chance = random.Random(seed)
    agent = Agent(reception, "a", ROLES[0], by=roads.to)
    assert agent.hears() == Prepare(b"task")
    agent.say(Prepared("a"))
    until(lambda: missing(reception) == [ROLES[1]])
    (road,) = roads.made
    wanted: list[object] = []
    for number in range(1, 6):
        chance.choice([road.cut, road.reset, lambda: None])()
        reception.have(lambda r, number=number: r.begin(b"%d" % number))
        wanted.append(Begin(number, b"%d" % number))
        if chance.random() < 0.5:
            time.sleep(0.02)  # it is in the hands of the system
        reception.have(lambda r: r.finish(at_once=True))
        wanted.append(Finish(number, True))
        agent.say(Fetch("a", "nets/gone.onnx", number))
        wanted.append(Piece("nets/gone.onnx", number, b""))
        until(lambda number=number: heard_by(reception, number))
        road.reset()
        road.mend()
        assert [agent.hears() for _ in wanted] == wanted
        wanted = []
        agent.say(Rested("a", number))
        until(lambda: reception.ask(lambda r: r.has_rested))
    agent.close()


def heard_by(reception: Reception, number: int) -> bool:
    """Whether the launcher has said the piece that an agent has asked for, to a connection or for later."""
    session = reception._lines["a"]._outbox._sessions["a"]
    return session is not None and session._sent.last >= 1 + 3 * number


def test_the_last_word_is_kept_until_it_is_heard_and_then_the_line_is_closed(
    reception: Reception, roads: Roads
) -> None:
    first = Agent(reception, "a", ROLES[0])
    assert first.hears() == Prepare(b"task")
    second = Agent(reception, "b", ROLES[0], by=roads.to)
    assert isinstance(second.hears(), Declined)
    until(lambda: reception._lines.keys() == {"a"})
    for each in (first, second):
        each.close()
    until(lambda: not reception._lines)
    network, deadline = reception._network, time.monotonic() + 10
    while network._keeper._sessions:  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_time_in_which_the_launcher_was_stopped_is_no_silence_of_agents(
    reception: Reception, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(reception, "a", ROLES[0])
    assert isinstance(agent.hears(), Prepare)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 100.0)  # all at once, as it is after a freeze
    monkeypatch.setattr("htrain.executor.launch.reception.time", clock)
    time.sleep(1.2)
    assert reception.ask(lambda r: set(r.agents)) == {"a"}
    agent.close()


def test_whoever_has_other_keys_is_not_heard(reception: Reception) -> None:
    with pytest.raises(PeerLost, match="did not take a message"):
        Agent(reception, "a", ROLES[0], keys=Keys.of(b"another"))
    assert not reception.ask(lambda r: r.agents)


def test_agents_that_cannot_be_reached_are_told_of_hold_no_role_and_delay_nobody(reception: Reception) -> None:
    network = Network("tcp", keys=KEYS)
    outbox = network.outbox({"launcher": f"tcp://{reception.address}"})
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    began = time.monotonic()
    for name, role, address in (("a", ROLES[0], "no address"), ("b", ROLES[0], closed)):
        outbox.send("launcher", Join(name, "1", [role], address, "host", 1))
    agent = Agent(reception, "c", ROLES[1])
    assert agent.hears() == Prepare(b"task")
    assert time.monotonic() - began < 4
    until(lambda: not reception.ask(lambda r: {"a", "b"} & r.agents.keys()))
    told = [news for news in reception.ask(lambda r: list(r.news)) if "where nobody is reached" in news]
    assert [news.split(",")[0] for news in told] == [
        f"an agent says that it is at {where}" for where in ("no address", closed.removeprefix("tcp://"))
    ]
    assert "c" in reception.ask(lambda r: r.agents)
    agent.close()
    outbox.close()
    network.close()


def test_a_port_that_is_taken_is_said(reception: Reception) -> None:
    port = int(reception.address.rpartition(":")[2])
    with pytest.raises(
        RunError, match=f"cannot listen on tcp://127.0.0.1:{port}: Address already in use; give another port"
    ):
        Reception(Rendezvous((), "1", 60.0), Network("tcp", keys=KEYS), port, {})

"""The launcher's reception over real sockets: agents that join, fetch the plan, and vanish."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from htrain.errors import PeerLost, RunError
from htrain.executor.launch.reception import Reception
from htrain.executor.roles.rendezvous import Rendezvous
from htrain.executor.transport.port import Keys, Network
from htrain.executor.transport.rendezvous import Declined, Fetch, FromAgent, Join, Piece, Prepare, Prepared, Present

KEYS = Keys.of(b"a secret that both have, of some length")
ROLES = ("trainer:0:0", "dense_ps:0")


class Agent:
    """As much of an agent as talks."""

    def __init__(self, reception: Reception, name: str, *roles: str, keys: Keys = KEYS) -> None:
        self.network = Network("tcp", keys=keys)
        self.name, self.inbox = name, self.network.inbox(name)
        self.outbox = self.network.outbox({"launcher": f"tcp://{reception.address}"}, deadline_seconds=2)
        self.outbox.send("launcher", Join(name, "1", list(roles), self.inbox.address, "host", os.getpid()))

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
    with pytest.raises(RunError, match=f"cannot listen on tcp://127.0.0.1:{port}: Address already in use"):
        Reception(Rendezvous((), "1", 60.0), Network("tcp", keys=KEYS), port, {})

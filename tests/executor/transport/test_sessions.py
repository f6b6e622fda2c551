"""What goes between hosts comes once and in order, though connections are reset under it; what is heard is not kept (docs/decisions/sessions.md)."""

import random
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from htrain.executor.engine.context import Context
from htrain.executor.transport.port import Inbox, Network, Outbox
from htrain.executor.transport.port.session import reply_of
from htrain.executor.transport.wire import Beat, Ready, Values
from tests.support.ports import WAIT_SECONDS, MakeNetwork, receive, send_tensors
from tests.support.resets import Road

LARGE = 100_000  # floats: more than is copied into a message


@pytest.fixture
def here(make_network: MakeNetwork) -> Network:
    return make_network("tcp")


@pytest.fixture
def inbox(make_network: MakeNetwork, here: Network) -> Inbox:
    there = make_network("tcp")
    there.token = here.token
    return there.inbox("b")


@pytest.fixture
def road(inbox: Inbox) -> Iterator[Road]:
    made = Road(inbox.address)
    yield made
    made.close()


def kept_bytes(network: Network) -> int:
    assert network._keeper
    return sum(session.num_bytes for session in network._keeper._sessions.values())


def kept_messages(network: Network) -> int:
    assert network._keeper
    return sum(len(session._sent._kept) for session in network._keeper._sessions.values())


def await_kept_messages(network: Network, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while kept_messages(network) != count:
        assert time.monotonic() < deadline, f"{kept_messages(network)} messages are kept"
        time.sleep(0.01)


def await_nothing_kept(network: Network) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while kept_bytes(network):
        assert time.monotonic() < deadline, f"{kept_bytes(network)} bytes are still kept"
        time.sleep(0.01)


def test_all_come_once_and_in_order_while_connections_are_reset(here: Network, inbox: Inbox, road: Road) -> None:
    """Messages of a few bytes and of 400 kB, resets at random between and within them."""
    count, chance = 600, random.Random(7)
    outbox = here.outbox({"b": road.address})
    over = threading.Event()

    def send() -> None:
        for step in range(count):
            send_tensors(outbox, "b", step, {"x": torch.full((LARGE if step % 3 == 0 else 3,), float(step))})

    def disturb() -> None:
        while not over.wait(chance.uniform(0.02, 0.12)):
            road.reset()

    threads = [threading.Thread(target=each) for each in (send, disturb)]
    for thread in threads:
        thread.start()
    try:
        for step in range(count):
            message, tensors = receive(inbox)
            assert isinstance(message, Values)
            assert message.context.step == step
            assert tensors["x"].shape == (LARGE if step % 3 == 0 else 3,)
            assert (tensors["x"] == step).all()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert road.connections > 3
    await_nothing_kept(here)
    assert inbox.receive(0.2) is None  # nothing twice
    assert inbox.strangers == 0


def test_the_last_message_comes_though_nothing_follows_it(here: Network, inbox: Inbox, road: Road) -> None:
    outbox = here.outbox({"b": road.address})
    for number in range(5):
        outbox.send("b", Ready("before"))
        assert receive(inbox)[0] == Ready("before")  # a connection stands
        road.cut()
        time.sleep(0.02)
        outbox.send("b", Ready(str(number)))  # the sender's system has taken it
        time.sleep(0.02)
        road.reset()
        road.mend()
        assert receive(inbox)[0] == Ready(str(number))


def test_a_link_that_is_cut_costs_time_only(here: Network, inbox: Inbox, road: Road) -> None:
    outbox = here.outbox({"b": road.address})
    send_tensors(outbox, "b", 0, {"x": torch.zeros(LARGE)})
    receive(inbox)
    road.cut()
    for step in range(1, 4):
        send_tensors(outbox, "b", step, {"x": torch.zeros(LARGE)})
    assert inbox.receive(0.5) is None
    assert kept_bytes(here) >= 3 * 4 * LARGE
    road.mend()
    steps = [receive(inbox)[0].context.step for _ in range(3)]  # type: ignore[attr-defined]
    assert steps == [1, 2, 3]
    await_nothing_kept(here)


def test_what_was_heard_is_told_again_where_its_own_way_has_broken(here: Network, inbox: Inbox) -> None:
    """And the sender keeps nothing, though nothing follows."""
    outbox = here.outbox({"b": inbox.address})
    outbox.send("b", Ready("a"))  # begins the keeper
    assert here._keeper
    assert here._keeper._thread
    way = Road(here._keeper._thread.inbox.address)
    try:
        session = next(iter(here._keeper._sessions.values()))
        session._reply = reply_of(way.address)
        receive(inbox)
        for _ in range(3):
            outbox.send("b", Ready("b"))
            receive(inbox)
            await_kept_messages(here, 0)
            way.cut()
            outbox.send("b", Ready("c"))
            receive(inbox)
            time.sleep(0.15)  # it is told, to the system
            assert kept_messages(here) == 1
            way.reset()
            way.mend()
            await_kept_messages(here, 0)
    finally:
        way.close()


def test_an_offer_is_not_said_again(here: Network, inbox: Inbox, road: Road) -> None:
    """A sign of life that is late is none."""
    outbox = here.outbox({"b": road.address})
    outbox.send("b", Ready("a"))
    receive(inbox)
    road.cut()
    time.sleep(0.02)
    outbox.offer("b", Beat("a", {}))
    time.sleep(0.02)
    road.reset()
    road.mend()
    outbox.send("b", Ready("b"))
    assert receive(inbox)[0] == Ready("b")
    assert inbox.receive(0.5) is None


def test_sessions_end_with_their_outbox(here: Network, inbox: Inbox) -> None:
    outbox: Outbox = here.outbox({"b": inbox.address})
    outbox.send("b", Ready("a"))
    receive(inbox)
    assert here._keeper
    assert len(here._keeper._sessions) == 1
    outbox.close()
    deadline = time.monotonic() + WAIT_SECONDS
    while here._keeper._sessions:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_stays_on_a_host_has_no_sessions(make_network: MakeNetwork) -> None:
    for scheme in ("inproc", "ipc"):
        network = make_network(scheme)
        inbox = network.inbox("b")
        network.outbox({"b": inbox.address}).send("b", Ready("a"))
        receive(inbox)
        assert network._keeper is None
    near = make_network("tcp")  # to an endpoint of this process, too
    inbox = near.inbox("b")
    near.outbox({"b": inbox.address}).send("b", Ready("a"))
    receive(inbox)
    assert near._keeper
    assert not near._keeper._sessions


def test_numbered_messages_of_a_stranger_are_dropped(here: Network, inbox: Inbox, make_network: MakeNetwork) -> None:
    stranger = make_network("tcp").outbox({"b": inbox.address})
    stranger.send_values("b", Values("a", Context(0, 0, 0, 0), 1), ["x"], [torch.zeros(2)])
    deadline = time.monotonic() + WAIT_SECONDS
    while not inbox.strangers:
        assert inbox.receive(0.05) is None
        assert time.monotonic() < deadline
    assert inbox.strangers == 1

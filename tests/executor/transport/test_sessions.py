"""What goes between hosts comes once and in order, though connections are reset under it; what is heard is not kept (docs/decisions/sessions.md)."""

import random
import threading
import time
from collections.abc import Iterator

import pytest
import torch
import zmq

from htrain.errors import PeerLost
from htrain.executor.engine.context import Context
from htrain.executor.transport.port import Inbox, Network, Outbox, outbox, way
from htrain.executor.transport.port.keeper_thread import KeeperThread
from htrain.executor.transport.port.session import reply_of
from htrain.executor.transport.wire import Beat, Frame, Order, Ready, Values
from tests.support.ports import WAIT_SECONDS, MakeNetwork, closed_port, receive, send_tensors
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


@pytest.mark.parametrize("broken", [1, 2, 3])
def test_of_a_message_whose_connection_breaks_between_its_frames_none_is_offered_again_by_itself(
    here: Network, inbox: Inbox, broken: int
) -> None:
    """As libzmq has it: a connection that is gone refuses a frame behind the first, and the next takes one that is offered again for a message's first."""
    outbox = here.outbox({"b": inbox.address})
    outbox.send("b", Ready("before"))
    take, given = outbox._sends["b"], []

    def send(frame: Frame, flags: int, copy: bool) -> None:
        given.append(len(frame))
        if len(given) == 1 + broken:
            raise zmq.Again

    outbox._sends["b"] = send
    send_tensors(outbox, "b", 1, {name: torch.zeros(LARGE + number) for number, name in enumerate("xyz")})
    assert given[1:] == [4 * (LARGE + number) for number in range(3)], "each frame once, to the last"
    outbox._sends["b"] = take
    outbox.send("b", Ready("behind"))
    messages = [receive(inbox)[0] for _ in range(3)]
    assert messages[::2] == [Ready("before"), Ready("behind")]
    assert isinstance(messages[1], Values), "the session has said it again"
    await_nothing_kept(here)
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
        lost = 0
        for _ in range(3):
            outbox.send("b", Ready("b"))
            receive(inbox)
            await_kept_messages(here, 0)
            way.cut()
            outbox.send("b", Ready("c"))
            receive(inbox)
            time.sleep(0.15)  # it is told, to the system
            lost += kept_messages(here)  # on a busy host a word may have passed before the way was cut
            way.reset()
            way.mend()
            await_kept_messages(here, 0)
        assert lost
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


def order(number: int) -> Order:
    return Order("save", number=number)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_posted_comes_once_and_in_order_whatever_becomes_of_connections(
    seed: int, here: Network, inbox: Inbox, road: Road
) -> None:
    """And whoever posts never waits: for a connection that is yet to be made, that is cut, or that is lost."""
    chance, count, longest = random.Random(seed), 60, 0.0
    sender = here.outbox({"b": road.address})
    for number in range(count):
        began = time.monotonic()
        assert sender.post("b", order(number))
        longest = max(longest, time.monotonic() - began)
        chance.choice([road.cut, road.reset, road.mend, road.mend, lambda: None])()
        time.sleep(chance.choice([0.0, 0.005, 0.05]))
    road.reset()
    road.mend()
    assert [receive(inbox)[0] for _ in range(count)] == [order(number) for number in range(count)]
    await_kept_messages(here, 0)
    assert longest < 10.0, "the deadline of a message that is sent is 15 s"
    assert inbox.receive(0.2) is None


def test_what_is_posted_to_somebody_who_is_yet_to_come_is_kept_for_him(
    here: Network, make_network: MakeNetwork
) -> None:
    address = closed_port()
    sender = here.outbox({"late": address})
    for number in range(3):
        assert sender.post("late", order(number))
    assert not sender.is_reached("late")
    assert not sender.is_heard("late")
    there = make_network("tcp")
    there.token = here.token
    late = there.inbox("late", port=int(address.rpartition(":")[2]))
    assert [receive(late)[0] for _ in range(3)] == [order(number) for number in range(3)]
    await_kept_messages(here, 0)
    assert sender.is_heard("late")
    assert sender.is_reached("late")


def test_what_is_posted_to_nobody_takes_no_more_memory_than_what_is_sent(
    here: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_MOST_UNHEARD_BYTES", 100_000)
    sender = here.outbox({"b": closed_port()})
    taken = [sender.post("b", order(number)) for number in range(200)]
    assert 50 < taken.count(True) < 100
    assert taken == sorted(taken, reverse=True)
    assert kept_bytes(here) <= 100_000


@pytest.mark.parametrize("scheme", ["inproc", "ipc"])
def test_what_is_posted_on_a_host_comes_where_a_connection_stands(scheme: str, make_network: MakeNetwork) -> None:
    network = make_network(scheme)
    taker = network.inbox("b")
    sender = network.outbox({"b": taker.address})
    sender.send("b", Ready("a"))
    assert sender.post("b", order(1))
    assert [receive(taker)[0] for _ in range(2)] == [Ready("a"), order(1)]
    assert sender.is_heard("b")


def test_a_message_that_could_not_be_sent_leaves_no_gap(here: Network, make_network: MakeNetwork) -> None:
    address = closed_port()
    sender = here.outbox({"late": address}, deadline_seconds=0.1)
    for number in range(3):
        with pytest.raises(PeerLost):
            sender.send("late", order(number))
    assert kept_messages(here) == 0
    there = make_network("tcp")
    there.token = here.token
    late = there.inbox("late", port=int(address.rpartition(":")[2]))
    deadline = time.monotonic() + WAIT_SECONDS
    while not sender.is_reached("late"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    sender.send("late", order(3))
    assert receive(late)[0] == order(3)
    assert late.receive(0.2) is None


def test_what_a_receiver_does_not_read_is_said_again_once(
    here: Network, inbox: Inbox, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []
    offer = way.Way.offer

    def counted(self: way.Way, frames: list[Frame]) -> bool:
        is_taken = offer(self, frames)
        if is_taken and self.address == road.address:
            said.append(len(said))
        return is_taken

    monkeypatch.setattr(way.Way, "offer", counted)
    sender, count = here.outbox({"b": road.address}), 50
    sender.send("b", order(0))
    receive(inbox)
    await_kept_messages(here, 0)
    for number in range(1, count):
        sender.send("b", order(number))
    road.reset()
    (session,) = list(here._keeper._sessions.values())  # type: ignore[union-attr]
    deadline = time.monotonic() + WAIT_SECONDS
    while not session.stands or session._sent._said < count or not thread_of(here)._ways[road.address].stands:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    carried = len(said)
    time.sleep(1.0)  # in which it was said two times more, once
    assert len(said) == carried
    assert [receive(inbox)[0] for _ in range(count - 1)] == [order(number) for number in range(1, count)]
    await_kept_messages(here, 0)


def thread_of(network: Network) -> KeeperThread:
    assert network._keeper
    assert network._keeper._thread
    return network._keeper._thread


def test_whoever_is_gone_leaves_no_way_to_him_and_no_work(here: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as one who was told what had come, nor as one to whom something was to be said again."""
    monkeypatch.setattr(way, "GIVEN_UP_SECONDS", 0.3)
    inbox = here.inbox("b")
    for _ in range(3):
        agent = Network("tcp", token=here.token)
        agents = agent.inbox("agent")
        road = Road(agents.address)
        to_us, to_it = agent.outbox({"b": inbox.address}), here.outbox({"agent": road.address})
        to_us.send("b", Ready("a"))
        assert receive(inbox)[0] == Ready("a")
        assert to_it.post("agent", order(1))
        assert receive(agents)[0] == order(1)
        await_kept_messages(agent, 0)
        road.reset()
        assert to_it.post("agent", order(2))
        for each in (agents, to_us):
            each.close()
        agent.close()
        road.close()
        to_it.post("agent", order(3))
        to_it.close()
    keeper = here._keeper
    assert keeper
    thread, deadline = thread_of(here), time.monotonic() + WAIT_SECONDS
    while thread._ways or thread._monitors or keeper._sessions or not keeper._sleeps:
        assert time.monotonic() < deadline, (thread._ways, thread._monitors, keeper._sessions, keeper._sleeps)
        time.sleep(0.02)
    assert not thread._broken
    assert [end for end in here._ends if isinstance(end, Outbox)] == [to_it]


def test_a_way_that_was_given_up_is_made_again_when_it_is_wanted(
    here: Network, inbox: Inbox, monkeypatch: pytest.MonkeyPatch, make_network: MakeNetwork
) -> None:
    monkeypatch.setattr(way, "GIVEN_UP_SECONDS", 0.1)
    closed = threading.Event()
    close = way.Way.close

    def told(self: way.Way) -> None:
        close(self)
        closed.set()

    monkeypatch.setattr(way.Way, "close", told)
    address = closed_port()
    sender = here.outbox({"late": address})
    sender.post("late", order(1))
    (session,) = list(here._keeper._sessions.values())  # type: ignore[union-attr]
    session.changed(time.monotonic(), stands=False)  # as where it has stood before: something is due
    session._when_due(session)
    assert closed.wait(WAIT_SECONDS)
    there = make_network("tcp")
    there.token = here.token
    late = there.inbox("late", port=int(address.rpartition(":")[2]))
    assert receive(late)[0] == order(1)


def test_a_way_that_cannot_be_made_is_tried_on_where_the_connection_itself_stands(
    here: Network, inbox: Inbox, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for that connection to stand would wait for ever."""
    monkeypatch.setattr(way, "GIVEN_UP_SECONDS", 0.1)
    given_up, close = threading.Semaphore(0), way.Way.close

    def told(self: way.Way) -> None:
        close(self)
        given_up.release()

    monkeypatch.setattr(way.Way, "close", told)
    sender = here.outbox({"b": road.address})
    sender.send("b", order(1))
    receive(inbox)
    await_kept_messages(here, 0)
    road.cut()  # nothing is heard on it, and nobody who connects is answered
    sender.send("b", order(2))
    (session,) = list(here._keeper._sessions.values())  # type: ignore[union-attr]
    for stands in (False, True):  # a reset, after which it was made at once
        session.changed(time.monotonic(), stands=stands)
    session._when_due(session)
    for _ in range(2):
        assert given_up.acquire(timeout=WAIT_SECONDS)
    monkeypatch.setattr(way, "GIVEN_UP_SECONDS", WAIT_SECONDS)
    road.mend()
    deadline = time.monotonic() + WAIT_SECONDS
    while session._sent._most_said < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert receive(inbox)[0] == order(2)


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

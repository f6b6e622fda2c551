"""Simulated links against arithmetic: what is sent, when it is there, and that nothing overtakes, is lost or made."""

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.simulation.machine import Host
from htrain.simulation.network import Link, transfer

FRAMING = 1514 / 1448
KB = 1000.0


class Net:
    """Hosts with links of given rates; `send` notes when a message is there."""

    def __init__(self, *rates: float) -> None:
        self.env = simpy.Environment()
        self.hosts = [Host(self.env, simpy.Resource(self.env, 1), rate) for rate in rates]
        self.there: list[tuple[str, float]] = []

    def send(self, source: int, target: int, num_bytes: float, name: str, connection: int = 0) -> None:
        def note() -> None:
            self.there.append((name, self.env.now))

        self.hosts[source].send(self.hosts[target], connection, num_bytes / FRAMING, note)

    def run(self) -> dict[str, float]:
        self.env.run()
        return dict(self.there)


def test_a_message_takes_as_long_as_its_slower_link_and_a_piece_on_the_other() -> None:
    net = Net(1000 * KB, 500 * KB)
    net.send(0, 1, 1000 * KB, "a")
    assert 2.0 < net.run()["a"] < 2.0 + 1 / 15


def test_a_message_behind_another_one_of_its_connection_waits_for_it() -> None:
    net = Net(100 * KB, 10_000 * KB)
    net.send(0, 1, 1000 * KB, "large")
    net.send(0, 1, 10 * KB, "small")
    there = net.run()
    assert there["small"] == pytest.approx(10.1, rel=0.01)
    assert there["large"] < there["small"]


def test_a_message_of_another_connection_waits_for_a_piece_or_two_only() -> None:
    net = Net(100 * KB, 10_000 * KB, 10_000 * KB)
    net.send(0, 1, 1000 * KB, "large")
    net.send(0, 2, 10 * KB, "small")
    there = net.run()
    assert there["small"] < 2 * 1000 / 16 / 100 + 0.2
    assert there["large"] == pytest.approx(10.1, rel=0.02)


def test_senders_share_their_receivers_link() -> None:
    net = Net(1000 * KB, 1000 * KB, 500 * KB)
    net.send(0, 2, 500 * KB, "a")
    net.send(1, 2, 500 * KB, "b")
    there = net.run()
    assert max(there.values()) == pytest.approx(2.0, rel=0.1)
    assert min(there.values()) > 1.5  # in pieces by turns, not one after the other


def test_links_of_other_hosts_and_ways_are_not_taken() -> None:
    net = Net(100 * KB, 100 * KB, 100 * KB, 100 * KB)
    net.send(0, 1, 100 * KB, "there")
    net.send(1, 0, 100 * KB, "back")
    net.send(2, 3, 100 * KB, "elsewhere")
    assert all(seconds == pytest.approx(1.0, rel=0.6) for seconds in net.run().values())


sizes = st.floats(1.0, 1e6)
messages = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1), sizes, st.floats(0.0, 3.0)), min_size=1, max_size=12)  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(messages)
def test_every_message_comes_once_in_the_order_of_its_connection_and_not_too_early(drawn) -> None:
    net = Net(*[100 * KB] * 4)
    sent: dict[str, tuple[tuple[int, int, int], float, float]] = {}

    def post(number, source, target, connection, size, at):
        yield net.env.timeout(at)
        net.send(source, target, size, str(number), connection)

    for number, (source, target, connection, size, at) in enumerate(drawn):
        sent[str(number)] = (source, target, connection), size, at
        net.env.process(post(number, source, target, connection, size, at))
    net.env.run()
    assert sorted(name for name, _ in net.there) == sorted(sent)
    there = dict(net.there)
    for name, (_, size, at) in sent.items():
        assert there[name] >= at + size / (100 * KB) * (1 - 1e-9)
    for way in {way for way, _, _ in sent.values()}:
        order = sorted((at, int(name)) for name, (w, _, at) in sent.items() if w == way)
        ends = [there[str(name)] for _, name in order]
        assert ends == sorted(ends)
    for host_number, host in enumerate(net.hosts):
        out = sum(size for (source, _, _), size, _ in sent.values() if source == host_number)
        assert host.outgoing.busy_seconds == pytest.approx(out / (100 * KB))
        assert host.outgoing.busy_seconds <= net.env.now * (1 + 1e-9)


def test_what_others_ask_of_a_link_slows_it_down() -> None:
    env = simpy.Environment()
    alone, shared = (Host(env, simpy.Resource(env, 1), 100 * KB, load=load) for load in (1.0, 5.0))
    ends: list[float] = []

    def again() -> None:
        ends.append(env.now)
        if len(ends) < 20:
            alone.send(shared, 0, 100 * KB / FRAMING, again)

    alone.send(shared, 0, 100 * KB / FRAMING, again)
    env.run(env.timeout(200.0))
    assert ends[-1] / len(ends) == pytest.approx(5.0, rel=0.15)


def test_a_message_of_nothing_arrives() -> None:
    env = simpy.Environment()
    link, there = Link(env, 100.0), []
    transfer("a", (link,), 0.0, lambda: there.append(env.now))
    env.run()
    assert len(there) == 1

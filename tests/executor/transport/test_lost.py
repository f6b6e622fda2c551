"""Roles that are gone and begun again: what others say to them meanwhile, and where it goes then."""

import threading
import time

import pytest

from htrain.executor.transport.port import Inbox, Network
from htrain.executor.transport.wire import Order, Ready
from tests.support.ports import MakeNetwork, receive


def said(inbox: Inbox, seconds: float = 0.3) -> list[str]:
    """Who has said something within this time, in order."""
    deadline, names = time.monotonic() + seconds, []
    while (left := deadline - time.monotonic()) > 0:
        if got := inbox.receive(left):
            message = got[0]
            names.append(message.source if isinstance(message, Ready) else str(message))
    return names


@pytest.fixture(params=["tcp", "ipc"])
def networks(request: pytest.FixtureRequest, make_network: MakeNetwork) -> tuple[Network, Network]:
    """Those of two processes: between them, messages of tcp are numbered."""
    here = make_network(request.param)
    return here, here.another()


def test_what_is_said_to_a_role_that_is_gone_is_dropped_until_it_is_found_again(
    networks: tuple[Network, Network],
) -> None:
    here, there = networks
    before, other = there.inbox("trainer:0:1/0"), there.inbox("sparse_ps:0")
    outbox = here.outbox({each.name: each.address for each in (before, other)})
    for number in range(3):
        outbox.send("trainer:0:1/0", Ready(f"before {number}"))
    assert [receive(before)[0].source for _ in range(3)] == ["before 0", "before 1", "before 2"]  # type: ignore[union-attr]
    before.close()
    here.lost("trainer:0:1")
    began = time.monotonic()
    for number in range(100):
        outbox.send("trainer:0:1/0", Ready(f"lost {number}"))
        assert not outbox.post("trainer:0:1/0", Order("ping"))
        assert not outbox.offer("trainer:0:1/0", Order("ping"))
    assert time.monotonic() - began < 20, "nobody waits for it"
    outbox.send("sparse_ps:0", Ready("to another"))
    assert said(other) == ["to another"]
    again = there.inbox("trainer:0:1/0")
    here.found("trainer:0:1", {again.name: again.address})
    for number in range(3):
        outbox.send("trainer:0:1/0", Ready(f"behind {number}"))
    assert said(again) == ["behind 0", "behind 1", "behind 2"]
    late = here.outbox({"trainer:0:1/0": "tcp://127.0.0.1:9"})
    late.send("trainer:0:1/0", Ready("of another thread"))
    assert said(again) == ["of another thread"], "who connects later goes there, too"
    for each in (outbox, late):
        each.close()
    for inbox in (other, again):
        inbox.close()


def test_who_waits_for_a_peer_that_takes_nothing_waits_no_longer_once_it_is_known_to_be_gone(
    make_network: MakeNetwork,
) -> None:
    network = make_network("tcp")
    outbox = network.outbox({"trainer:1:0/0": "tcp://127.0.0.1:9"}, deadline_seconds=60)
    sender = threading.Thread(target=lambda: outbox.send("trainer:1:0/0", Ready("a")))
    sender.start()
    time.sleep(0.2)
    assert sender.is_alive()
    network.lost("trainer:1:0")
    sender.join(5)
    assert not sender.is_alive()
    outbox.close()

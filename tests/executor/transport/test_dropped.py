"""An inbox drops and counts what does not begin with the token of its try, whatever it is, and hears roles beside it."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.errors import RunError
from htrain.executor.transport.port import Inbox, Network, new_token
from htrain.executor.transport.wire import Order, Ready
from tests.support.ports import WAIT_SECONDS, MakeNetwork, receive, send_tensors

FRAMES = st.lists(st.binary(max_size=60), min_size=1, max_size=4)


class Ends:
    """An inbox, a role that sends to it, and a stranger's socket beside it."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.inbox = network.inbox("b")
        self.role = network.outbox({"b": self.inbox.address})
        self.stranger = network.context.socket(zmq.PUSH)
        self.stranger.set(zmq.LINGER, 0)
        self.stranger.connect(self.inbox.address)


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    network = Network("tcp")
    yield Ends(network)
    network.context.destroy(linger=0)


@settings(max_examples=200, deadline=None)
@given(FRAMES, st.sampled_from(["none", "another try's", "but the last byte of ours"]))
def test_nothing_without_the_token_is_read_and_it_is_counted(ends: Ends, frames: list[bytes], token: str) -> None:
    tokens = {"none": b"", "another try's": new_token(), "but the last byte of ours": ends.network.token[:-1]}
    header, before = tokens[token] + frames[0], ends.inbox.strangers
    if header.startswith(ends.network.token):  # one in 2^8 of the last kind
        return
    ends.stranger.send_multipart([header, *frames[1:]])
    deadline = time.monotonic() + WAIT_SECONDS
    while ends.inbox.strangers == before and time.monotonic() < deadline:
        assert ends.inbox.receive(0.01) is None
    assert ends.inbox.strangers == before + 1


@pytest.mark.parametrize("order", ["abort", "stop", "save"])
def test_an_order_of_an_earlier_try_is_not_given_again(make_network: MakeNetwork, order: str) -> None:
    network, earlier = make_network("tcp"), make_network("tcp")
    inbox = network.inbox("trainer:0:0/control")
    earlier.outbox({inbox.name: inbox.address}).send(inbox.name, Order(order, "elsewhere"))
    assert inbox.receive(0.3) is None
    assert (network.strangers("trainer:0:0"), network.strangers("trainer:0:1")) == (1, 0)


def test_a_role_is_heard_through_a_flood_and_a_call_ends_in_time(make_network: MakeNetwork) -> None:
    ends = Ends(make_network("tcp"))
    stopping = threading.Event()

    def flood() -> None:
        while not stopping.is_set():
            with suppress(zmq.Again):
                ends.stranger.send(bytes(200), zmq.DONTWAIT)
        ends.stranger.close()

    thread = threading.Thread(target=flood)
    thread.start()
    heard, slowest = 0, 0.0
    deadline = time.monotonic() + WAIT_SECONDS
    for step in range(50):
        send_tensors(ends.role, "b", step, {"x": torch.ones(3)})
    while (heard < 50 or not ends.inbox.strangers) and time.monotonic() < deadline:
        began = time.monotonic()
        heard += ends.inbox.receive(0.1) is not None
        slowest = max(slowest, time.monotonic() - began)
    stopping.set()
    thread.join()
    assert heard == 50
    assert ends.inbox.strangers > 0
    assert slowest < 5.0, "seconds for a call that was to take 0.1"


def test_who_floods_an_inbox_that_nobody_reads_waits_at_its_own_end(make_network: MakeNetwork) -> None:
    ends = Ends(make_network("tcp"))
    ends.stranger.set(zmq.SNDTIMEO, 1000)
    sent = 0
    with suppress(zmq.Again):
        for sent in range(100_000):  # noqa: B007  a gigabyte, of which the inbox takes as much as it has said, and the kernel some
            ends.stranger.send(bytes(10_000))
    assert sent < 50_000
    for step in range(3000):  # roles wait for nobody
        send_tensors(ends.role, "b", step, {"x": torch.ones(3)})
    ends.stranger.close()
    heard, deadline = 0, time.monotonic() + WAIT_SECONDS
    while heard < 3000 and time.monotonic() < deadline:
        heard += ends.inbox.receive(0.1) is not None
    assert heard == 3000


def test_a_frame_that_is_longer_than_any_of_the_run_ends_its_connection(make_network: MakeNetwork) -> None:
    network = make_network("tcp")
    network.most_bytes = 100_000
    ends = Ends(network)
    ends.stranger.send(network.token + bytes(100_000))
    assert ends.inbox.receive(0.3) is None
    assert ends.inbox.strangers == 0
    ends.role.send("b", Ready("a"))
    assert receive(ends.inbox)[0] == Ready("a")
    with pytest.raises(
        RunError,
        match=r"^a message to b has 200,000 bytes of tensors; by its plan, this run has none of more than 100,000: ",
    ):
        send_tensors(ends.role, "b", 1, {"x": torch.ones(50_000)})
    send_tensors(ends.role, "b", 2, {"x": torch.ones(20_000)})
    assert receive(ends.inbox)[1]["x"].shape == (20_000,)
    ends.stranger.close()


def test_an_inbox_counts_what_its_reader_refuses(make_network: MakeNetwork) -> None:
    inbox: Inbox = make_network("inproc").inbox("b")
    inbox.refuse()
    assert inbox.strangers == 1

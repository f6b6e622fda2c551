"""Ports over real sockets: what is sent arrives, in order; who cannot be reached is named; nothing waits for ever."""

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from htrain.errors import PeerLost, RunError
from htrain.executor.engine.context import Context, Spread, process_endpoint
from htrain.executor.transport.port import Inbox, Network, Outbox, sent_by_role
from htrain.executor.transport.wire import Beat, Hello, Order, Ready, Values

SCHEMES = ("inproc", "tcp")
WAIT_SECONDS = 20.0
MakeNetwork = Callable[[str], Network]


@pytest.fixture
def make_network() -> Iterator[MakeNetwork]:
    """Networks that the test may close; one that does not end within 10 s fails the test."""
    networks: list[Network] = []

    def make(scheme: str) -> Network:
        networks.append(Network(scheme))
        return networks[-1]

    yield make
    for network in networks:
        closing = threading.Thread(target=network.close, daemon=True)
        closing.start()
        closing.join(10)
        assert not closing.is_alive(), "the network did not close within 10 s"


@pytest.fixture(params=SCHEMES)
def network(request: pytest.FixtureRequest, make_network: MakeNetwork) -> Network:
    return make_network(request.param)


def send_tensors(outbox: Outbox, peer: str, step: int, tensors: dict[str, torch.Tensor]) -> None:
    outbox.send_values(peer, Values("a", Context(0, 0, 0, step), 1), list(tensors), list(tensors.values()))


def receive(inbox: Inbox) -> tuple[object, dict[str, torch.Tensor]]:
    got = inbox.receive(WAIT_SECONDS)
    assert got is not None, "nothing came"
    return got


def receive_step(inbox: Inbox) -> int:
    message, _ = receive(inbox)
    assert isinstance(message, Values)
    return message.context.step


def closed_port() -> str:
    """A TCP address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_values_go_to_the_process_that_has_their_pass_and_orders_to_the_role(network: Network, count: int) -> None:
    network.spread = Spread(trainers=2, replicas=2)
    inboxes = [network.inbox(process_endpoint("sparse_ps:0", k)) for k in range(count)]
    other = network.inbox("sparse_ps:00")  # whose name begins alike
    outbox = network.outbox({inbox.name: inbox.address for inbox in (*inboxes, other)})
    for replica in range(4):
        values = Values("a", Context(0, replica // 2, replica % 2, replica), 1)
        outbox.send_values("sparse_ps:0", values, ["x"], [torch.ones(2)])
        assert receive_step(inboxes[replica % count]) == replica
    outbox.send_values("sparse_ps:00", Values("a", Context(0, 1, 1, 7), 1), ["x"], [torch.ones(2)])
    assert receive_step(other) == 7
    outbox.send("sparse_ps:0", Order("pause"))
    assert isinstance(receive(inboxes[0])[0], Order)
    assert sent_by_role([outbox]) == {"sparse_ps:0": 4 * 8, "sparse_ps:00": 8}


def test_message_arrives_with_all_its_tensors(network: Network) -> None:
    inbox = network.inbox("b")
    outbox = network.outbox({"b": inbox.address})
    sent = {
        "large": torch.randn(300, 257),
        "odd": torch.arange(5, dtype=torch.int64),
        "half": torch.randn(9, 3).bfloat16(),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "none": torch.zeros(0, 4),
        "mask": torch.tensor([True, False]),
        "turned": torch.randn(400, 100).t(),
    }
    send_tensors(outbox, "b", 3, sent)
    message, received = receive(inbox)
    assert isinstance(message, Values)
    assert message.context == Context(0, 0, 0, 3)
    assert [(n, t.dtype) for n, t in received.items()] == [(n, t.dtype) for n, t in sent.items()]
    assert all(torch.equal(received[name], sent[name]) for name in sent)
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in received.values())


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 40_000), max_size=5))
def test_frames_of_any_size_arrive_whole(scheme: str, sizes: list[int], make_network: MakeNetwork) -> None:
    network = make_network(scheme)
    inbox = network.inbox("b")
    outbox = network.outbox({"b": inbox.address})
    sent = {str(i): torch.arange(i, i + size, dtype=torch.int32) for i, size in enumerate(sizes)}
    send_tensors(outbox, "b", 0, sent)
    _, received = receive(inbox)
    assert received.keys() == sent.keys()
    assert all(torch.equal(received[name], sent[name]) for name in sent)
    network.close()


def test_messages_of_each_sender_keep_their_order_whatever_their_size(network: Network) -> None:
    inbox = network.inbox("b")

    def send_all(trainer: int) -> None:
        outbox = network.outbox({"b": inbox.address})
        for step in range(200):
            tensor = torch.full((20_000 if step % 7 == 0 else 3,), float(step))
            outbox.send_values("b", Values("a", Context(0, trainer, 0, step), 1), ["x"], [tensor])
        outbox.close()

    threads = [threading.Thread(target=send_all, args=(trainer,)) for trainer in range(3)]
    for thread in threads:
        thread.start()
    steps: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(600):
        message, tensors = receive(inbox)
        assert isinstance(message, Values)
        assert tensors["x"].unique().tolist() == [float(message.context.step)]
        steps[message.context.trainer].append(message.context.step)
    assert list(steps.values()) == [list(range(200))] * 3
    for thread in threads:
        thread.join()


def test_two_threads_answer_each_other(network: Network) -> None:
    ours, theirs = network.inbox("ours"), network.inbox("theirs")
    book = {inbox.name: inbox.address for inbox in (ours, theirs)}

    def answer() -> None:
        outbox = network.outbox(book)
        while (step := receive_step(theirs)) >= 0:
            send_tensors(outbox, "ours", step + 1, {})
        outbox.close()

    thread = threading.Thread(target=answer)
    thread.start()
    outbox = network.outbox(book)
    for step in (1, 10, 100, 1000):
        send_tensors(outbox, "theirs", step, {"x": torch.ones(step)})
        assert receive_step(ours) == step + 1
    send_tensors(outbox, "theirs", -1, {})
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


CHILD = """
import sys
from htrain.executor.transport.port import Network
from htrain.executor.engine.context import Context, Spread, process_endpoint
from htrain.executor.transport.wire import Hello, Values
network = Network("tcp")
inbox, outbox = network.inbox("child"), network.outbox({"parent": sys.argv[1]})
outbox.send("parent", Hello("child", {"child": inbox.address}, "", 0))
message, tensors = inbox.receive(60)
outbox.send_values("parent", message, list(tensors), [tensor * 2 for tensor in tensors.values()])
network.close()
"""


def test_tensors_go_to_another_process_and_back(make_network: MakeNetwork) -> None:
    network = make_network("tcp")
    inbox = network.inbox("parent")
    with subprocess.Popen([sys.executable, "-c", CHILD, inbox.address]) as child:
        got = inbox.receive(60)
        assert got is not None, "the other process did not start"
        assert isinstance(got[0], Hello)
        sent = {"small": torch.arange(3.0), "large": torch.arange(50_000.0)}
        send_tensors(network.outbox(got[0].endpoints), "child", 0, sent)
        assert child.wait(WAIT_SECONDS) == 0
    _, received = receive(inbox)  # what was sent just before the other process ended
    assert all(torch.equal(received[name], 2 * sent[name]) for name in sent)


FIRST_AT_ONCE = """
import threading, time
import torch, zmq
from htrain.executor.transport.port import Network
from htrain.executor.engine.context import Context, Spread, process_endpoint
from htrain.executor.transport.wire import Values

def slow(*arguments, made=zmq.Context, **named):
    time.sleep(0.05)  # so that every thread comes upon what another has begun to make
    return made(*arguments, **named)

network = Network("inproc")
zmq.Context = slow
inbox, barrier = network.inbox("inbox"), threading.Barrier(8)

def send(number):
    outbox = network.outbox({"inbox": inbox.address})
    barrier.wait()
    for step in range(3):
        outbox.send_values("inbox", Values("a", Context(0, 0, number, step), 1), ["large"], [torch.full((50_000,), number)])

threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(8)]
for thread in threads:
    thread.start()
for _ in range(24):
    _, tensors = inbox.receive(20)
    print(int(tensors["large"][0]))
for thread in threads:
    thread.join()
network.close()
"""


def test_threads_may_send_their_first_large_message_at_the_same_time() -> None:
    """In a process of its own, which has sent none yet."""
    run = subprocess.run([sys.executable, "-c", FIRST_AT_ONCE], capture_output=True, text=True, timeout=60)
    assert (sorted(run.stdout.split()), run.stderr) == (sorted("01234567" * 3), "")


def test_silence_is_none_and_takes_as_long_as_asked(network: Network) -> None:
    inbox = network.inbox("b")
    outbox = network.outbox({"b": inbox.address})
    for seconds in (0.05, 0.0, -1.0, 0.05):
        began = time.monotonic()
        assert inbox.receive(seconds) is None
        assert max(seconds, 0.0) <= time.monotonic() - began < max(seconds, 0.0) + 5
    outbox.send("b", Ready("a"))
    assert receive(inbox) == (Ready("a"), {})


def test_receiver_wakes_for_a_message_that_comes_while_it_waits(network: Network) -> None:
    inbox = network.inbox("b")
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(inbox.receive(WAIT_SECONDS)))
    thread.start()
    network.outbox({"b": inbox.address}).send("b", Beat("a", {"loss": 0.5}))
    thread.join(WAIT_SECONDS)
    assert got == [(Beat("a", {"loss": 0.5}), {})]


def test_peer_that_never_listened_is_lost_within_the_deadline(make_network: MakeNetwork) -> None:
    address = closed_port()
    outbox = make_network("tcp").outbox({"group_ps:0:1": address}, deadline_seconds=0.2)
    began = time.monotonic()
    with pytest.raises(
        PeerLost, match=rf"^group_ps:0:1 did not take a message within 0.2 s: nobody answers at {address}$"
    ):
        outbox.send("group_ps:0:1", Ready("a"))
    assert 0.2 <= time.monotonic() - began < 5
    assert outbox.bytes_sent == {}


def test_peer_that_has_gone_is_lost_and_the_others_are_not(network: Network) -> None:
    gone, stays = network.inbox("gone"), network.inbox("stays")
    outbox = network.outbox({"gone": gone.address, "stays": stays.address}, deadline_seconds=0.2)
    outbox.send("gone", Ready("a"))
    receive(gone)
    gone.close()
    with pytest.raises(PeerLost, match=r"^gone did not take a message within 0.2 s"):
        send_until_lost(outbox, "gone")
    outbox.send("stays", Ready("a"))
    assert receive(stays) == (Ready("a"), {})


def send_until_lost(outbox: Outbox, peer: str) -> None:
    """ZeroMQ learns of a closed connection in the background: a few messages may still be taken."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        outbox.send(peer, Ready("a"))


def test_peer_may_come_up_after_the_first_send_to_it(make_network: MakeNetwork) -> None:
    network = make_network("tcp")
    address = closed_port()
    sender = threading.Thread(target=lambda: network.outbox({"late": address}).send("late", Ready("a")))
    sender.start()
    inbox = Inbox(network.context, "late", address)
    assert receive(inbox) == (Ready("a"), {})
    sender.join()


def test_offer_drops_a_message_for_a_dead_peer_at_once_and_reaches_a_live_one(network: Network) -> None:
    gone, stays = network.inbox("gone"), network.inbox("stays")
    outbox = network.outbox({"gone": gone.address, "stays": stays.address}, deadline_seconds=1.0)
    for inbox in (gone, stays):
        outbox.send(inbox.name, Ready("a"))
        receive(inbox)
    gone.close()
    with pytest.raises(PeerLost):
        send_until_lost(outbox, "gone")
    began = time.monotonic()
    for _ in range(20):
        outbox.offer("gone", Order("abort"))
    assert time.monotonic() - began < 10, "twenty deadlines"
    outbox.offer("stays", Order("abort"))
    assert receive(stays) == (Order("abort"), {})


def test_name_that_is_in_no_book_is_refused(network: Network) -> None:
    with pytest.raises(PeerLost, match=r"^nobody is known as 'sparse_ps:9': the plan and the run disagree"):
        network.outbox({}).send("sparse_ps:9", Ready("a"))


@pytest.mark.parametrize("address", ["", "tcp://127.0.0.1", "carrier://pigeon"])
def test_address_that_is_none_is_refused(address: str, make_network: MakeNetwork) -> None:
    with pytest.raises(RunError, match=rf"^b has the address '{address}', which is none: "):
        make_network("tcp").outbox({"b": address}).send("b", Ready("a"))


def test_host_of_another_machine_cannot_be_listened_on(make_network: MakeNetwork) -> None:
    network = make_network("tcp")
    network.host = "192.0.2.1"
    with pytest.raises(
        RunError,
        match=r"^trainer:0:0: cannot listen on tcp://192.0.2.1:\*: Cannot assign .*; give an address of this host$",
    ):
        network.inbox("trainer:0:0")


def test_damaged_message_is_refused_and_the_next_one_is_read(network: Network) -> None:
    inbox = network.inbox("b")
    stranger = network.context.socket(zmq.PUSH)
    stranger.connect(inbox.address)
    stranger.send_multipart([b"hello", b"", b"there"])
    with pytest.raises(RunError, match=r"^a message cannot be read: "):
        inbox.receive(WAIT_SECONDS)
    network.outbox({"b": inbox.address}).send("b", Ready("a"))
    assert receive(inbox) == (Ready("a"), {})


def test_stranger_that_speaks_another_protocol_is_refused_and_the_others_are_heard(make_network: MakeNetwork) -> None:
    network = make_network("tcp")
    inbox = network.inbox("b")
    port = int(inbox.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        with pytest.raises(RunError, match=r"^a message cannot be read: "):
            inbox.receive(WAIT_SECONDS)
        network.outbox({"b": inbox.address}).send("b", Ready("a"))
        got = None
        while got is None:
            with contextlib.suppress(RunError):
                got = inbox.receive(WAIT_SECONDS)
    assert got == (Ready("a"), {})


def test_bytes_sent_counts_tensors_and_not_headers(network: Network) -> None:
    inbox = network.inbox("b")
    outbox = network.outbox({"b": inbox.address})
    outbox.send("b", Ready("a"))
    send_tensors(outbox, "b", 0, {"x": torch.zeros(10), "y": torch.zeros(3, dtype=torch.int8)})
    send_tensors(outbox, "b", 1, {"z": torch.zeros(0)})
    send_tensors(outbox, "b", 2, {"x": torch.zeros(50_000)})
    assert outbox.bytes_sent == {"b": 200_043}


def test_tensor_that_no_message_carries_leaves_the_connection_usable(network: Network) -> None:
    inbox = network.inbox("b")
    outbox = network.outbox({"b": inbox.address})
    with pytest.raises(RunError, match=r"^blob 'x' is torch.complex64"):
        send_tensors(outbox, "b", 0, {"y": torch.zeros(2), "x": torch.zeros(2, dtype=torch.complex64)})
    send_tensors(outbox, "b", 1, {"y": torch.zeros(2)})
    assert receive_step(inbox) == 1


def test_received_tensor_outlives_its_inbox_and_its_sender(network: Network) -> None:
    inbox = network.inbox("b")
    outbox = network.outbox({"b": inbox.address})
    send_tensors(outbox, "b", 0, {"large": torch.arange(100_000), "small": torch.arange(4)})
    _, received = receive(inbox)
    outbox.close()
    inbox.close()
    network.close()
    assert torch.equal(received["large"], torch.arange(100_000))
    assert torch.equal(received["small"], torch.arange(4))


def test_network_with_unsent_and_unread_messages_closes(network: Network) -> None:
    inbox = network.inbox("b")
    outbox = network.outbox({"b": inbox.address})
    for step in range(50):
        send_tensors(outbox, "b", step, {"x": torch.zeros(250_000)})
    began = time.monotonic()
    network.close()
    assert time.monotonic() - began < 8


def test_use_after_close_is_an_error_and_not_a_hang(network: Network) -> None:
    inbox = network.inbox("b")
    outbox = network.outbox({"b": inbox.address})
    outbox.send("b", Ready("a"))
    inbox.close()
    outbox.close()
    network.close()
    with pytest.raises(RunError, match=r"^b: cannot receive: "):
        inbox.receive(WAIT_SECONDS)
    with pytest.raises(RunError, match=r"^b: no socket can be opened: "):
        outbox.send("b", Ready("a"))
    with pytest.raises(RunError, match=r"^c: no socket can be opened: [^;]*$"):
        network.inbox("c")


def test_threads_may_open_inboxes_and_outboxes_at_once() -> None:
    """The roles of `--threads` come up while the pulses of others begin."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    network, failed = Network("inproc"), []

    def open_inboxes(number: int) -> None:
        for count in range(200):
            network.inbox(f"{number}/{count}").close()

    def open_outboxes() -> None:
        try:
            for _ in range(1000):
                network.outbox({"0/7": "inproc://nowhere"}).close()
        except RuntimeError as error:
            failed.append(error)

    threads = [threading.Thread(target=open_inboxes, args=(n,)) for n in range(3)] + [
        threading.Thread(target=open_outboxes) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    network.close()
    assert not failed


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_thread_that_still_waits_keeps_its_socket_when_the_network_is_closed(scheme: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, scheme], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("closed\nheard Ready\n", "", 0)


LEFT_OPEN = """
import gc, sys, threading
from htrain.executor.transport.port import Network
from htrain.executor.transport.wire import Ready
network = Network(sys.argv[1])
inbox = network.inbox("b")
outbox = network.outbox({"b": inbox.address})
thread = threading.Thread(target=lambda: print("heard", type(inbox.receive(30)[0]).__name__))
thread.start()
network.close()
del network
gc.collect()
print("closed", flush=True)
outbox.send("b", Ready("a"))
thread.join()
"""


SHORT_OF_FILES = """
import os, resource, sys
from htrain.errors import RunError
from htrain.executor.transport.port import Network
network = Network(sys.argv[1])
inboxes = [network.inbox("first")]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + int(sys.argv[2]), hard))
try:
    inboxes += [network.inbox(f"trainer:0:{number}") for number in range(100)]
except RunError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
network.close()
"""


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("spare", [0, 20, 21])
def test_too_few_open_files_are_named_with_their_cure(scheme: str, spare: int) -> None:
    """In a process of its own: ZeroMQ aborts, an odd number of files left, where it is the one to find out."""
    run = subprocess.run(
        [sys.executable, "-c", SHORT_OF_FILES, scheme, str(spare)], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert re.match(r"trainer:0:\d+: no socket can be opened: Too many open files.*ulimit -n", run.stdout)

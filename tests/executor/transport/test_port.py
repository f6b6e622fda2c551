"""Ports over real sockets: what is sent arrives whole and in order, and nothing waits for ever."""

import subprocess
import sys
import threading
import time

import pytest
import torch
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from htrain.errors import RunError
from htrain.executor.engine.context import Context, Spread, process_endpoint
from htrain.executor.transport.port import Network, sent_by_role
from htrain.executor.transport.wire import Beat, Hello, Order, Ready, Values
from tests.support.ports import SCHEMES, WAIT_SECONDS, MakeNetwork, receive, receive_step, send_tensors


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
network = Network("tcp", token=bytes.fromhex(sys.argv[2]))
inbox, outbox = network.inbox("child"), network.outbox({"parent": sys.argv[1]})
outbox.send("parent", Hello("child", {"child": inbox.address}, "", 0))
message, tensors = inbox.receive(60)
outbox.send_values("parent", message, list(tensors), [tensor * 2 for tensor in tensors.values()])
inbox.close()
outbox.close()
network.close()  # waits until all is sent, whose memory goes with the process
"""


def test_tensors_go_to_another_process_and_back(make_network: MakeNetwork) -> None:
    network = make_network("tcp")
    inbox = network.inbox("parent")
    with subprocess.Popen([sys.executable, "-c", CHILD, inbox.address, network.token.hex()]) as child:
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


def test_damaged_message_is_refused_and_the_next_one_is_read(network: Network) -> None:
    inbox = network.inbox("b")
    role = network.context.socket(zmq.PUSH)
    role.connect(inbox.address)
    role.send_multipart([network.token + b"hello", b"", b"there"])
    with pytest.raises(RunError, match=r"^a message cannot be read: "):
        inbox.receive(WAIT_SECONDS)
    network.outbox({"b": inbox.address}).send("b", Ready("a"))
    assert receive(inbox) == (Ready("a"), {})


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

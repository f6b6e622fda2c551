"""Connections of ports: who cannot be reached is named, strangers are refused, and all that is open can be closed."""

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch

from htrain.errors import PeerLost, RunError
from htrain.executor.transport.port import Keys, Network, Outbox, new_token
from htrain.executor.transport.wire import Order, Ready
from tests.support.ports import SCHEMES, WAIT_SECONDS, MakeNetwork, closed_port, receive, send_tensors


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
    outbox = network.outbox({"late": address})
    sender = threading.Thread(target=lambda: outbox.send("late", Ready("a")))
    sender.start()
    inbox = network.inbox("late", port=int(address.rpartition(":")[2]))
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


def test_stranger_that_speaks_another_protocol_is_dropped_and_the_others_are_heard(make_network: MakeNetwork) -> None:
    network = make_network("tcp")
    inbox = network.inbox("b")
    port = int(inbox.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        assert inbox.receive(0.5) is None
        network.outbox({"b": inbox.address}).send("b", Ready("a"))
        assert receive(inbox) == (Ready("a"), {})
    assert inbox.strangers == network.strangers("b") > 0


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
from htrain.executor.transport.wire import Ready
from tests.support.ports import network_of, remove
network = network_of(sys.argv[1])
inbox = network.inbox("b")
outbox = network.outbox({"b": inbox.address})
thread = threading.Thread(target=lambda: print("heard", type(inbox.receive(30)[0]).__name__))
thread.start()
network.close()
folder = network.folder
del network
gc.collect()
print("closed", flush=True)
outbox.send("b", Ready("a"))
thread.join()
remove(folder)
"""


SHORT_OF_FILES = """
import os, resource, sys
from htrain.errors import RunError
from tests.support.ports import network_of, remove
network = network_of(sys.argv[1])
inboxes = [network.inbox("first")]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + int(sys.argv[2]), hard))
try:
    inboxes += [network.inbox(f"trainer:0:{number}") for number in range(100)]
except RunError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
network.close()
remove(network.folder)
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


SHORT_OF_THREADS = """
import resource, sys
import psutil
from htrain.errors import RunError
from tests.support.ports import network_of, remove
network = network_of(sys.argv[1])
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (4 << 20), hard))  # the stack of a thread takes more
try:
    network.inbox("trainer:0:0")
except RunError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
network.inbox("trainer:0:0").close()
network.close()
remove(network.folder)
"""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_too_few_threads_are_named_with_their_cure(scheme: str) -> None:
    """As where a container's number of processes is limited. In a process of its own: ZeroMQ aborts where it is the one to find out."""
    run = subprocess.run([sys.executable, "-c", SHORT_OF_THREADS, scheme], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert re.match(r"trainer:0:0: no socket can be opened: Resource temporarily unavailable.*ulimit -u", run.stdout)


def test_whoever_has_not_the_keys_of_a_run_is_not_heard() -> None:
    keys = Keys.new()
    token = new_token()  # that the strangers know it is of no use to them
    network, own, plain, strange = (Network(keys=each, token=token) for each in (keys, keys, None, Keys.new()))
    inbox = network.inbox("sparse_ps:0")
    book = {"sparse_ps:0": inbox.address}
    for other in (plain, strange):
        outbox = other.outbox(book, deadline_seconds=0.5)
        with pytest.raises(PeerLost, match="nobody answers"):
            outbox.send("sparse_ps:0", Ready("a stranger"))
        outbox.close()
    outbox = own.outbox(book)
    outbox.send("sparse_ps:0", Ready("a role"))
    send_tensors(outbox, "sparse_ps:0", 3, {"rows": torch.arange(100_000)})
    assert receive(inbox)[0] == Ready("a role")
    assert torch.equal(receive(inbox)[1]["rows"], torch.arange(100_000))
    near = network.outbox(book)  # within the process, nothing is encrypted
    near.send("sparse_ps:0", Ready("beside"))
    assert receive(inbox)[0] == Ready("beside")
    for end in (outbox, near, inbox):
        end.close()
    for each in (network, own, plain, strange):
        each.close()


def test_whoever_comes_from_another_host_is_let_go_at_once() -> None:
    network = Network(hosts=("127.0.0.1",))
    inbox = network.inbox("sparse_ps:0")
    host, _, port = inbox.address.removeprefix("tcp://").rpartition(":")
    for source, answered in (("127.0.0.2", False), ("127.0.0.1", True)):
        with socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0)) as stranger:
            assert bool(stranger.recv(1)) == answered
    own = network.another()
    outbox = own.outbox({"sparse_ps:0": inbox.address})
    outbox.send("sparse_ps:0", Ready("a role"))
    assert receive(inbox)[0] == Ready("a role")
    for end in (outbox, inbox, own, network):
        end.close()


def test_garbage_and_half_handshakes_do_an_encrypted_inbox_no_harm() -> None:
    keys = Keys.new()
    network = Network(keys=keys)
    own = Network(keys=keys, token=network.token)
    inbox = network.inbox("sparse_ps:0")
    host, _, port = inbox.address.removeprefix("tcp://").rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
    strangers = []
    for said in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        greeting[:20],
        greeting,
        greeting + b"\x04\xc8\x05HELLO" + bytes(194),
        bytes(100_000),
    ):
        strangers.append(socket.create_connection((host, int(port)), timeout=10))
        with contextlib.suppress(OSError):
            strangers[-1].sendall(said)
    outbox = own.outbox({"sparse_ps:0": inbox.address})
    outbox.send("sparse_ps:0", Ready("a role"))
    assert receive(inbox)[0] == Ready("a role")
    assert inbox.receive(0.2) is None
    for end in (outbox, inbox, *strangers):
        end.close()
    for each in (network, own):
        each.close()


def test_who_knows_the_same_secret_has_the_same_keys_and_others_have_others() -> None:
    assert Keys.of(b"a secret") == Keys.of(b"a secret")
    assert len({key for secret in (b"a secret", b"a secret ", b"") for key in Keys.of(secret)}) == 6


def test_an_offer_says_whether_it_was_taken(make_network: MakeNetwork) -> None:
    network = make_network("tcp")
    address = closed_port()
    outbox = network.outbox({"peer": address})
    assert not outbox.offer("peer", Ready("a"))
    inbox = network.inbox("peer", port=int(address.rpartition(":")[2]))
    assert inbox.address == address
    outbox.send("peer", Ready("b"))
    assert outbox.offer("peer", Ready("c"))
    assert [receive(inbox)[0] for _ in range(2)] == [Ready("b"), Ready("c")]
    inbox.close()
    deadline = time.monotonic() + WAIT_SECONDS
    while outbox.offer("peer", Ready("d")):
        assert time.monotonic() < deadline

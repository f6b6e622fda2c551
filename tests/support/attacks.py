"""What strangers try at the sockets of a run: each attack goes to every socket that the run listens at (docs/guarantees.md)."""

import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
import zmq

from htrain.executor.engine.context import SYNC_REPLICA, Context
from htrain.executor.host.sockets import folder_of
from htrain.executor.roles.limits import most_message_bytes
from htrain.executor.transport.port import Keys, new_token
from htrain.executor.transport.wire import (
    Addresses,
    Beat,
    Failed,
    Hello,
    Message,
    Order,
    Ready,
    State,
    Values,
    bundle_of,
    encode,
)
from htrain.plan.plan import Plan

Frames = list[bytes]
ENVELOPES = (b"", bytes(16), new_token())  # none, as of a version that has no tokens, zeros, and that of an earlier try
_PATIENCE_MILLISECONDS = 1000  # for a socket that has taken something, and is to take more
_HANDSHAKE_SECONDS = 0.3  # for sockets that may never take anything
_CONNECT_SECONDS = 1.0


# -- where a run listens ---------------------------------------------------------------------------------------------


def addresses_of(process: psutil.Process) -> list[str]:
    """The sockets of ports at which a run listens, this process and all that it has started: `ipc://` or `tcp://`."""
    found = []
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):
            found += [f"ipc://{c.laddr}" for c in each.net_connections("unix") if "/htrain-" in str(c.laddr)]
            if each.name().startswith(("python", "htrain")):
                inet = [c for c in each.net_connections("tcp4") if c.status == psutil.CONN_LISTEN]
                found += [f"tcp://{c.laddr.ip}:{c.laddr.port}" for c in inet]
    return sorted(set(found))


# -- bytes, without a protocol ---------------------------------------------------------------------------------------


def greeting(mechanism: bytes) -> bytes:
    """That of ZMTP 3.1."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def frame_head(num_bytes: int, *, flags: int = 0) -> bytes:
    """The beginning of a long frame."""
    return bytes([flags | 2]) + num_bytes.to_bytes(8, "big")


_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"
NULL = greeting(b"NULL") + bytes([4, len(_READY)]) + _READY
CURVE = greeting(b"CURVE")


def connected(address: str) -> socket.socket:
    """A plain connection. Raises OSError."""
    folder = folder_of(address)
    made = socket.socket(socket.AF_UNIX if folder else socket.AF_INET)
    made.settimeout(_CONNECT_SECONDS)
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    made.connect(address.removeprefix("ipc://") if folder else (host, int(port)))
    return made


def says(said: bytes, *, times: int = 1, holds: bool = True) -> "Act":
    """`times` connections to each socket, which say this, and stay open while the attack lasts if it `holds` them."""

    def act(addresses: Sequence[str], plan: Plan, stack: ExitStack) -> None:
        for address in addresses:
            for _ in range(times):
                with suppress(OSError):
                    made = connected(address)
                    if holds:
                        stack.callback(made.close)
                    with suppress(OSError):
                        made.sendall(said)
                    if not holds:
                        made.close()

    return act


def drips(said: bytes, seconds: float) -> "Act":
    """A byte at a time, for so many seconds."""

    def act(addresses: Sequence[str], plan: Plan, stack: ExitStack) -> None:
        made = []
        for address in addresses:
            with suppress(OSError):
                made.append(connected(address))
                stack.callback(made[-1].close)
        for byte in said:
            for each in made:
                with suppress(OSError):
                    each.sendall(bytes([byte]))
            time.sleep(seconds / len(said))

    return act


def _fills(addresses: Sequence[str], plan: Plan, stack: ExitStack) -> None:
    most = most_message_bytes(plan) - 1
    says(CURVE + frame_head(most, flags=4) + bytes(most - 1))(addresses, plan, stack)


# -- messages --------------------------------------------------------------------------------------------------------

Act = Callable[[Sequence[str], Plan, ExitStack], None]
Prepare = Callable[[zmq.Socket], None]


def sends(made: Callable[[Plan], Sequence[Frames]], prepare: Prepare = lambda sender: None, *, times: int = 1) -> Act:
    """Messages to each socket by ZeroMQ's own hand, in each of ENVELOPES."""

    def act(addresses: Sequence[str], plan: Plan, stack: ExitStack) -> None:
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        messages, senders = made(plan), []
        for address in addresses:
            senders.append(context.socket(zmq.PUSH))
            senders[-1].set(zmq.IMMEDIATE, 1)
            senders[-1].set(zmq.SNDTIMEO, _PATIENCE_MILLISECONDS)
            prepare(senders[-1])
            senders[-1].connect(address)
        time.sleep(_HANDSHAKE_SECONDS)
        for sender in senders:
            if not sender.poll(0, zmq.POLLOUT):
                continue
            with suppress(zmq.Again):
                for _ in range(times):
                    for envelope in ENVELOPES:
                        for header, *rest in messages:
                            sender.send_multipart([envelope + header, *rest])

    return act


def words(*messages: Message) -> Callable[[Plan], list[Frames]]:
    """Messages without tensors."""
    return lambda plan: [[bytes(frame) for frame in encode(message)] for message in messages]


def of_each_role(make: Callable[[str], Message]) -> Callable[[Plan], list[Frames]]:
    """One message in the name of each role."""
    return lambda plan: words(*map(make, plan.cluster.roles))(plan)


def values(change: Callable[[torch.Tensor], torch.Tensor], *, steps: Sequence[int] = range(20)) -> Any:
    """What the trainer and the PSs of a plan send of these steps, ids and gradients, with every tensor changed."""

    def made(plan: Plan) -> list[Frames]:
        found = []
        for device, source in (
            ("trainer", "trainer:0:0/0"),
            ("group_ps:0", "group_ps:0:0"),
            ("sparse_ps:0", "sparse_ps:0"),
        ):
            for names in _sent_by(plan, device):
                bundle = bundle_of(names, [change(torch.ones(32, 4)) for _ in names])
                headers = [Values(source, Context(0, 0, r, step), 32) for step in steps for r in (0, SYNC_REPLICA)]
                found += [[bytes(frame) for frame in encode(header, bundle)] for header in headers]
        return found

    return made


def _sent_by(plan: Plan, device: str) -> list[tuple[str, ...]]:
    """The blobs of each message that a device sends."""
    sent: dict[str, list[str]] = {}
    for op in plan.net_of(device).ops:
        if op.type == "Send":
            sent.setdefault(str(op.attrs["peer"]), []).append(op.inputs[0])
    return [tuple(names) for names in sent.values()]


def _bombs(plan: Plan) -> list[Frames]:
    """Headers that are small and promise much."""
    deep = b"\x91" * 100_000 + b"\xc0"
    long = [
        b"\xdd" + b"\xff" * 4,
        b"\xdf" + b"\xff" * 4,
        b"\xc6" + b"\xff" * 4,
        b"\x93\xa4beat\xa1x\xdf\xff\xff\xff\xff",
    ]
    return [[deep], [b"\x93\xa4beat\xa1x\x81\xa1m" + deep], *([each] for each in long)]


def _twice(plan: Plan) -> list[Frames]:
    """Two blobs of one name; kinds, dimensions and frames that are not each other's; too many frames, and too few."""
    dims = (3).to_bytes(8, "little")
    huge = (2**62).to_bytes(8, "little")
    rows = (
        ([["x", "float32", 1], ["x", "float32", 1]], dims * 2, [bytes(32)]),
        ([["x", "float32", 1]], dims, []),
        ([["x", "float32", 1]], dims, [bytes(16)] * 40),
        ([["x", "float32", 1]], huge, [bytes(16)]),
        ([["x", "complex64", 32]], dims * 32, [bytes(16)]),
        ([["x", "float32", -1]], b"", [bytes(16)]),
    )
    return [
        [msgspec.msgpack.encode(["values", "trainer:0:0/0", [0, 0, 0, 0], 7, k, d]), *frames] for k, d, frames in rows
    ]


def _garbage(plan: Plan) -> list[Frames]:
    draw = random.Random(1)
    return [[draw.randbytes(draw.randrange(300)) for _ in range(draw.randrange(1, 6))] for _ in range(200)]


def _far(tensor: torch.Tensor) -> torch.Tensor:
    return torch.tensor([-1, 2**63 - 1, -(2**63), 10**12])


def _keyed(server: bytes) -> Prepare:
    def prepare(sender: zmq.Socket) -> None:
        public, secret = Keys.new()
        sender.curve_serverkey, sender.curve_publickey, sender.curve_secretkey = server, public, secret

    return prepare


def _named(sender: zmq.Socket) -> None:
    sender.plain_username, sender.plain_password = b"launcher", b"launcher"


_STOP = words(Order("abort"), Order("stop"))

AT_CONNECTIONS: dict[str, Act] = {
    "connections that say nothing, 100 a socket": says(b"", times=100),
    "connections that come and go, 200 a socket": says(b"", times=200, holds=False),
    "half greetings, 50 a socket": says(CURVE[:20], times=50),
    "whole greetings of CURVE, then nothing": says(CURVE, times=50),
    "HELLO of CURVE with garbage": says(CURVE + b"\x04\xc8\x05HELLO" + random.Random(2).randbytes(194), times=20),
    "a greeting of another version": says(b"\xff" + bytes(8) + b"\x7f\x09" + bytes(53), times=20),
    "a greeting, a byte at a time": drips(NULL, 2.0),
    "HTTP": says(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50, times=5),
    "a megabyte of random bytes": says(random.Random(3).randbytes(1 << 20), times=3),
    "a frame of 2^62 bytes": says(NULL + frame_head(2**62) + bytes(1 << 20), times=3),
    "a frame of 10 GiB, of which 1 MiB comes": says(NULL + frame_head(10 << 30) + bytes(1 << 20), times=3),
    "a command of 60 MiB in the handshake, of which 1 MiB comes": says(
        CURVE + frame_head(60 << 20, flags=4) + bytes(1 << 20), times=3
    ),
    "the longest command in the handshake, all but a byte": _fills,
    "orders to stop by the mechanism NULL": sends(_STOP),
    "orders to stop by the mechanism PLAIN": sends(_STOP, _named),
    "orders to stop by CURVE, with a wrong key of the run": sends(_STOP, _keyed(Keys.new().public)),
}

AT_MESSAGES: dict[str, Act] = {
    "orders to stop, pause and resume": sends(words(*map(Order, ("abort", "stop", "pause", "resume", "start")))),
    "orders to save elsewhere": sends(
        words(*(Order("save", folder, number=n) for n in range(9) for folder in ("/tmp/strangers-save", "../x")))
    ),
    "orders to publish elsewhere": sends(words(Order("publish", "../../strangers", "", 3))),
    "Hello with other endpoints": sends(
        of_each_role(lambda role: Hello(role, {f"{role}/control": "tcp://127.0.0.1:9", "sparse_ps:0": "x"}, "h", 1))
    ),
    "another address book": sends(words(Addresses({"sparse_ps:0": "tcp://127.0.0.1:9"}))),
    "State: all is finished": sends(of_each_role(lambda role: State(role, "finished", {}))),
    "State: paused, and saved": sends(
        of_each_role(lambda role: State(role, "paused", {"totals": {"examples": 0}}, 1)), times=9
    ),
    "State: cannot read on": sends(of_each_role(lambda role: State(role, "unreadable", {}))),
    "Failed, of every role": sends(of_each_role(lambda role: Failed(role, "PeerLost", "gone"))),
    "Beats with absurd figures": sends(
        of_each_role(lambda role: Beat(role, {"examples": -(2**60), "steps": "x", "log_loss": float("nan")}))
    ),
    "Ready and State of names that are no role": sends(
        words(
            *(
                said
                for name in ("", "x" * 10_000, "../..", "launcher")
                for said in (Ready(name), State(name, "finished", {}))
            )
        )
    ),
    "gradients that are NaN": sends(values(lambda tensor: tensor * torch.nan)),
    "gradients of wrong shapes": sends(values(lambda tensor: tensor[:, :1].flatten())),
    "gradients of wrong dtypes": sends(values(lambda tensor: tensor.to(torch.int8))),
    "row ids out of range": sends(values(_far)),
    "messages of an earlier try, again": sends(values(lambda tensor: tensor, steps=range(500))),
    "blobs twice, and frames missing or extra": sends(_twice),
    "nested and endless msgpack": sends(_bombs),
    "garbage in frames": sends(_garbage),
    "a flood of small messages": sends(words(*[Order("ping")] * 100), times=40),
    "frames of 1 MiB": sends(lambda plan: [[bytes(100), bytes(1 << 20)]], times=20),
}


@contextmanager
def attacking(act: Act, addresses: Sequence[str], plan: Plan) -> Iterator[None]:
    """Carry out an attack; what it holds open it holds until the end of the block."""
    with ExitStack() as stack:
        act(addresses, plan, stack)
        yield


# -- fuzzed messages -------------------------------------------------------------------------------------------------


def real_messages(plan: Plan) -> list[Frames]:
    """Messages of a run, one of each kind at least."""
    roles = plan.cluster.roles
    made = words(
        Hello(roles[0], {f"{roles[0]}/control": "tcp://127.0.0.1:5000"}, "host", 77), Addresses({"a": "tcp://127.0.0.1:1"}),
        Ready(roles[0], {"steps": 3}), Order("save", "run/checkpoints/examples_7", "", 4), Beat(roles[0], {"loss": 0.5, "staleness": {"0": 3}}),
        State(roles[0], "paused", {"position": {"epoch": 0}}, 4), Failed(roles[0], "RunError", "what"),
    )(plan)  # fmt: skip
    return made + values(lambda tensor: tensor, steps=(3,))(plan) + values(_far, steps=(4,))(plan)


def fuzzed(messages: Sequence[Frames], count: int, seed: int) -> Iterator[Frames]:
    """Changed messages, and every eighth made of random bytes alone."""
    draw = random.Random(seed)
    for number in range(count):
        if number % 8 == 0:
            yield [draw.randbytes(draw.choice((0, 1, 5, 40, 300))) for _ in range(draw.randrange(1, 4))]
            continue
        frames = [bytearray(frame) for frame in draw.choice(messages)]
        for _ in range(draw.choice((1, 1, 2, 5))):
            _change(frames, draw, messages)
        yield [bytes(frame) for frame in frames] or [b""]


def _change(frames: list[bytearray], draw: random.Random, messages: Sequence[Frames]) -> None:
    place = draw.randrange(len(frames)) if frames else 0
    how = draw.randrange(6) if frames else 5
    if how == 0 and frames[place]:
        frames[place][draw.randrange(len(frames[place]))] = draw.choice(
            (0, 0x7F, 0x80, 0xC1, 0xFF, draw.randrange(256))
        )
    elif how == 1:
        del frames[place][draw.randrange(len(frames[place]) + 1) :]
    elif how == 2:
        begin = draw.randrange(len(frames[place]) + 1)
        frames[place][begin:begin] = draw.randbytes(draw.randrange(1, 20))
    elif how == 3:
        del frames[place]
    elif how == 4:
        frames.insert(place, bytearray(frames[place]))
    else:
        frames.append(bytearray(draw.choice(draw.choice(messages))))


@dataclass(frozen=True)
class Fuzz:
    """What became of fuzzed messages that were sent."""

    sent: int
    seconds: float


def send_fuzzed(addresses: Sequence[str], plan: Plan, count: int, seed: int = 0) -> Fuzz:
    """Send fuzzed messages, in each of ENVELOPES, to the sockets of a run in turn, where these take any."""
    began, messages = time.monotonic(), real_messages(plan)
    context = zmq.Context()
    senders = []
    for address in addresses:
        sender = context.socket(zmq.PUSH)
        sender.set(zmq.IMMEDIATE, 1)
        sender.set(zmq.SNDTIMEO, 10_000)
        sender.connect(address)
        senders.append(sender)
    time.sleep(_HANDSHAKE_SECONDS)
    senders = [sender for sender in senders if sender.poll(0, zmq.POLLOUT)]
    if not senders:
        count = 0
    for number, (header, *rest) in enumerate(fuzzed(messages, count, seed)):
        senders[number % len(senders)].send_multipart([ENVELOPES[number % len(ENVELOPES)] + header, *rest])
    context.destroy(linger=10_000)
    return Fuzz(count, time.monotonic() - began)


def folder_untouched() -> bool:
    """Whether no role has saved where strangers told it to."""
    return not Path("/tmp/strangers-save").exists()

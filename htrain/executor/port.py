"""Ports: the only door to ZeroMQ. An Inbox receives, an Outbox sends; each belongs to one thread."""

import threading
from collections.abc import Sequence

import torch
import zmq

from htrain.errors import PeerLost
from htrain.executor.wire import Message, Values, decode, encode, spec_of

_COPY_BELOW_BYTES = 64 * 1024  # sending a small frame is cheaper by copy than by tracking its memory
_CONNECT_SECONDS = 15.0


class Network:
    """Where endpoints of one process live: `scheme` is `inproc` for roles that share a process, `tcp` for others."""

    def __init__(self, scheme: str = "tcp", host: str = "127.0.0.1") -> None:
        self.scheme = scheme
        self.host = host
        self.context = zmq.Context(io_threads=1)
        self.context.set(zmq.MAX_SOCKETS, 65_000)
        self._number = 0
        self._lock = threading.Lock()

    def inbox(self, name: str) -> "Inbox":
        """A new endpoint called `name`."""
        if self.scheme == "tcp":
            return Inbox(self.context, name, f"tcp://{self.host}:*")
        with self._lock:
            self._number += 1
            return Inbox(self.context, name, f"inproc://{self._number}")

    def outbox(self, book: dict[str, str]) -> "Outbox":
        """A sender to the endpoints of `book`, for one thread."""
        return Outbox(self.context, book)

    def close(self) -> None:
        """Close every socket and end; what is not sent within a second is dropped."""
        self.context.destroy(linger=1000)


class Inbox:
    """Receives messages for one endpoint, from anybody, in the order in which each peer sent them."""

    def __init__(self, context: zmq.Context, name: str, bind: str) -> None:
        self.name = name
        self._socket = context.socket(zmq.PULL)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(bind)
        self.address: str = self._socket.get(zmq.LAST_ENDPOINT).decode().rstrip("\0")

    def receive(self, seconds: float) -> tuple[Message, dict[str, torch.Tensor]] | None:
        """The next message and its tensors, or None when none came within `seconds`. Raises RunError for a damaged one."""
        if not self._socket.poll(int(seconds * 1000)):
            return None
        frames = self._socket.recv_multipart(copy=False)
        return decode([frame.buffer for frame in frames])

    def close(self) -> None:
        self._socket.close()


class Outbox:
    """Sends messages to endpoints by name; connects on first use. For one thread. `bytes_sent` counts tensor bytes by peer."""

    def __init__(self, context: zmq.Context, book: dict[str, str]) -> None:
        self._context = context
        self._book = book
        self._sockets: dict[str, zmq.Socket] = {}
        self.bytes_sent: dict[str, int] = {}

    def send(self, peer: str, message: Message) -> None:
        """Send a message without tensors. Raises PeerLost when `peer` cannot be reached."""
        self._send(peer, encode(message))

    def send_values(self, peer: str, values: Values, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
        """Send blobs. The tensors must not change afterwards: they are not copied. Raises PeerLost."""
        values.tensors = [spec_of(name, tensor) for name, tensor in zip(names, tensors, strict=True)]
        frames = encode(values, tensors)
        self.bytes_sent[peer] = self.bytes_sent.get(peer, 0) + sum(len(frame) for frame in frames)
        self._send(peer, frames)

    def _send(self, peer: str, frames: Sequence[bytes | memoryview]) -> None:
        socket = self._sockets.get(peer) or self._connect(peer)
        copy = all(len(frame) < _COPY_BELOW_BYTES for frame in frames)
        try:
            socket.send_multipart(frames, copy=copy)
        except zmq.Again as error:
            raise PeerLost(
                f"{peer} did not take a message within {_CONNECT_SECONDS:.0f} s: it is not reachable"
            ) from error

    def _connect(self, peer: str) -> zmq.Socket:
        address = self._book.get(peer)
        if address is None:
            raise PeerLost(f"nobody is known as '{peer}': the plan and the run disagree about the roles")
        socket = self._context.socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.IMMEDIATE, 1)  # queue only on a live connection, so that a dead peer is noticed
        socket.set(zmq.SNDTIMEO, int(_CONNECT_SECONDS * 1000))
        socket.set(zmq.LINGER, 1000)
        socket.connect(address)
        self._sockets[peer] = socket
        return socket

    def close(self) -> None:
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()

"""The sockets between workers from outside and servers: one that a server listens at, one for each server at a worker. Each is one thread's at a time."""

import errno
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import zmq

from htrain.errors import RunError

_LINGER_MILLISECONDS = 1000
_MOST_QUEUED = 1000  # messages of one connection, each way: a worker asks, and waits for the answer; who asks and never reads loses answers
_FILES_OF_A_SOCKET = 8  # ZeroMQ aborts the process where it finds out itself that there are none left


class Received(NamedTuple):
    """A message, and by what name its sender is answered."""

    sender: bytes
    frames: list[Any]


class Listener:
    """Where one server takes messages of any worker. `address` is where to connect: the port that was chosen is in it."""

    def __init__(self, host: str, port: int, most_bytes: int) -> None:
        """Frames of more than `most_bytes` end the connection of who sends them. Raises RunError where nothing can listen there."""
        self._context = zmq.Context(io_threads=1)
        self._socket = _socket(self._context, zmq.ROUTER)
        self._socket.set(zmq.MAXMSGSIZE, most_bytes)
        self._socket.set(zmq.RCVHWM, _MOST_QUEUED)
        self._socket.set(zmq.SNDHWM, _MOST_QUEUED)
        where = f"tcp://{host}:{port or '*'}"
        try:
            self._socket.bind(where)
        except zmq.ZMQError as error:
            self._close()
            raise RunError(
                f"cannot listen on {where}: {zmq.strerror(error.errno or 0)}; choose another with --listen"
            ) from error
        self.address: str = self._socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def receive(self, seconds: float, descriptors: Iterable[int] = ()) -> Received | None:
        """The next message; None where `seconds` have passed, or one of the descriptors can be read."""
        poller = zmq.Poller()
        for source in (self._socket, *descriptors):
            poller.register(source, zmq.POLLIN)
        ready = dict(poller.poll(math.ceil(seconds * 1000) if seconds < math.inf else None))
        if self._socket not in ready:
            return None
        sender, *frames = self._socket.recv_multipart(copy=False)
        return Received(bytes(sender.buffer), [frame.buffer for frame in frames])

    def send(self, receiver: bytes, frames: Sequence[Any]) -> None:
        """Answer. To a worker that is gone nothing is sent."""
        self._socket.send_multipart([receiver, *frames])

    def close(self) -> None:
        """For the thread that receives."""
        self._close()

    def _close(self) -> None:
        self._socket.close()
        self._context.destroy()


class Caller:
    """A worker's connections, one to each server by number; they are made anew where they break."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._context = zmq.Context(io_threads=1)
        self._sockets = [self._connected(address) for address in addresses]
        self._poller = zmq.Poller()
        for socket in self._sockets:
            self._poller.register(socket, zmq.POLLIN)

    def _connected(self, address: str) -> Any:
        socket = _socket(self._context, zmq.DEALER)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise RunError(f"'{address}' is no address, want HOST:PORT: {zmq.strerror(error.errno or 0)}") from error
        return socket

    def send(self, server: int, frames: Sequence[Any]) -> None:
        """Send to one server; what it does not take now it gets when it is there."""
        self._sockets[server].send_multipart(frames)

    def receive(self, seconds: float) -> tuple[int, list[Any]] | None:
        """The next message, and which server sent it; None where none came within `seconds`."""
        ready = dict(self._poller.poll(max(0, math.ceil(seconds * 1000))))
        for server, socket in enumerate(self._sockets):
            if socket in ready:
                return server, [frame.buffer for frame in socket.recv_multipart(copy=False)]
        return None

    def close(self) -> None:
        """End every connection; what is not sent within a second is dropped."""
        for socket in getattr(self, "_sockets", ()):
            socket.close()
        self._context.destroy()


def _socket(context: zmq.Context, kind: int) -> Any:
    try:
        _reserve_files()
        socket = context.socket(kind)
    except (zmq.ZMQError, OSError) as error:
        raise RunError(
            f"no socket can be opened: {os.strerror(error.errno or errno.EMFILE)}; allow this process more open files (ulimit -n)"
        ) from error
    socket.set(zmq.LINGER, _LINGER_MILLISECONDS)  # from the beginning: a context that is collected would wait for ever
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    return socket


def _reserve_files() -> None:
    files: list[int] = []
    try:
        for _ in range(_FILES_OF_A_SOCKET):
            files.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for file in files:
            os.close(file)

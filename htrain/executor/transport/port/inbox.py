"""An inbox receives messages for one endpoint."""

import errno
import math
import struct
import time
from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import zmq

from htrain.errors import RunError
from htrain.executor.host.sockets import folder_of
from htrain.executor.transport.port.keys import Keys, numbered
from htrain.executor.transport.port.sockets import BUFFER_BYTES, open_socket, reason
from htrain.executor.transport.wire import Message, behind, decode
from htrain.ops.bundle import Bundle
from htrain.sync.sessions import Arrivals

if TYPE_CHECKING:
    from htrain.executor.transport.port.keeper import Keeper

NUMBERED = struct.Struct(
    "<8sQ6s"
)  # behind the token: the session, the number, and where to tell what was heard, as `reply_of` has it
_MOST_WAITING = 1024  # connections of a moment: beyond, those of a folder's socket are refused, and tried again a tenth of a second later
_MOST_QUEUED = 1000  # messages of one connection that an inbox holds: what roles have under way at once is far less, and waits with its sender beyond
_MOST_DROPPED = 256  # messages that one `receive` drops: whoever calls it has something else to look at, too

Frames = list[memoryview]


class Inbox:
    """Receives messages for one endpoint, from anybody, in the order in which each outbox sent them.

    `address` is what others connect to: the port that was chosen for `tcp://host:*` is in it. At `near`, where there is one, outboxes of
    this process reach it too. Messages that do not begin with its `token` are dropped, and counted in `strangers`; whoever sends a frame of more than
    `most_bytes`, or comes from none of `hosts`, where there are some, loses its connection. Those that are numbered are taken once, in order, and the `keeper`
    tells their senders.
    """

    def __init__(
        self,
        context: zmq.Context,
        name: str,
        bind: str,
        near: str = "",
        *,
        keys: Keys | None = None,
        token: bytes = b"",
        hosts: Collection[str] = (),
        most_bytes: int = 0,
        keeper: "Keeper | None" = None,
    ) -> None:
        self.name = name
        self.closed = False
        self.strangers = 0
        self._token = token
        self._numbered = numbered(token)
        self._keeper = keeper
        self._arrivals: Arrivals[Frames] = Arrivals()
        self._taken: deque[Frames] = deque()
        self.socket = open_socket(context, zmq.PULL, name)
        if keys:
            self.socket.curve_server = True
            self.socket.curve_secretkey = keys.secret
        self.socket.set(zmq.RCVHWM, _MOST_QUEUED)
        self.socket.set(zmq.MAXMSGSIZE, most_bytes or -1)
        self.socket.set(zmq.BACKLOG, _MOST_WAITING)
        if folder_of(bind):
            self.socket.set(zmq.RCVBUF, BUFFER_BYTES)
        self.socket.set(zmq.LINGER, 0)
        for host in hosts:
            self.socket.set(zmq.TCP_ACCEPT_FILTER, host.encode())
        try:
            self.socket.bind(bind)
        except zmq.ZMQError as error:
            self.socket.close()
            cure = "give an address of this host"
            if folder_of(bind):
                cure = "let TMPDIR name another folder of this host"
            elif error.errno == errno.EADDRINUSE:
                cure = "give another port"
            raise RunError(f"{name}: cannot listen on {bind}: {reason(error)}; {cure}") from error
        self.address: str = self.socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        if near:
            self.socket.bind(near)
        self._timeout_milliseconds = -1

    def receive(self, seconds: float) -> tuple[Message, Bundle] | None:
        """The next message and its tensors, or None when none came within `seconds`, or none but many of strangers, or many that had come before.

        Raises RunError for a damaged message, which is then gone: the next call gives the next one.
        """
        until = 0.0
        for _ in range(_MOST_DROPPED):
            if self._taken:
                return decode(self._taken.popleft())
            frames = self._frames(seconds)
            if frames is None:
                return None
            header = behind(self._token, frames[0])
            if header is not None:
                frames[0] = header
                return decode(frames)
            self._take_numbered(frames)
            del frames
            if not self._taken:
                until = until or time.monotonic() + seconds
                seconds = until - time.monotonic()
        return None

    def _take_numbered(self, frames: Frames) -> None:
        """Keep a numbered message until it is its turn; count what is none as a stranger's."""
        header = behind(self._numbered, frames[0])
        if header is None or self._keeper is None or len(header) < NUMBERED.size:
            self.strangers += 1
            return
        session, number, reply = NUMBERED.unpack_from(header)
        frames[0] = header[NUMBERED.size :]
        arrivals = self._arrivals
        self._taken.extend(arrivals.arrived(session, number, frames))
        self._keeper.tell(reply, session, arrivals.heard.get(session, 0))  # what comes again may have been told in vain

    def _frames(self, seconds: float) -> Frames | None:
        """The next message of anybody. Raises RunError where the socket is closed."""
        timeout = max(0, math.ceil(seconds * 1000))
        try:
            if timeout != self._timeout_milliseconds:
                self.socket.set(zmq.RCVTIMEO, timeout)
                self._timeout_milliseconds = timeout
            frame = self.socket.recv(copy=False)
            frames = [frame.buffer]
            while frame.more:  # the frames of a message come together or not at all
                frame = self.socket.recv(copy=False)
                frames.append(frame.buffer)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise RunError(f"{self.name}: cannot receive: {reason(error)}") from error
        return frames

    def refuse(self) -> None:
        """Count the message that was received last as a stranger's: it asks for what no role does."""
        self.strangers += 1

    def wait(self, seconds: float, descriptors: Iterable[int] = ()) -> None:
        """Return as soon as a message has come or one of the descriptors can be read, or when `seconds` have passed, if they are finite."""
        if self._taken:
            return
        poller = zmq.Poller()
        for source in (self.socket, *descriptors):
            poller.register(source, zmq.POLLIN)
        poller.poll(math.ceil(seconds * 1000) if seconds < math.inf else None)

    def close(self) -> None:
        """Stop receiving; what has come and was not received is dropped. For the thread that receives."""
        self.socket.close()
        self.closed = True

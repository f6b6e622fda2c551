"""An outbox sends messages to endpoints by name."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
import zmq

from htrain.errors import PeerLost, RunError
from htrain.executor.engine.context import Context, Spread, process_endpoint
from htrain.executor.host.sockets import folder_of
from htrain.executor.transport.port.keys import Keys
from htrain.executor.transport.port.sockets import BUFFER_BYTES, LINGER_MILLISECONDS, open_socket, reason
from htrain.executor.transport.wire import Frame, Message, Values, bundle_of, encode
from htrain.net.names import role_at
from htrain.ops.bundle import Bundle

if TYPE_CHECKING:
    from htrain.executor.transport.port.session import Session

SEND_SECONDS = 15.0
_COPY_BELOW_BYTES = (
    64 * 1024
)  # below this, a copy costs less CPU than telling Python when ZeroMQ is done with the memory
_MOST_UNHEARD_BYTES = 256 << 20  # that a peer may leave unheard for as long as the deadline
_POSTED_BYTES = 1024  # that keeping a message takes beside its own
_LOOK_MILLISECONDS = 50  # whether a peer that takes nothing is known to be gone
_RECONNECT_MILLISECONDS, _MOST_RECONNECT_MILLISECONDS = 20, 500
_MORE = int(zmq.SNDMORE)


class Watches(Protocol):
    """Who is told of each new connection of an outbox, before it connects."""

    def session(self, socket: zmq.Socket, peer: str, address: str) -> "Session | None":
        """What numbers its messages, if anything does."""


class Outbox:
    """Sends messages to endpoints by name; connects on first use. For one thread.

    A peer has `deadline_seconds` to be reachable, at the first message and at each later one, and to hear something of much that waits for it. With a
    `keeper`, messages of a connection that breaks are sent again; without one, a message that was queued is lost then, as it is in either case with a peer
    that dies. What goes to a role that is known to be gone is dropped, until it is found again. `bytes_sent` counts the bytes of tensors by peer, an endpoint.
    """

    def __init__(
        self,
        context: zmq.Context,
        book: Mapping[str, str],
        *,
        deadline_seconds: float = SEND_SECONDS,
        spread: Spread = Spread(),  # noqa: B008  frozen
        keys: Keys | None = None,
        token: bytes = b"",
        most_bytes: int = 0,
        keeper: Watches | None = None,
    ) -> None:
        self._context = context
        self._keys = keys
        self._token = token
        self._keeper = keeper
        self._most_bytes = most_bytes or math.inf
        self._book = dict(book)
        self._news: deque[tuple[str, Mapping[str, str]]] = deque()
        self._gone: set[str] = set()
        self._spread = spread
        self._processes: dict[str, int] = {}
        self._deadline_seconds = deadline_seconds
        self._sockets: dict[str, zmq.Socket] = {}
        self._sends: dict[str, Callable[..., Any]] = {}
        self._sessions: dict[str, Session | None] = {}
        self.closed = False
        self.bytes_sent: dict[str, int] = {}
        self.while_waiting: Callable[[], None] | None = (
            None  # may say of a role that it is lost, which ends the wait for it
        )

    def lost(self, role: str) -> None:
        """A role is gone, and will be begun again: nothing more goes to it. From any thread."""
        self._news.append((role, {}))

    def found(self, role: str, book: Mapping[str, str]) -> None:
        """A role has been begun again, and its endpoints are at these addresses. From any thread."""
        self._news.append((role, book))

    def send(self, peer: str, message: Message) -> None:
        """Send a message without tensors. Raises PeerLost when `peer` cannot be reached. The message may come all the same where the connection to it has
        broken meanwhile, and is gone otherwise; those that are sent later come in either case.
        """
        self._send(peer, encode(message))

    def post(self, peer: str, message: Message) -> bool:
        """Send a message without tensors as soon as `peer` can take it, in the order of all that is sent; never waits. Between hosts it is kept until it is
        heard, whatever becomes of connections. Within one these break only with the peer: there it is an offer.

        False where it is dropped: the peer is gone, or leaves more unheard than is kept of it.
        """
        if self._is_gone(peer):
            return False
        send = self._sends.get(peer) or self._connect(peer)
        session = self._sessions.get(peer)
        if not session:
            return self.offer(peer, message)
        (header,) = encode(message)
        num_bytes = len(header) + _POSTED_BYTES
        if session.num_bytes + num_bytes > _MOST_UNHEARD_BYTES:
            return False
        (frame,) = session.number([header], num_bytes, time.monotonic())
        try:
            send(frame, zmq.DONTWAIT, False)
        except zmq.Again:
            session.untaken(time.monotonic())
        return True

    def is_reached(self, peer: str) -> bool:
        """Whether a connection to `peer` stands. Raises RunError where its address is none."""
        if peer not in self._sends:
            self._connect(peer)
        return bool(self._sockets[peer].poll(0, zmq.POLLOUT))

    def is_heard(self, peer: str) -> bool:
        """Whether all that was posted to `peer` was heard, as far as that is known."""
        session = self._sessions.get(peer)
        return not session or not session.num_bytes

    def offer(self, peer: str, message: Message) -> bool:
        """Send a message without tensors if `peer` can take it at once; drop it otherwise, and return False. Never waits, and never sends again.

        The first word to a peer must be a `send`: a connection that is still being made takes nothing.
        """
        return self.offer_frames(peer, [self._token + encode(message)[0]])

    def offer_frames(self, peer: str, frames: Sequence[Frame]) -> bool:
        """The same of a message as it travels."""
        if self._is_gone(peer):
            return False
        send = self._sends.get(peer) or self._connect(peer)
        first, *rest = frames
        try:
            send(first, zmq.DONTWAIT | (_MORE if rest else 0), False)
        except zmq.Again:
            return False
        return _took_rest(send, rest)

    def send_values(
        self, peer: str, values: Values, names: Sequence[str], tensors: Sequence[torch.Tensor] | Bundle
    ) -> None:
        """Send blobs, tensors or a bundle of them, to the process of the peer that has the context. They must not change afterwards: large ones are not
        copied.

        Raises PeerLost when `peer` cannot be reached, RunError for a dtype that messages do not carry, and for more bytes than the run's messages have.
        """
        bundle = tensors if isinstance(tensors, Bundle) else bundle_of(names, tensors)
        num_bytes = bundle.num_bytes
        if num_bytes > self._most_bytes:  # its inbox would end the connection, and nobody would know why
            raise RunError(
                f"a message to {peer} has {num_bytes:,} bytes of tensors; by its plan, this run has none of more than {self._most_bytes:,}: "
                "are lists of the data far longer than where it was compiled? compile the plan again with this data"
            )
        peer = self._process(peer, values.context)
        self._send(peer, encode(values, bundle), num_bytes)
        self.bytes_sent[peer] = self.bytes_sent.get(peer, 0) + num_bytes

    def _process(self, peer: str, context: Context) -> str:
        """The endpoint that takes what belongs to a context: the peer's, or that of one of its processes."""
        count = self._processes.get(peer)
        if count is None:
            count = 1
            while process_endpoint(peer, count) in self._book:
                count += 1
            self._processes[peer] = count
        return peer if count == 1 else process_endpoint(peer, self._spread.process_of(context, count))

    def _is_gone(self, peer: str) -> bool:
        """Whether nothing can be said to an endpoint, because its role is gone, as far as this thread was told."""
        while self._news:
            role, book = self._news.popleft()
            for endpoint in [endpoint for endpoint in self._sockets if role_at(endpoint) == role]:
                self._sockets.pop(endpoint).close(0)
                del self._sends[endpoint]
                self._sessions.pop(endpoint, None)
            self._book |= book
            if book:
                self._gone.discard(role)
            else:
                self._gone.add(role)
        return bool(self._gone) and role_at(peer) in self._gone

    def _send(self, peer: str, frames: list[Frame], num_bytes: int = 0) -> None:
        if self._is_gone(peer):
            return
        send = self._sends.get(peer) or self._connect(peer)
        session = self._sessions.get(peer)
        if session:
            frames = self._numbered(peer, session, frames, num_bytes)
        else:
            frames[0] = self._token + frames[0]
        first, *rest = frames
        try:
            self._given(peer, send, first, _MORE if rest else 0)
            if not _took_rest(send, rest) and session:
                session.untaken(time.monotonic())
        except zmq.Again as error:
            if session:
                session.take_back()
            if peer not in self._sends:  # its role is gone
                return
            seconds = f"{self._deadline_seconds:g} s"
            raise PeerLost(
                f"{peer} did not take a message within {seconds}: nobody answers at {self._book[peer]}"
            ) from error
        except zmq.ZMQError as error:
            raise RunError(f"cannot send to {peer} at {self._book[peer]}: {reason(error)}") from error

    def _given(self, peer: str, send: Callable[..., Any], frame: Frame, flags: int) -> None:
        """Give the first frame of a message, once the connection takes it. Raises zmq.Again where it does not in time, or the peer is found to be gone."""
        deadline = 0.0
        while True:
            try:
                send(frame, zmq.DONTWAIT | flags, False)
                return
            except zmq.Again:
                deadline = deadline or time.monotonic() + self._deadline_seconds
                self._sockets[peer].poll(_LOOK_MILLISECONDS, zmq.POLLOUT)
                if self.while_waiting:
                    self.while_waiting()
                if self._is_gone(peer) or peer not in self._sockets or time.monotonic() > deadline:
                    raise

    def _numbered(self, peer: str, session: "Session", frames: list[Frame], num_bytes: int) -> list[Frame]:
        """A message under the next number of its session. Raises PeerLost where a peer leaves too much unheard for too long."""
        now = time.monotonic()
        if session.num_bytes > _MOST_UNHEARD_BYTES and session.unheard_seconds(now) > self._deadline_seconds:
            raise PeerLost(
                f"{peer} has not said for {self._deadline_seconds:g} s what it has heard: can it reach {session.reply_address}, where that is listened for?"
            )
        return session.number(frames, num_bytes, now)

    def _connect(self, peer: str) -> Callable[..., Any]:
        """A new connection's `send(frame, flags, copy)`."""
        address = self._book.get(peer)
        if address is None:
            raise PeerLost(f"nobody is known as '{peer}': the plan and the run disagree about the roles")
        is_remote = address.startswith("tcp://")
        socket = open_socket(self._context, zmq.PUSH, peer)
        socket.copy_threshold = _COPY_BELOW_BYTES
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.IMMEDIATE, 1)  # queue only on a live connection, so that a dead peer is noticed
        socket.set(zmq.SNDTIMEO, math.ceil(self._deadline_seconds * 1000))
        socket.set(zmq.LINGER, LINGER_MILLISECONDS)
        if folder_of(address):
            socket.set(zmq.SNDBUF, BUFFER_BYTES)
        if is_remote:
            socket.set(zmq.RECONNECT_IVL, _RECONNECT_MILLISECONDS)
            socket.set(zmq.RECONNECT_IVL_MAX, _MOST_RECONNECT_MILLISECONDS)
        if self._keys and is_remote:
            socket.curve_serverkey = self._keys.public
            socket.curve_publickey, socket.curve_secretkey = self._keys
        try:
            if self._keeper and is_remote:
                self._sessions[peer] = self._keeper.session(socket, peer, address)
            socket.connect(address)
        except zmq.ZMQError as error:
            socket.close()
            raise RunError(f"{peer} has the address '{address}', which is none: {reason(error)}") from error
        except RunError:  # no more files
            socket.close()
            raise
        self._sockets[peer] = socket
        self._sends[peer] = socket.send
        return socket.send

    def close(self) -> None:
        """Close every connection; what is not sent within a second is dropped. For the thread that sends."""
        self._sends.clear()
        while self._sockets:
            self._sockets.popitem()[1].close()
        self.closed = True


MakeOutbox = Callable[[dict[str, str], Watches], Outbox]


def sent_by_role(outboxes: Iterable[Outbox]) -> dict[str, int]:
    """Bytes of tensors that went to each role, whichever endpoint of it."""
    sent: dict[str, int] = {}
    for outbox in outboxes:
        for endpoint, num_bytes in outbox.bytes_sent.copy().items():
            role = role_at(endpoint)
            sent[role] = sent.get(role, 0) + num_bytes
    return sent


def _took_rest(send: Callable[..., Any], frames: Sequence[Frame]) -> bool:
    """Give a connection, which has taken a message's first frame, those behind it; whether it took them all.

    It takes them at once, unless it has broken in between: then what it had is gone, and a frame that it refuses is not to be offered again: it would go by the
    next connection, as a message of its own. Those behind that one are, for libzmq counts them off.
    """
    took = True
    for place, frame in enumerate(frames, 1):
        try:
            send(frame, zmq.DONTWAIT | (_MORE if place < len(frames) else 0), False)
        except zmq.Again:
            took = False
    return took

"""Ports: the only door to ZeroMQ. An Inbox receives, an Outbox sends; each belongs to one thread at a time.

Queues of senders are unbounded: the protocol bounds them, since a step sends a fixed number of messages and then waits. What an inbox takes of one
connection is bounded, since anybody may be at its other end. A message begins with the token of its run's try: one without it is a stranger's. It is
counted and dropped before anything of it is decoded.
"""

import contextlib
import errno
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import torch
import zmq
from zmq.utils import z85
from zmq.utils.garbage import gc as sent_memory

from htrain.errors import PeerLost, RunError
from htrain.executor.engine.context import Context, Spread, process_endpoint
from htrain.executor.host.sockets import folder_of
from htrain.executor.transport.wire import Frame, Message, Values, behind, bundle_of, decode, encode
from htrain.net.names import role_at
from htrain.ops.bundle import Bundle

SEND_SECONDS = 15.0
_COPY_BELOW_BYTES = (
    64 * 1024
)  # below this, a copy costs less CPU than telling Python when ZeroMQ is done with the memory
_FILES_OF_A_SOCKET = 8  # its mailbox, the listener or connection, the resolver's, and some for the other threads
_LINGER_MILLISECONDS = 1000
_BUFFER_BYTES = (
    4 << 20
)  # of a folder's socket, or what the system allows: unlike those of TCP they do not grow by themselves
_MOST_WAITING = 1024  # connections of a moment: beyond, those of a folder's socket are refused, and tried again a tenth of a second later
_MOST_QUEUED = 1000  # messages of one connection that an inbox holds: what roles have under way at once is far less, and waits with its sender beyond
_MOST_DROPPED = (
    256  # messages of strangers that one `receive` drops: whoever calls it has something else to look at, too
)
_TOKEN_BYTES = 16
_MORE = int(zmq.SNDMORE)
_KEEPER_LOCK = threading.Lock()
_LEFT_OPEN: list[zmq.Context] = []


class Keys(NamedTuple):
    """What the processes of one run have in common, and nobody else knows, in Z85: a key pair of CurveZMQ.

    Whoever does not know the public one cannot begin a handshake, in which it does not cross the network in the clear: it is the run's secret, as much as the
    other.
    """

    public: bytes
    secret: bytes

    @classmethod
    def new(cls) -> "Keys":
        """Those of a new run."""
        return cls(*zmq.curve_keypair())

    @classmethod
    def of(cls, secret: bytes) -> "Keys":
        """Those that everybody finds who knows a secret."""
        own = z85.encode(blake2b(secret, digest_size=32, person=b"htrain secret").digest())
        return cls(zmq.curve_public(own), own)

    @property
    def token(self) -> bytes:
        """What messages begin with, among those who have these keys."""
        return blake2b(self.secret, digest_size=_TOKEN_BYTES, person=b"htrain token").digest()


class Network:
    """Where endpoints of one process live: `scheme` is `inproc` for roles that share a process, `ipc` for those that share a host and a `folder`, which nobody
    else can look into, `tcp` for others. `spread` says which process of a role takes a pass, where it has several; `is_shared` whether several roles are in
    this process. Others reach it at `host`, trainers each other at `trainers_host`, which may be on a network of their own. With `keys`, what goes by `tcp` is
    encrypted, and comes from nobody who does not have them. `token` is what all processes of one try of a run have in common: where it is not given, that of
    the keys, or a new one. Of `hosts`, where they are said, come all connections by `tcp`: those of others are closed at once. Inboxes that are made afterwards
    take no frame of more than `most_bytes`, 0 for any."""

    def __init__(
        self,
        scheme: str = "tcp",
        host: str = "127.0.0.1",
        trainers_host: str = "",
        folder: Path | None = None,
        keys: Keys | None = None,
        token: bytes = b"",
        hosts: Collection[str] = (),
    ) -> None:
        self.scheme = scheme
        self.hosts = hosts
        self.keys = keys
        self.token = token or (keys.token if keys else new_token())
        self.most_bytes = 0
        self.folder = folder
        self.is_shared = scheme == "inproc"
        self.host = host
        self.trainers_host = trainers_host or host
        self.spread = Spread()
        self.context = zmq.Context(io_threads=1)
        self.context.set(zmq.MAX_SOCKETS, 65_000)
        self._number = 0
        self._shared: dict[str, Any] = {}
        self._near: dict[str, str] = {}
        self._ends: list[Inbox | Outbox] = []
        self._lock = threading.Lock()

    @classmethod
    def beside(cls, address: str, token: bytes) -> "Network":
        """That of another process of this host, which can reach an endpoint of this address."""
        folder = folder_of(address)
        return cls("ipc", folder=folder, token=token) if folder else cls("tcp", token=token)

    def another(self) -> "Network":
        """That of another process of this one's role."""
        other = Network(
            self.scheme, self.host, self.trainers_host, self.folder, keys=self.keys, token=self.token, hosts=self.hosts
        )
        other.spread, other.most_bytes = self.spread, self.most_bytes
        return other

    def inbox(self, name: str, *, port: int = 0) -> "Inbox":
        """A new endpoint called `name`, of `tcp` at this port, or at any that is free. Raises RunError when `host` is not an address of this machine, or its
        port is taken."""
        with self._lock:
            self._number += 1
            near = f"inproc://{self._number}"
            self._near[name] = near
        bind, near = (near, "") if self.scheme == "inproc" else (self._bound(name, port), near)
        inbox = Inbox(
            self.context,
            name,
            bind,
            near,
            keys=self.keys,
            token=self.token,
            hosts=self.hosts,
            most_bytes=self.most_bytes,
        )
        self._ends.append(inbox)
        return inbox

    def strangers(self, role: str) -> int:
        """Messages of strangers that a role's inboxes in this process have dropped."""
        inboxes = [end for end in self._ends.copy() if isinstance(end, Inbox)]
        return sum(inbox.strangers for inbox in inboxes if role_at(inbox.name) == role)

    def _bound(self, name: str, port: int) -> str:
        """Where an endpoint listens for other processes. One of a folder is found where it was, by its name, when its process is begun again."""
        if self.folder:
            return f"ipc://{self.folder / name.replace(':', '_').replace('/', '.')}"
        return f"tcp://{self.host}:{port or '*'}"

    def outbox(self, book: Mapping[str, str], *, deadline_seconds: float = SEND_SECONDS) -> "Outbox":
        """A sender to the endpoints of `book`, name -> address, for one thread; to those of this process it goes without the network."""
        with self._lock:
            near = {name: address for name, address in self._near.items() if name in book}
        outbox = Outbox(
            self.context, {**book, **near}, deadline_seconds=deadline_seconds, spread=self.spread, keys=self.keys,
            token=self.token, most_bytes=self.most_bytes,
        )  # fmt: skip
        self._ends.append(outbox)
        return outbox

    def shared(self, name: str, make: Callable[[], Any]) -> Any:
        """What roles of this process share under a name; the first to ask makes it."""
        with self._lock:
            if name not in self._shared:
                self._shared[name] = make()
            return self._shared[name]

    def close(self) -> None:
        """End; what is not sent within a second is dropped.

        An inbox or outbox that is still open belongs to a thread that hangs. It stays, and the network with it, until the process ends: libzmq ends the
        process at once where a socket is closed under a thread that uses it.
        """
        if all(end.closed for end in self._ends):
            self.context.destroy(linger=_LINGER_MILLISECONDS)
        else:
            _LEFT_OPEN.append(self.context)  # when it is collected it would wait for these threads


class Inbox:
    """Receives messages for one endpoint, from anybody, in the order in which each outbox sent them.

    `address` is what others connect to: the port that was chosen for `tcp://host:*` is in it. At `near`, where there is one, outboxes of
    this process reach it too. Messages that do not begin with its `token` are dropped, and counted in `strangers`; whoever sends a frame of more than
    `most_bytes`, or comes from none of `hosts`, where there are some, loses its connection.
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
    ) -> None:
        self.name = name
        self.closed = False
        self.strangers = 0
        self._token = token
        self._socket = _open(context, zmq.PULL, name)
        if keys:
            self._socket.curve_server = True
            self._socket.curve_secretkey = keys.secret
        self._socket.set(zmq.RCVHWM, _MOST_QUEUED)
        self._socket.set(zmq.MAXMSGSIZE, most_bytes or -1)
        self._socket.set(zmq.BACKLOG, _MOST_WAITING)
        if folder_of(bind):
            self._socket.set(zmq.RCVBUF, _BUFFER_BYTES)
        self._socket.set(zmq.LINGER, 0)
        for host in hosts:
            self._socket.set(zmq.TCP_ACCEPT_FILTER, host.encode())
        try:
            self._socket.bind(bind)
        except zmq.ZMQError as error:
            self._socket.close()
            cure = "let TMPDIR name another folder of this host" if folder_of(bind) else "give an address of this host"
            raise RunError(f"{name}: cannot listen on {bind}: {_reason(error)}; {cure}") from error
        self.address: str = self._socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        if near:
            self._socket.bind(near)
        self._timeout_milliseconds = -1

    def receive(self, seconds: float) -> tuple[Message, Bundle] | None:
        """The next message and its tensors, or None when none came within `seconds`, or none but many of strangers.

        Raises RunError for a damaged message, which is then gone: the next call gives the next one.
        """
        until = 0.0
        for _ in range(_MOST_DROPPED):
            frames = self._frames(seconds)
            if frames is None:
                return None
            header = behind(self._token, frames[0])
            if header is not None:
                frames[0] = header
                return decode(frames)
            self.strangers += 1
            del frames
            until = until or time.monotonic() + seconds
            seconds = until - time.monotonic()
        return None

    def _frames(self, seconds: float) -> list[memoryview] | None:
        """The next message of anybody. Raises RunError where the socket is closed."""
        timeout = max(0, math.ceil(seconds * 1000))
        try:
            if timeout != self._timeout_milliseconds:
                self._socket.set(zmq.RCVTIMEO, timeout)
                self._timeout_milliseconds = timeout
            frame = self._socket.recv(copy=False)
            frames = [frame.buffer]
            while frame.more:  # the frames of a message come together or not at all
                frame = self._socket.recv(copy=False)
                frames.append(frame.buffer)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise RunError(f"{self.name}: cannot receive: {_reason(error)}") from error
        return frames

    def refuse(self) -> None:
        """Count the message that was received last as a stranger's: it asks for what no role does."""
        self.strangers += 1

    def wait(self, seconds: float, descriptors: Iterable[int] = ()) -> None:
        """Return as soon as a message has come or one of the descriptors can be read, or when `seconds` have passed, if they are finite."""
        poller = zmq.Poller()
        for source in (self._socket, *descriptors):
            poller.register(source, zmq.POLLIN)
        poller.poll(math.ceil(seconds * 1000) if seconds < math.inf else None)

    def close(self) -> None:
        """Stop receiving; what has come and was not received is dropped. For the thread that receives."""
        self._socket.close()
        self.closed = True


class Outbox:
    """Sends messages to endpoints by name; connects on first use. For one thread.

    A peer has `deadline_seconds` to be reachable, at the first message and at each later one. A message that was queued
    for a peer that then died is lost. `bytes_sent` counts the bytes of tensors by peer, an endpoint.
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
    ) -> None:
        self._context = context
        self._keys = keys
        self._token = token
        self._most_bytes = most_bytes or math.inf
        self._book = book
        self._spread = spread
        self._processes: dict[str, int] = {}
        self._deadline_seconds = deadline_seconds
        self._sockets: list[zmq.Socket] = []
        self._sends: dict[str, Callable[..., Any]] = {}
        self.closed = False
        self.bytes_sent: dict[str, int] = {}

    def send(self, peer: str, message: Message) -> None:
        """Send a message without tensors. Raises PeerLost when `peer` cannot be reached."""
        self._send(peer, encode(message))

    def offer(self, peer: str, message: Message) -> bool:
        """Send a message without tensors if `peer` can take it at once; drop it otherwise, and return False. Never waits.

        The first word to a peer must be a `send`: a connection that is still being made takes nothing.
        """
        send = self._sends.get(peer) or self._connect(peer)
        with contextlib.suppress(zmq.Again):
            send(self._token + encode(message)[0], zmq.DONTWAIT, False)
            return True
        return False

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
        self._send(peer, encode(values, bundle))
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

    def _send(self, peer: str, frames: Sequence[Frame]) -> None:
        send = self._sends.get(peer) or self._connect(peer)
        header, *rest = frames
        more = len(rest)
        try:
            send(self._token + header, _MORE if more else 0, False)
            for frame in rest:
                more -= 1
                send(frame, _MORE if more else 0, False)
        except zmq.Again as error:
            seconds = f"{self._deadline_seconds:g} s"
            raise PeerLost(
                f"{peer} did not take a message within {seconds}: nobody answers at {self._book[peer]}"
            ) from error
        except zmq.ZMQError as error:
            raise RunError(f"cannot send to {peer} at {self._book[peer]}: {_reason(error)}") from error

    def _connect(self, peer: str) -> Callable[..., Any]:
        """A new connection's `send(frame, flags, copy)`."""
        address = self._book.get(peer)
        if address is None:
            raise PeerLost(f"nobody is known as '{peer}': the plan and the run disagree about the roles")
        socket = _open(self._context, zmq.PUSH, peer)
        self._sockets.append(socket)
        socket.copy_threshold = _COPY_BELOW_BYTES
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.IMMEDIATE, 1)  # queue only on a live connection, so that a dead peer is noticed
        socket.set(zmq.SNDTIMEO, math.ceil(self._deadline_seconds * 1000))
        socket.set(zmq.LINGER, _LINGER_MILLISECONDS)
        if folder_of(address):
            socket.set(zmq.SNDBUF, _BUFFER_BYTES)
        if self._keys and address.startswith("tcp://"):
            socket.curve_serverkey = self._keys.public
            socket.curve_publickey, socket.curve_secretkey = self._keys
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise RunError(f"{peer} has the address '{address}', which is none: {_reason(error)}") from error
        self._sends[peer] = socket.send
        return socket.send

    def close(self) -> None:
        """Close every connection; what is not sent within a second is dropped. For the thread that sends."""
        self._sends.clear()
        while self._sockets:
            self._sockets.pop().close()
        self.closed = True


def new_token() -> bytes:
    """That of a new try: nobody guesses it, and no message of another try begins with it."""
    return secrets.token_bytes(_TOKEN_BYTES)


def sent_by_role(outboxes: Iterable[Outbox]) -> dict[str, int]:
    """Bytes of tensors that went to each role, whichever endpoint of it."""
    sent: dict[str, int] = {}
    for outbox in outboxes:
        for endpoint, num_bytes in outbox.bytes_sent.copy().items():
            role = role_at(endpoint)
            sent[role] = sent.get(role, 0) + num_bytes
    return sent


def _open(context: zmq.Context, kind: int, name: str) -> zmq.Socket:
    try:
        _keep_sent_memory()
        _reserve_files()
        return context.socket(kind)
    except zmq.ZMQError as error:
        raise RunError(f"{name}: no socket can be opened: {_reason(error)}") from error


def _keep_sent_memory() -> None:
    """Begin pyzmq's thread that holds what is sent without a copy until ZeroMQ is done with it, where this process has none yet.

    pyzmq begins it by itself, at the first such message, and unguarded: of two threads that send their first at once, one may be left with a socket that leads
    nowhere. ZeroMQ's own thread then waits on it for ever, and the process falls silent.
    """
    with _KEEPER_LOCK:
        if not sent_memory.is_alive():
            _reserve_files()
            sent_memory.start()
            zmq.Frame(
                bytes(1), copy=False, copy_threshold=0
            )  # makes what all later messages share: a socket to that thread, and its lock


def _reserve_files() -> None:
    """Raises ZMQError when fewer files can be opened than a socket needs: ZeroMQ aborts the process where it finds out itself."""
    files: list[int] = []
    try:
        for _ in range(_FILES_OF_A_SOCKET):
            files.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise zmq.ZMQError(error.errno or errno.EMFILE) from error
    finally:
        for file in files:
            os.close(file)


def _reason(error: zmq.ZMQError) -> str:
    cure = "; allow this process more open files (ulimit -n)" if error.errno == errno.EMFILE else ""
    return zmq.strerror(error.errno or 0) + cure

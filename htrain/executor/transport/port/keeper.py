"""Sessions of a process's connections to other hosts: a thread tells senders what has come, hears what has come of theirs, and says again what may be lost with
a connection (docs/decisions/sessions.md). What is to be said is decided by htrain.sync.sessions."""

import math
import secrets
import threading
from collections.abc import Callable

import zmq

from htrain.executor.transport.port.inbox import Inbox
from htrain.executor.transport.port.keeper_thread import KeeperThread
from htrain.executor.transport.port.outbox import MakeOutbox
from htrain.executor.transport.port.session import Session
from htrain.executor.transport.port.sockets import open_socket

_TELL_SECONDS = 0.05  # from when a message has come until its sender is told
_AWAKE_SECONDS = 1.0  # for which it looks for more by itself: a ring costs whoever receives more than a look
_EVENTS = int(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_MONITOR_STOPPED)


class Keeper:
    """The sessions of one process, under a `name`. It begins at the first message: it is told what was heard by the inbox that `make_inbox` opens, and sends by
    the outbox that `make_outbox` makes, to addresses."""

    def __init__(
        self,
        context: zmq.Context,
        name: str,
        token: bytes,
        make_inbox: Callable[[], Inbox],
        make_outbox: MakeOutbox,
    ) -> None:
        self.name = name
        self._context = context
        self.token = token
        self._make_inbox, self._make_outbox = make_inbox, make_outbox
        self._lock = threading.Lock()
        self._sessions: dict[bytes, Session] = {}
        self._new: list[tuple[zmq.Socket, Session]] = []
        self._due: list[Session] = []
        self._owed: dict[bytes, tuple[bytes, int]] = {}
        self._told_at = self._owed_at = -math.inf
        self._sleeps = True
        self._thread: KeeperThread | None = None

    @property
    def strangers(self) -> int:
        """Messages of strangers that it has dropped."""
        return self._thread.inbox.strangers if self._thread else 0

    def session(self, socket: zmq.Socket, peer: str, address: str) -> Session:
        """That of a new connection, before it connects. For the thread that sends. Raises RunError where no socket can be opened."""
        with self._lock:
            thread = self._begun()
            session = Session(self.token, address, thread.inbox.address, self._has_due)
            monitor = self.monitor(socket, peer)
            self._sessions[session.id] = session
            self._new.append((monitor, session))
        thread.bell.ring()
        return session

    def monitor(self, socket: zmq.Socket, peer: str) -> zmq.Socket:
        """What tells when the connection of a socket, which is yet to be made, is lost and when it stands. Raises RunError where no socket can be opened."""
        ours = f"inproc://monitor-{secrets.token_hex(8)}"
        monitor = open_socket(
            self._context, zmq.PAIR, peer
        )  # first: ZeroMQ's own thread waits at an event for somebody who watches
        socket.monitor(ours, _EVENTS)
        monitor.connect(ours)
        return monitor

    def tell(self, reply: bytes, session: bytes, heard: int) -> None:
        """All of a session up to this number has come; whoever listens at `reply` is to know. For threads that receive. Raises RunError as `session`."""
        with self._lock:
            self._owed[session] = reply, heard
            if not self._sleeps:
                return
            thread, self._sleeps = self._begun(), False
        thread.bell.ring()

    def _begun(self) -> KeeperThread:
        if self._thread is None:
            self._thread = KeeperThread(self, self._make_inbox(), self._make_outbox)
            self._thread.start()
        return self._thread

    def take_new(self) -> list[tuple[zmq.Socket, Session]]:
        """Monitors of connections that were not looked at yet, and their sessions."""
        with self._lock:
            new, self._new = self._new, []
        return new

    def _has_due(self, session: Session) -> None:
        """Something of a session is to be said again at once. For the thread that sends."""
        with self._lock:
            self._due.append(session)
            thread = self._begun()
        thread.bell.ring()

    def take_due(self) -> list[Session]:
        """Those of which a sender has said that something is due."""
        with self._lock:
            due, self._due = self._due, []
        return due

    def sessions_with(self, address: str) -> list[Session]:
        """Those whose messages go to this address."""
        with self._lock:
            return [session for session in self._sessions.values() if session.address == address]

    def take_owed(self, now: float) -> dict[bytes, dict[bytes, int]]:
        """What is to be told now: of each session its number, by where it is to be told; nothing until it is time."""
        if now < self._told_at + _TELL_SECONDS:
            return {}
        with self._lock:
            owed, self._owed = self._owed, {}
        by_reply: dict[bytes, dict[bytes, int]] = {}
        for session, (reply, number) in owed.items():
            by_reply.setdefault(reply, {})[session] = number
        self._told_at = now
        self._owed_at = now if owed else self._owed_at
        return by_reply

    def tells_at(self, now: float) -> float:
        """When to look again for what is to be told; infinity where nothing was for a while, and whoever has something rings."""
        with self._lock:
            self._sleeps = not self._owed and now > self._owed_at + _AWAKE_SECONDS
            return math.inf if self._sleeps else self._told_at + _TELL_SECONDS

    def heard(self, session: bytes, number: int, now: float) -> None:
        """All of a session up to this number has come. One that is over has nothing to keep."""
        found = self._sessions.get(session)
        if found:
            found.heard(number, now)

    def forget(self, session: Session) -> None:
        """Its outbox was closed a while ago."""
        with self._lock:
            self._sessions.pop(session.id, None)

    def close(self, *, leaves_open: bool = False) -> bool:
        """End the thread, in at most 5 s: whether it has ended. Its sockets stay where connections do that they watch: ZeroMQ would wait for them."""
        return self._thread is None or self._thread.close(leaves_open)

"""Sessions of a process's connections to other hosts: a thread tells senders what has come, hears what has come of theirs, and says again what may be lost with
a connection (docs/decisions/sessions.md). What is to be said is decided by htrain.sync.sessions."""

import contextlib
import math
import secrets
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from htrain.errors import RunError
from htrain.executor.host.bell import Bell
from htrain.executor.transport.port.inbox import Inbox
from htrain.executor.transport.port.outbox import Outbox
from htrain.executor.transport.port.session import Session, address_of_reply, reply_of
from htrain.executor.transport.port.sockets import descriptor_of, open_socket
from htrain.executor.transport.wire import Frame, Heard, encode

_TELL_SECONDS = 0.05  # from when a message has come until its sender is told
_AWAKE_SECONDS = 1.0  # for which it looks for more by itself: a ring costs whoever receives more than a look
_ENDING_SECONDS = 1.0  # in which what is still unheard may be heard, once its outbox is closed
_CLOSE_SECONDS = 5.0
_EVENTS = int(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_MONITOR_STOPPED)


class Watches(Protocol):
    """Who is told of each new connection of an outbox, before it connects."""

    def session(self, socket: zmq.Socket, peer: str, address: str) -> "Session | None":
        """What numbers its messages, if anything does."""


MakeOutbox = Callable[[dict[str, str], Watches], Outbox]


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
        self._owed: dict[bytes, tuple[bytes, int]] = {}
        self._told_at = self._owed_at = -math.inf
        self._sleeps = True
        self._thread: _KeeperThread | None = None

    @property
    def strangers(self) -> int:
        """Messages of strangers that it has dropped."""
        return self._thread.inbox.strangers if self._thread else 0

    def session(self, socket: zmq.Socket, peer: str, address: str) -> Session:
        """That of a new connection, before it connects. For the thread that sends. Raises RunError where no socket can be opened."""
        with self._lock:
            thread = self._begun()
            session = Session(self.token, address, thread.inbox.address)
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

    def _begun(self) -> "_KeeperThread":
        if self._thread is None:
            self._thread = _KeeperThread(self, self._make_inbox(), self._make_outbox)
            self._thread.start()
        return self._thread

    def take_new(self) -> list[tuple[zmq.Socket, Session]]:
        """Monitors of connections that were not looked at yet, and their sessions."""
        with self._lock:
            new, self._new = self._new, []
        return new

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

    def owe_again(self, reply: bytes, numbers: Mapping[bytes, int]) -> None:
        """Somebody could not be told yet, or may not have heard it."""
        with self._lock:
            self._owed = {**{session: (reply, number) for session, number in numbers.items()}, **self._owed}

    def tells_at(self, now: float) -> float:
        """When to look again for what is to be told; infinity where nothing was for a while, and whoever has something rings."""
        with self._lock:
            self._sleeps = not self._owed and now > self._owed_at + _AWAKE_SECONDS
            return math.inf if self._sleeps else self._told_at + _TELL_SECONDS

    def heard(self, session: bytes, number: int) -> None:
        """All of a session up to this number has come. One that is over has nothing to keep."""
        found = self._sessions.get(session)
        if found:
            found.heard(number)

    def forget(self, session: Session) -> None:
        """Its outbox was closed a while ago."""
        with self._lock:
            self._sessions.pop(session.id, None)

    def close(self, *, leaves_open: bool = False) -> bool:
        """End the thread, in at most 5 s: whether it has ended. Its sockets stay where connections do that they watch: ZeroMQ would wait for them."""
        return self._thread is None or self._thread.close(leaves_open)


class _KeeperThread:
    """What the keeper's thread has to itself."""

    def __init__(self, keeper: Keeper, inbox: Inbox, make_outbox: MakeOutbox) -> None:
        self.inbox = inbox
        self.bell = Bell()
        self._keeper = keeper
        self._token = keeper.token
        self._book: dict[str, str] = {}
        self._outbox = make_outbox(self._book, self)
        self._monitors: dict[
            int, tuple[zmq.Socket, Session | bytes]
        ] = {}  # of a session, or of the way by which others are told
        self._told: dict[bytes, dict[bytes, int]] = {}
        self._broken: dict[bytes, Session] = {}  # those whose messages may be lost
        self._closed: deque[Session] = deque()
        self._selector = selectors.DefaultSelector()
        self._stopping = self._leaves_open = False
        self._thread = threading.Thread(target=self._run, name=inbox.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, leaves_open: bool) -> bool:
        """End, in at most 5 s: whether it has ended."""
        self._leaves_open, self._stopping = leaves_open, True
        self.bell.ring()
        self._thread.join(_CLOSE_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        for descriptor in (self.bell.descriptor, descriptor_of(self.inbox.socket)):
            self._selector.register(descriptor, selectors.EVENT_READ)
        wakes = 0.0
        try:
            while not self._stopping:
                seconds = None if wakes == math.inf else max(0.0, wakes - time.monotonic())
                ready = [key.fd for key, _ in self._selector.select(seconds)]
                wakes = self._turn(ready, time.monotonic())
            self._tell(math.inf)
        finally:
            if not self._leaves_open:
                self._close_all()

    def _close_all(self) -> None:
        for monitor, _ in (*self._monitors.values(), *self._keeper.take_new()):
            monitor.close()
        self.inbox.close()
        self._outbox.close()
        self._selector.close()
        self.bell.close()

    def _turn(self, ready: list[int], now: float) -> float:
        """Do what is to be done; when there is something to do again."""
        self.bell.mute()
        for monitor, session in self._keeper.take_new():
            self._look_at(monitor, session, now)
        for descriptor in ready:
            self._watch(descriptor, now)
        self._hear()
        self._tell(now)
        return min(self._say_again(now), self._forget(now), self._keeper.tells_at(now))

    def _look_at(self, monitor: zmq.Socket, what: Session | bytes, now: float) -> None:
        """From now on. Until it was looked at once, its descriptor tells of nothing."""
        descriptor = descriptor_of(monitor)
        self._monitors[descriptor] = monitor, what
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._watch(descriptor, now)

    def session(self, socket: zmq.Socket, peer: str, address: str) -> None:
        """A connection of its own, before it connects: it has none, but is watched."""
        self._look_at(self._keeper.monitor(socket, peer), reply_of(address), time.monotonic())

    def _watch(self, descriptor: int, now: float) -> None:
        """Take what a connection's monitor has seen, until it has no more: its descriptor tells of the first event only."""
        if descriptor not in self._monitors:
            return
        monitor, what = self._monitors[descriptor]
        with contextlib.suppress(zmq.Again):
            while True:
                event = recv_monitor_message(monitor, zmq.DONTWAIT)["event"]
                if event == zmq.EVENT_MONITOR_STOPPED:
                    del self._monitors[descriptor]
                    self._selector.unregister(descriptor)
                    monitor.close()
                    if isinstance(what, Session):
                        what.closed_at = now
                        self._closed.append(what)
                    return
                self._changed(what, now, stands=event == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def _changed(self, what: Session | bytes, now: float, *, stands: bool) -> None:
        """A connection was lost, or stands. What was told by it may not have been heard."""
        if isinstance(what, Session):
            what.changed(now, stands=stands)
            self._broken[what.id] = what
        elif told := self._told.get(what):
            self._keeper.owe_again(what, told)

    def _hear(self) -> None:
        """Take what others say that they have heard."""
        while True:
            try:
                got = self.inbox.receive(0)
            except RunError:
                continue  # damaged, and gone
            if got is None:
                return
            for session, number in got[0].numbers if isinstance(got[0], Heard) else ():
                self._keeper.heard(session, number)

    def _tell(self, now: float) -> None:
        """Tell senders what has come. Whoever cannot be reached yet is told a moment later."""
        for reply, numbers in self._keeper.take_owed(now).items():
            if self._offered(address_of_reply(reply), [self._token + encode(Heard(list(numbers.items())))[0]]):
                self._told.setdefault(reply, {}).update(numbers)
            else:
                self._keeper.owe_again(reply, numbers)

    def _say_again(self, now: float) -> float:
        """Say again what is due; when something is due the next time."""
        due = math.inf
        for session in list(self._broken.values()):
            at = session.say_again(self._offered, now)
            if at == math.inf:
                del self._broken[session.id]
            due = min(due, at)
        return due

    def _forget(self, now: float) -> float:
        """Drop what has been closed for a while; when that is to be looked at again."""
        while self._closed and now >= self._closed[0].closed_at + _ENDING_SECONDS:
            gone = self._closed.popleft()
            self._broken.pop(gone.id, None)
            self._keeper.forget(gone)
        return self._closed[0].closed_at + _ENDING_SECONDS if self._closed else math.inf

    def _offered(self, address: str, frames: list[Frame]) -> bool:
        """Whether a message could be sent at once."""
        self._book[address] = address
        try:
            return self._outbox.offer_frames(address, frames)
        except RunError:  # no more files: a moment later there may be
            return False

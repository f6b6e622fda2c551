"""The thread of a keeper: what it hears, tells and says again (docs/decisions/sessions.md)."""

import contextlib
import math
import selectors
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from htrain.errors import RunError
from htrain.executor.host.bell import Bell
from htrain.executor.transport.port.inbox import Inbox
from htrain.executor.transport.port.outbox import MakeOutbox
from htrain.executor.transport.port.session import Session, address_of_reply
from htrain.executor.transport.port.sockets import descriptor_of
from htrain.executor.transport.port.way import Way
from htrain.executor.transport.wire import Frame, Heard

if TYPE_CHECKING:
    from htrain.executor.transport.port.keeper import Keeper

_ENDING_SECONDS = 1.0  # in which what is still unheard may be heard, once its outbox is closed
_CLOSE_SECONDS = 5.0


class KeeperThread:
    """What the keeper's thread has to itself."""

    def __init__(self, keeper: "Keeper", inbox: Inbox, make_outbox: MakeOutbox) -> None:
        self.inbox = inbox
        self.bell = Bell()
        self._keeper = keeper
        self._token = keeper.token
        self._make_outbox = make_outbox
        self._ways: dict[str, Way] = {}
        self._monitors: dict[int, tuple[zmq.Socket, Session | Way]] = {}
        self._broken: dict[bytes, Session] = {}  # those whose messages may be lost
        self._closed: deque[Session] = deque()
        self._selector = selectors.DefaultSelector()
        self._stopping = self._leaves_open = False
        self._thread = threading.Thread(target=self._run, name=inbox.name, daemon=True)

    def start(self) -> None:
        """Begin."""
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
        for way in self._ways.values():
            way.close()
        self._selector.close()
        self.bell.close()

    def _turn(self, ready: list[int], now: float) -> float:
        """Do what is to be done; when there is something to do again."""
        self.bell.mute()
        for monitor, session in self._keeper.take_new():
            self._look_at(monitor, session, now)
        for session in self._keeper.take_due():
            self._broken[session.id] = session
        for descriptor in ready:
            self._watch(descriptor, now)
        self._hear(now)
        return min(
            self._tell(now), self._say_again(now), self._forget(now), self._give_up(now), self._keeper.tells_at(now)
        )

    def _look_at(self, monitor: zmq.Socket, what: Session | Way, now: float) -> None:
        """From now on. Until it was looked at once, its descriptor tells of nothing."""
        descriptor = descriptor_of(monitor)
        self._monitors[descriptor] = monitor, what
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._watch(descriptor, now)

    def _way(self, address: str) -> Way:
        """The way to an address, which begins with its first use."""

        def look_at(socket: zmq.Socket, peer: str, way: Way) -> None:
            self._look_at(self._keeper.monitor(socket, peer), way, time.monotonic())

        if address not in self._ways:
            self._ways[address] = Way(address, self._make_outbox, look_at, time.monotonic())
        return self._ways[address]

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

    def _changed(self, what: Session | Way, now: float, *, stands: bool) -> None:
        """A connection was lost, or stands. What was said by it may not have come."""
        what.changed(now, stands=stands)
        sessions = [what] if isinstance(what, Session) else self._keeper.sessions_with(what.address)
        for session in sessions:
            if isinstance(what, Way) and what.has_broken:
                session.way_changed(now)
            self._broken[session.id] = session

    def _hear(self, now: float) -> None:
        """Take what others say that they have heard."""
        while True:
            try:
                got = self.inbox.receive(0)
            except RunError:
                continue  # damaged, and gone
            if got is None:
                return
            for session, number in got[0].numbers if isinstance(got[0], Heard) else ():
                self._keeper.heard(session, number, now)

    def _tell(self, now: float) -> float:
        """Tell senders what has come; when to try that again."""
        for reply, numbers in self._keeper.take_owed(now).items():
            self._way(address_of_reply(reply)).owe(numbers)
        return min((way.tell(self._token, now) for way in self._ways.values()), default=math.inf)

    def _say_again(self, now: float) -> float:
        """Say again what is due; when something is due the next time."""
        due = math.inf
        for session in list(self._broken.values()):
            at = session.say_again(partial(self._offered, session.address), now)
            if at == math.inf:
                del self._broken[session.id]
            elif at <= now:  # not taken
                at = self._way(session.address).again_at(now)
            due = min(due, at)
        return due

    def _offered(self, address: str, frames: list[Frame]) -> bool:
        """Whether a message could be sent at once."""
        return self._way(address).offer(frames)

    def _forget(self, now: float) -> float:
        """Drop what has been closed for a while; when that is to be looked at again."""
        while self._closed and now >= self._closed[0].closed_at + _ENDING_SECONDS:
            gone = self._closed.popleft()
            self._broken.pop(gone.id, None)
            self._keeper.forget(gone)
            way = self._ways.get(gone.address)
            if way and not way.tells and not self._keeper.sessions_with(gone.address):
                self._ways.pop(gone.address).close()
        return self._closed[0].closed_at + _ENDING_SECONDS if self._closed else math.inf

    def _give_up(self, now: float) -> float:
        """Close ways that have not stood for the deadline: whoever was to be told is gone, or says again what it has said. When that is to be looked at again.

        What is to be said again goes by another way, once the connection of its session stands.
        """
        for way in [way for way in self._ways.values() if now >= way.given_up_at]:
            self._ways.pop(way.address).close()
            for session in self._keeper.sessions_with(way.address):
                if not session.stands:
                    self._broken.pop(session.id, None)
        return min((way.given_up_at for way in self._ways.values()), default=math.inf)

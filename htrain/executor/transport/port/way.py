"""A connection of the keeper's own, by which it says again what may be lost, and tells senders what has come (docs/decisions/sessions.md)."""

import math
from collections.abc import Callable, Mapping

import zmq

from htrain.errors import RunError
from htrain.executor.transport.port.outbox import SEND_SECONDS, MakeOutbox
from htrain.executor.transport.wire import Frame, Heard, encode

GIVEN_UP_SECONDS = SEND_SECONDS  # for which it has not stood
_AGAIN_SECONDS = 0.02  # before what a connection that stands has not taken is tried again

LookAt = Callable[[zmq.Socket, str, "Way"], None]


class Way:
    """The way to one address, from `now` on. `make_outbox` is given who is told of its connection, which is then looked at by `look_at`. For one thread."""

    def __init__(self, address: str, make_outbox: MakeOutbox, look_at: LookAt, now: float) -> None:
        self.address = address
        self.stands = self.has_broken = False
        self._fell_at = now
        self._was_refused = False  # the system has given no socket: no event will tell of it
        self._look_at = look_at
        self._outbox = make_outbox({address: address}, self)
        self._owed: dict[bytes, int] = {}
        self._told: dict[bytes, int] = {}

    def session(self, socket: zmq.Socket, peer: str, address: str) -> None:
        """Its connection is to be made. It has no session, but is watched."""
        self._look_at(socket, peer, self)

    def changed(self, now: float, *, stands: bool) -> None:
        """The connection was lost, or stands. What was told by it may not have been heard."""
        self.stands, self._fell_at = stands, now
        self.has_broken |= not stands
        self._owed = {**self._told, **self._owed}

    def offer(self, frames: list[Frame]) -> bool:
        """Whether a message could be sent at once."""
        try:
            self._was_refused = False
            return self._outbox.offer_frames(self.address, frames)
        except RunError:  # no more files: a moment later there may be
            self._was_refused = True
            return False

    def owe(self, numbers: Mapping[bytes, int]) -> None:
        """What has come of sessions is to be told: all up to these numbers."""
        self._owed.update(numbers)

    def tell(self, token: bytes, now: float) -> float:
        """Tell what is owed, in a message that begins with `token`; when to try again."""
        if not self._owed:
            return math.inf
        if self.offer([token + encode(Heard(list(self._owed.items())))[0]]):
            self._told.update(self._owed)
            self._owed = {}
            return math.inf
        return self.again_at(now)

    def again_at(self, now: float) -> float:
        """When to try again what was not taken; infinity where that will be told of, as the connection stands."""
        return now + _AGAIN_SECONDS if self.stands or self._was_refused else math.inf

    @property
    def tells(self) -> bool:
        """Whether anybody was told anything by it, or is to be."""
        return bool(self._told or self._owed)

    @property
    def given_up_at(self) -> float:
        """When it is of no use any more, unless it stands until then; infinity where it does."""
        return math.inf if self.stands else self._fell_at + GIVEN_UP_SECONDS

    def close(self) -> None:
        """Nothing more is said by it."""
        self._outbox.close()

"""What one outbox says to one inbox on another host, kept until it is heard (docs/decisions/sessions.md); decided by htrain.sync.sessions."""

import math
import secrets
import threading
from collections.abc import Callable
from socket import inet_aton, inet_ntoa

from htrain.executor.transport.port.inbox import NUMBERED
from htrain.executor.transport.port.keys import numbered
from htrain.executor.transport.wire import Frame
from htrain.sync.sessions import Sent


def reply_of(address: str) -> bytes:
    """tcp://host:port, of IPv4, in 6 bytes."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return inet_aton(host) + int(port).to_bytes(2, "big")


def address_of_reply(reply: bytes) -> str:
    """The address that those 6 bytes stand for."""
    return f"tcp://{inet_ntoa(reply[:4])}:{int.from_bytes(reply[4:], 'big')}"


class Session:
    """What one outbox says to one inbox, for the thread that sends and that of the keeper. `when_due` is called by the former when something is to be said
    again at once."""

    def __init__(self, token: bytes, address: str, reply_address: str, when_due: "Callable[[Session], None]") -> None:
        self.id = secrets.token_bytes(8)
        self.address = address
        self.reply_address = reply_address
        self.closed_at = math.inf
        self._token = numbered(token)
        self._reply = reply_of(reply_address)
        self._when_due = when_due
        self._sent: Sent[list[Frame]] = Sent()
        self._lock = threading.Lock()

    def number(self, frames: list[Frame], num_bytes: int, now: float) -> list[Frame]:
        """A message as it travels under the next number. It is kept until it is heard."""
        with self._lock:
            header = self._token + NUMBERED.pack(self.id, self._sent.last + 1, self._reply) + frames[0]
            kept = [header, *frames[1:]]
            self._sent.keep(kept, num_bytes, now)
        return kept

    def take_back(self) -> bool:
        """Keep the last message no longer, which the connection has not taken: whether it will not come."""
        with self._lock:
            return self._sent.take_back()

    def untaken(self, now: float) -> None:
        """The connection has not taken the last message: the keeper says it."""
        with self._lock:
            self._sent.untaken(now)
            is_due = self._sent.next_due < math.inf
        if is_due:
            self._when_due(self)

    @property
    def num_bytes(self) -> int:
        """What was not heard: bytes of tensors, and of messages that were posted."""
        return self._sent.num_bytes

    @property
    def stands(self) -> bool:
        """Whether its own connection does, as far as the keeper knows."""
        return self._sent.stands

    def unheard_seconds(self, now: float) -> float:
        """For how long nothing has been heard of what is kept; 0 where all was."""
        with self._lock:
            return self._sent.unheard_seconds(now)

    def heard(self, number: int, now: float) -> None:
        """All up to this number have come: they are kept no longer."""
        with self._lock:
            self._sent.heard(number, now)

    def changed(self, now: float, *, stands: bool) -> None:
        """Its connection was lost, or made."""
        with self._lock:
            if stands:
                self._sent.stood(now)
            else:
                self._sent.broke(now)

    def way_changed(self, now: float) -> None:
        """The way by which its messages are said again was lost, or made."""
        with self._lock:
            self._sent.way_broke(now)

    def say_again(self, offer: Callable[[list[Frame]], bool], now: float) -> float:
        """Offer what is due; when something is due the next time, which is not later than `now` where it was not taken."""
        with self._lock:
            for number, frames in self._sent.due(now):
                if not offer(frames):
                    break
                self._sent.said_again(number)
            return self._sent.next_due

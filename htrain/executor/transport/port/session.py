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

_AGAIN_SECONDS = 0.02  # before what could not be sent at once is tried again


def reply_of(address: str) -> bytes:
    """tcp://host:port, of IPv4, in 6 bytes."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return inet_aton(host) + int(port).to_bytes(2, "big")


def address_of_reply(reply: bytes) -> str:
    """The address that those 6 bytes stand for."""
    return f"tcp://{inet_ntoa(reply[:4])}:{int.from_bytes(reply[4:], 'big')}"


class Session:
    """What one outbox says to one inbox, for the thread that sends and that of the keeper."""

    def __init__(self, token: bytes, address: str, reply_address: str) -> None:
        self.id = secrets.token_bytes(8)
        self.address = address
        self.reply_address = reply_address
        self.closed_at = math.inf
        self._token = numbered(token)
        self._reply = reply_of(reply_address)
        self._sent: Sent[list[Frame]] = Sent()
        self._lock = threading.Lock()

    def number(self, frames: list[Frame], num_bytes: int, now: float) -> list[Frame]:
        """A message as it travels under the next number. It is kept until it is heard."""
        with self._lock:
            header = self._token + NUMBERED.pack(self.id, self._sent.last + 1, self._reply) + frames[0]
            kept = [header, *frames[1:]]
            self._sent.keep(kept, num_bytes, now)
        return kept

    @property
    def num_bytes(self) -> int:
        """Of tensors that were not heard."""
        return self._sent.num_bytes

    def unheard_seconds(self, now: float) -> float:
        """For how long the oldest message has not been heard; 0 where all were."""
        with self._lock:
            return self._sent.unheard_seconds(now)

    def heard(self, number: int) -> None:
        """All up to this number have come: they are kept no longer."""
        with self._lock:
            self._sent.heard(number)

    def changed(self, now: float, *, stands: bool) -> None:
        """Its connection was lost, or made."""
        with self._lock:
            if stands:
                self._sent.stands(now)
            else:
                self._sent.broke(now)

    def say_again(self, offer: Callable[[str, list[Frame]], bool], now: float) -> float:
        """Offer what is due to its address; when something is due the next time."""
        with self._lock:
            due = self._sent.due(now)
            if due and all(offer(self.address, frames) for frames in due):
                self._sent.said_again(now)
            elif due:
                self._sent.postpone(now + _AGAIN_SECONDS)
            return self._sent.next_due

"""A role's line to the launcher: orders in; hello, beats, states and failures out."""

import os
import socket
from collections.abc import Mapping
from typing import Any

from htrain.errors import PeerLost
from htrain.executor.port import Network, Outbox
from htrain.executor.wire import Addresses, Beat, Failed, Hello, Message, Order, Ready, State

LAUNCHER = "launcher"


class Link:
    """The control endpoint of one role. For the role's main thread."""

    def __init__(self, role: str, network: Network, launcher: str) -> None:
        self.role = role
        self._inbox = network.inbox(f"{role}/control")
        self._outbox: Outbox = network.outbox({LAUNCHER: launcher})

    def hello(self, endpoints: Mapping[str, str], deadline_seconds: float) -> dict[str, str]:
        """Announce the role's endpoints; return everybody's. Raises PeerLost when the launcher does not answer."""
        own = {**endpoints, f"{self.role}/control": self._inbox.address}
        self._outbox.send(LAUNCHER, Hello(self.role, own, socket.gethostname(), os.getpid()))
        answer = self._receive(deadline_seconds)
        if not isinstance(answer, Addresses):
            raise PeerLost(f"{self.role}: the launcher sent no addresses within {deadline_seconds:.0f} s")
        return answer.book

    def order(self, seconds: float) -> Order | None:
        """The launcher's next order, or None when none came within `seconds`."""
        message = self._receive(seconds)
        return message if isinstance(message, Order) else None

    def _receive(self, seconds: float) -> Message | None:
        got = self._inbox.receive(seconds)
        return got[0] if got else None

    def ready(self) -> None:
        self._outbox.send(LAUNCHER, Ready(self.role))

    def beat(self, step: int, metrics: dict[str, Any]) -> None:
        """A heartbeat; one that a launcher on its way out does not take is no loss."""
        self._outbox.offer(LAUNCHER, Beat(self.role, step, metrics))

    def state(self, state: str, details: dict[str, Any]) -> None:
        self._outbox.send(LAUNCHER, State(self.role, state, details))

    def failed(self, error: Exception) -> None:
        self._outbox.send(LAUNCHER, Failed(self.role, type(error).__name__, str(error)))

    def close(self) -> None:
        self._inbox.close()
        self._outbox.close()

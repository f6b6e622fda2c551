"""A role's line to the launcher: orders in; hello, beats, states and failures out."""

import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from htrain.errors import PeerLost
from htrain.executor.host.bell import Bell
from htrain.executor.host.process import Process
from htrain.executor.transport.port import Network, Outbox
from htrain.executor.transport.wire import Addresses, Beat, Failed, Hello, Message, Order, Ready, State

LAUNCHER = "launcher"


class Launcher(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a role finds its launcher, which process that is, and the token with which all messages of this try begin."""

    address: str
    process: Process
    token: bytes = b""


class Link:
    """The control endpoint of one role, which was begun again alone `incarnation` times. For the role's main thread, which `bell` wakes when there is something
    else to look at."""

    def __init__(self, role: str, network: Network, launcher: Launcher, bell: Bell, incarnation: int = 0) -> None:
        self.role = role
        self._incarnation = incarnation
        self._bell = bell
        self._inbox = network.inbox(f"{role}/control")
        self._outbox: Outbox = network.outbox({LAUNCHER: launcher.address})

    def hello(self, endpoints: Mapping[str, str], deadline_seconds: float, check: Callable[[], None]) -> Addresses:
        """Announce the role's endpoints; return those that it will send to, and how many orders were given before. `check` raises what makes waiting futile.

        Raises PeerLost when the launcher does not answer.
        """
        own = {**endpoints, f"{self.role}/control": self._inbox.address}
        self._outbox.send(LAUNCHER, Hello(self.role, own, socket.gethostname(), os.getpid(), self._incarnation))
        deadline = time.monotonic() + deadline_seconds
        answer: Message | None = None
        while not isinstance(answer, Addresses) or answer.incarnation != self._incarnation:
            check()
            # Other orders are late words to a process before this one.
            if isinstance(answer, Order) and answer.verb in ("stop", "abort"):
                raise PeerLost(f"{self.role}: the launcher has given up the run")
            if time.monotonic() > deadline:
                raise PeerLost(f"{self.role}: the launcher sent no addresses within {deadline_seconds:.0f} s")
            answer = self._receive(deadline - time.monotonic())
        return answer

    def order(self) -> Order | None:
        """The launcher's next order, or None as soon as the bell has rung. The role's pulse rings it, too, when the launcher is gone."""
        message = self._receive(math.inf)
        return message if isinstance(message, Order) else None

    def refuse(self) -> None:
        """The last order is none that the launcher gives: it counts as a stranger's message."""
        self._inbox.refuse()

    def _receive(self, seconds: float) -> Message | None:
        """The next message; None where the bell has rung, or nothing came within `seconds`."""
        self._inbox.wait(max(0.0, seconds), (self._bell.descriptor,))
        self._bell.mute()
        got = self._inbox.receive(0)
        return got[0] if got else None

    def ready(self, metrics: dict[str, Any]) -> None:
        """The role can start; its figures so far are where those of the run begin."""
        self._outbox.send(LAUNCHER, Ready(self.role, metrics, self._incarnation))

    def beat(self, metrics: dict[str, Any]) -> None:
        """What the role has measured; a report that a launcher on its way out does not take is no loss."""
        self._outbox.offer(LAUNCHER, Beat(self.role, metrics, incarnation=self._incarnation))

    def state(self, state: str, details: dict[str, Any], number: int, place: int) -> None:
        """Report one of the states that a State names, with its details, the number of the order that it answers, and its place among all that are reported."""
        self._outbox.send(LAUNCHER, State(self.role, state, details, number, place, self._incarnation))

    def failed(self, error: Exception) -> None:
        """Report the error by which the role ends: the name of its class, and its text."""
        self._outbox.send(LAUNCHER, Failed(self.role, type(error).__name__, str(error), self._incarnation))

    def close(self) -> None:
        """Close both ways; what is not sent within a second is dropped. For the role's main thread."""
        self._inbox.close()
        self._outbox.close()

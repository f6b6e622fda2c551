"""A simulated network: messages cross their sender's link and then their receiver's, in pieces of what a connection may have queued.

A sender's link serves its connections a piece each, whose turn it is by chance: no connection can fill the link's queue, and those that send at once end
at other times. Strictly in turn, few steps under way may find a rhythm in which no link ever rests, which real hosts never keep. What has left queues
at the receiver's link while the rest is still leaving, first come first served: as frames do in a switch.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from random import Random

import simpy

_FRAMING = 1514 / 1448  # bytes of an Ethernet frame for those of a message in it
_PIECE_BYTES = 64 * 1024
_MOST_PIECES = 16  # of one message
_EVERYBODY = None

Then = Callable[[], None]


@dataclass(eq=False)
class Link:
    """One direction of a host's network. Waiting are (seconds, what to call then) by connection."""

    env: simpy.Environment
    bytes_per_second: float
    chance: Random = field(default_factory=lambda: Random(0))
    busy_seconds: float = 0.0
    waiting: dict[Hashable, deque[tuple[float, Then]]] = field(default_factory=dict)
    connections: list[Hashable] = field(default_factory=list)  # those that wait
    busy: bool = False

    def carry(self, connection: Hashable, num_bytes: float, then: Then) -> None:
        """Queue bytes; `then` is called when the last of them has left."""
        if connection not in self.waiting:
            self.waiting[connection] = deque()
            self.connections.append(connection)
        self.waiting[connection].append((num_bytes / self.bytes_per_second, then))
        if not self.busy:
            self._next()

    def _next(self) -> None:
        """Carry a piece of one of the connections that wait."""
        number = int(self.chance.random() * len(self.connections))
        connection = self.connections[number]
        queue = self.waiting[connection]
        seconds, then = queue.popleft()
        if not queue:
            del self.waiting[connection]
            self.connections[number] = self.connections[-1]
            self.connections.pop()
        self.busy = True
        self.busy_seconds += seconds

        def left(_: object) -> None:
            self.busy = False
            then()
            if self.waiting and not self.busy:
                self._next()

        self.env.timeout(seconds).callbacks.append(left)


def transfer(connection: Hashable, links: Sequence[Link], num_bytes: float, then: Then) -> None:
    """Send a message over `links`; `then` is called when the last of it is there."""
    count, piece = pieces_of(num_bytes)
    missing = [count]

    def arrived() -> None:
        missing[0] -= 1
        if not missing[0]:
            then()

    for _ in range(count):
        _cross(connection, links, piece, arrived)


def pieces_of(num_bytes: float) -> tuple[int, float]:
    """How many pieces a message crosses links in, and the bytes of each on the wire."""
    total = max(1.0, num_bytes * _FRAMING)
    count = min(_MOST_PIECES, 1 + int(total // _PIECE_BYTES))
    return count, total / count


def _cross(connection: Hashable, links: Sequence[Link], num_bytes: float, then: Then) -> None:
    """One piece: it queues at each link when it has left the one before."""
    first, *rest = links
    onwards = (lambda: _cross(_EVERYBODY, rest, num_bytes, then)) if rest else then
    first.carry(connection, num_bytes, onwards)

"""Messages between processes, as they travel: encoded and behind their try's token, in order from one sender to one receiver, at any time among others.

A connection that is lost takes with it what is on its way, and is made anew; until it is, a `send` waits and an `offer` is dropped
(htrain.executor.transport.port). A network that is away hands all over later. What has been sent before comes again where a history says so, and to whoever has
the receiver's address by then, be it of a later try.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fault_histories.world import Process, World
from htrain.errors import PeerLost
from htrain.executor.transport.port import SEND_SECONDS
from htrain.executor.transport.wire import Beat, Frame, Message, Values, behind, bundle_of, decode, encode
from htrain.ops.bundle import Bundle

LATE_SECONDS = 0.004  # that a message is on its way, in the mean
TAKEN = "messages of other tries taken"
_KEPT = 6  # messages of a connection that may come again
Receiver = Callable[[Message, Bundle], None]


@dataclass
class Endpoint:
    """Where a process takes messages of its try."""

    process: Process
    token: bytes
    take: Receiver


@dataclass
class _Connection:
    """From one sender to one endpoint. Messages of an earlier `life` are lost."""

    life: int = 0
    last: float = 0.0  # when what was sent last comes
    down_until: float = 0.0
    recent: list[list[Frame]] = field(default_factory=list)


@dataclass(frozen=True)
class Weather:
    """How often a message, before all is calm, takes its connection with it, or comes again; shares of all."""

    lost: float = 0.0
    again: float = 0.0


class Wires:
    """All connections of one history."""

    def __init__(self, world: World, weather: Weather) -> None:
        self._world, self._weather = world, weather
        self._endpoints: dict[str, Endpoint] = {}
        self._connections: dict[tuple[str, str, str], _Connection] = {}
        self._cuts: dict[frozenset[str], tuple[float, bool]] = {}
        self._gone: dict[str, set[str]] = {}  # whom a process was told to be gone

    def listen(self, name: str, process: Process, token: bytes, take: Receiver) -> None:
        """Take messages at a name from now on: whoever had it before is gone, or not reached any more."""
        self._endpoints[name] = Endpoint(process, token, take)

    def behind(self, endpoint: Endpoint, frame: Frame) -> memoryview | None:
        """What a message says behind the token that this endpoint wants, as an Inbox finds it."""
        return behind(endpoint.token, memoryview(frame))

    def cut(self, one: str, other: str, seconds: float, *, loses: bool) -> None:
        """Nothing comes from one process to another, whatever their try, for so long; what is on its way is lost, or late."""
        world = self._world
        world.note(
            "network",
            "%s and %s do not hear each other for %.2f s, messages are %s",
            one,
            other,
            seconds,
            "lost" if loses else "late",
        )
        self._cuts[frozenset((one, other))] = (world.now + seconds, loses)
        if loses:
            for (source, _, target), connection in self._connections.items():
                if {source.partition("#")[0], _role_of(target)} == {one, other}:
                    connection.life += 1

    def lost(self, process: Process, role: str) -> None:
        """A process is told that a role is gone, and will be begun again: its connections there are closed, what it sends there is dropped, as Outbox does."""
        self._gone.setdefault(str(process), set()).add(role)
        for (source, _, target), connection in self._connections.items():
            if source == str(process) and _role_of(target) == role:
                connection.life += 1
                connection.recent = []

    def forget_lost(self, process: Process) -> None:
        """A process begins another try: nobody is gone."""
        self._gone.pop(str(process), None)

    def found(self, process: Process, role: str) -> None:
        """It has been begun again."""
        self._gone.get(str(process), set()).discard(role)

    def _is_gone(self, process: Process, target: str) -> bool:
        return _role_of(target) in self._gone.get(str(process), ())

    def send(
        self, process: Process, sender: str, target: str, token: bytes, message: Message, values: Any = ()
    ) -> float:
        """Send a message; until when its sender has to wait. Raises PeerLost where that is too long."""
        if self._is_gone(process, target):
            return self._world.now
        connection = self._connection(process, sender, target)
        frames = _frames(token, message, values)
        down = self._down_until(process, target, connection)
        if down > self._world.now + SEND_SECONDS:
            raise PeerLost(f"{target} did not take a message within {SEND_SECONDS:g} s: nobody answers")
        self._carry(connection, target, frames, not_before=down)
        self._trouble(process, connection, target, frames)
        return down

    def offer(self, process: Process, sender: str, target: str, token: bytes, message: Message) -> None:
        """Send a message where it can go at once; it is dropped otherwise."""
        if self._is_gone(process, target):
            return
        connection = self._connection(process, sender, target)
        if self._down_until(process, target, connection) <= self._world.now:
            frames = _frames(token, message, ())
            self._carry(connection, target, frames)
            if not isinstance(message, Beat):  # of which the next says as much
                self._trouble(process, connection, target, frames)

    def _connection(self, process: Process, sender: str, target: str) -> _Connection:
        return self._connections.setdefault((str(process), sender, target), _Connection())

    def _down_until(self, process: Process, target: str, connection: _Connection) -> float:
        until, loses = self._cuts.get(frozenset((process.name, _role_of(target))), (0.0, False))
        if until > self._world.now and not loses:  # nobody knows: what is sent comes later
            connection.last = max(connection.last, until)
            until = 0.0
        return max(until, connection.down_until, self._world.now)

    def _carry(self, connection: _Connection, target: str, frames: list[Frame], *, not_before: float = 0.0) -> None:
        world, life = self._world, connection.life
        seconds = world.draw.random() * 2 * LATE_SECONDS
        if world.draw.random() < 0.02:
            seconds *= 20
        connection.last = at = max(world.now, not_before, connection.last) + seconds
        endpoint = self._endpoints.get(target)
        if endpoint is None:
            return

        def arrive() -> None:
            if connection.life == life:
                self._arrive(target, frames)

        world.later(at - world.now, None, arrive)

    def _arrive(self, target: str, frames: list[Frame]) -> None:
        endpoint = self._endpoints[target]

        def take() -> None:
            header = self.behind(endpoint, frames[0])
            if header is not None:
                if bytes(frames[0][: len(endpoint.token)]) != endpoint.token:
                    self._world.count(TAKEN)
                endpoint.take(*decode([header, *frames[1:]]))
            else:
                self._world.count("messages of other tries dropped")

        if endpoint.process.stopped_until > self._world.now:
            self._world.later(0.0, endpoint.process, take)
        elif not endpoint.process.dead:
            take()

    def _trouble(self, process: Process, connection: _Connection, target: str, frames: list[Frame]) -> None:
        """What may become of a message that was sent."""
        world, weather = self._world, self._weather
        if world.is_calm:
            return
        if weather.lost and world.draw.random() < weather.lost:
            connection.life += 1
            connection.down_until = world.now + world.draw.random() * 0.2
            world.trouble("messages lost", connection.down_until - world.now)
            world.note("network", "the connection of %s to %s is lost with what is on its way", process, target)
        if weather.again:
            connection.recent = [*connection.recent[1 - _KEPT :], frames]
            if world.draw.random() < weather.again:
                self._again(process, connection, target)

    def leaves(self, process: Process) -> None:
        """A process is about to be ended: what it has sent last may come again behind its end."""
        if self._weather.again and not self._world.is_calm:
            for (source, _, target), connection in list(self._connections.items()):
                if source == str(process) and connection.recent and self._world.draw.random() < self._weather.again:
                    self._again(process, connection, target)

    def _again(self, process: Process, connection: _Connection, target: str) -> None:
        """The last few messages come once more, in their order, at once or later."""
        world = self._world
        again = connection.recent[-world.draw.randint(1, _KEPT) :]
        world.count("messages doubled")
        world.note("network", "the last %d messages of %s to %s come again", len(again), process, target)

        def send() -> None:
            for frames in again:
                self._carry(connection, target, frames)

        world.later(world.draw.choice((0.0, 0.05, 0.5)) * world.draw.random(), None, send)


def _frames(token: bytes, message: Message, values: Any) -> list[Frame]:
    """As Outbox makes them of a message, and of the names and tensors of one with values."""
    if not isinstance(message, Values):
        return [token + encode(message)[0]]
    names, tensors = values
    bundle = tensors if isinstance(tensors, Bundle) else bundle_of(names, tensors)
    header, *rest = encode(message, bundle)
    return [token + header, *(bytes(frame) for frame in rest)]  # as they are now


def _role_of(endpoint: str) -> str:
    return endpoint.partition("/")[0]

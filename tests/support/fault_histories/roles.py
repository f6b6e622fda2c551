"""The roles of one try: their real machines, driven by events in the place of threads, and their parameters, which are written to real files.

What decides is the product's (htrain.executor.roles, htrain.executor.engine); what is here is what threads, sockets and forks do in a run
(htrain.executor.launch.play, htrain.executor.launch.role, htrain.executor.loops).
"""

import random
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_histories.counting import Case, Parts
from fault_histories.kept import Kept
from fault_histories.rules import Stepped
from fault_histories.wires import Wires
from fault_histories.world import Killed, World
from htrain.errors import CheckpointError, Error, PeerLost
from htrain.executor.record.checkpoint import read_manifest
from htrain.executor.record.deltas import Deltas
from htrain.executor.record.role_file import load_role_into
from htrain.executor.record.share import Share
from htrain.executor.record.tensor_file import values_of
from htrain.executor.roles.alone import gone_on_alone
from htrain.executor.roles.handed import Handed
from htrain.executor.roles.obeying import Obeying
from htrain.executor.roles.resting import Resting
from htrain.executor.roles.server import ServerMachine
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import LAUNCHER
from htrain.executor.transport.wire import Addresses, Beat, Failed, Hello, Message, Order, Ready, State
from htrain.net.names import TRAINER, role_of
from htrain.ops.bundle import Bundle

BEAT_SECONDS = 0.5
COMPUTE_SECONDS = 0.002  # of a stage, in the mean


@dataclass(frozen=True)
class Machines:
    """The classes that decide for roles: the product's own, or ones with a bug that was planted."""

    obeying: type[Obeying] = Obeying
    server: type[ServerMachine] = ServerMachine
    resting: type[Resting] = Resting
    handed: type[Handed] = Handed
    goes_on: Callable[..., RunSettings] = gone_on_alone
    kept: type[Kept] = Kept


@dataclass(eq=False)
class Try:
    """What the roles of one try have in common. `batches` are those of each trainer."""

    number: int
    token: bytes
    case: Case
    settings: RunSettings
    batches: int
    world: World
    wires: Wires
    machines: Machines
    stepped: Stepped
    began: float = 0.0
    has_others: bool = False  # of earlier tries, which still live
    kills: float = 0.0  # the share of a trainer's instructions in which its process is killed
    ps_kills: float = 0.0  # and of a sparse PS's
    group_kills: float = 0.0  # and of a group PS's
    apart: random.Random = field(default_factory=random.Random)  # draws of which histories without such kills have none


class Role:
    """One role, in a process of its own, from its start until it leaves or dies. A subclass says what those of a kind do."""

    def __init__(self, name: str, attempt: Try, settings: RunSettings | None = None) -> None:
        self.name, self.attempt, self.settings = name, attempt, settings or attempt.settings
        self.world, self.wires = attempt.world, attempt.wires
        self.incarnation = self.settings.positions.get(name, {}).get("incarnation", 0)
        self.process = self.world.begin(name, attempt.number, self.incarnation)
        self.error: Exception | None = None
        self.reader_error: Exception | None = None
        self.is_warm = False
        self.has_failed = False
        self.renewals = 0  # of its waits
        self.parts: Parts | None = None
        self._obeying: Obeying | None = None
        self._orders: deque[Order] = deque()
        self._is_ready = False
        self._is_called = False  # its main thread, to look
        self._saved: dict[str, Any] = {}
        self._deltas = Deltas(least_bytes=0)
        self._busy_until = 0.0
        self.process.on_end.append(self._give_back)
        self.world.soon(self.process, self._come_up, mean=0.02)

    # -- coming up ---------------------------------------------------------------------------------------------------

    def _come_up(self) -> None:
        self.parts = self.attempt.case.take(self.name)
        self.build(self.parts)
        self.listen("control", self._hear)
        self.world.later(BEAT_SECONDS * self.world.draw.random(), self.process, self._beat)
        endpoints = {f"{self.name}/{what}": self.name for what in ("control", "pulse")}
        self.tell(Hello(self.name, endpoints, "here", 7, self.incarnation))
        self._give_up_later(lambda: self._obeying is not None, "the launcher sent no addresses")

    def _give_back(self) -> None:
        if self.parts:
            self.attempt.case.give_back(self.name, self.parts)
            self.parts = None

    def _give_up_later(self, is_there: Callable[[], bool], what: str) -> None:
        seconds = self.settings.warm_up_seconds

        def look() -> None:
            if not is_there():
                self._fail(PeerLost(f"{self.name}: {what} within {seconds:.0f} s"))

        self.world.later(seconds, self.process, look)

    def _hear(self, message: Message, bundle: Bundle) -> None:
        if isinstance(message, Addresses):
            if self._obeying or message.incarnation != self.incarnation:
                return
            self._obeying = self.attempt.machines.obeying(self, _Line(self), message.book, message.ordered)
            self.world.soon(self.process, self._fill, mean=0.01)
        elif isinstance(message, Order) and self._obeying is None:
            if message.verb in ("stop", "abort"):  # others are late words to a process before
                self._fail(PeerLost(f"{self.name}: the launcher has given up the run"))
        elif isinstance(message, Order):
            self._orders.append(message)
            if self._is_ready:
                self.call()

    def _fill(self) -> None:
        """First values, or those of a checkpoint."""
        try:
            self.fill()
            self.restore(self.settings.positions.get(self.name, {}))
            self._is_ready = True
            self.tell(Ready(self.name, self.metrics(), self.incarnation))
        except Error as error:
            self._fail(error)
            return
        if self._orders:
            self.call()

    def fill(self) -> None:
        """Raises CheckpointError."""
        if self.settings.restore:
            assert self.parts
            folder = Path(self.settings.restore)
            manifest = read_manifest(folder)
            load_role_into(folder, self.name, manifest, self.parts.assembly.store)

    # -- the main thread ---------------------------------------------------------------------------------------------

    def call(self) -> None:
        """There is something for the main thread to look at. By any thread: it rings the role's bell."""
        if not self._is_called and self._is_ready:
            self._is_called = True
            self.world.soon(self.process, self._look, mean=0.002)

    def _look(self) -> None:
        if self._busy_until > self.world.now:
            self.world.later(self._busy_until - self.world.now, self.process, self._look)
            return
        self._is_called = False
        assert self._obeying
        try:
            if self._orders:
                order = self._orders.popleft()
                self.world.note(self.process, "is told to %s (%d)", order.verb, order.number)
                if not self._obeying.told(order):
                    self.world.kill(self.process, "told to end")
                    return
            self._obeying.look()
        except Error as error:
            self._fail(error)
            return
        if self._orders:
            self.call()

    def fail(self, error: Exception) -> None:
        """Something has gone wrong in one of the role's threads."""
        self.error = self.error or error
        self.call()

    def _fail(self, error: Error) -> None:
        self.world.note(self.process, "cannot go on: %s", error)
        self.has_failed = True
        with suppress(PeerLost):
            self.tell(Failed(self.name, type(error).__name__, str(error), self.incarnation))
        self.world.later(0.01, self.process, lambda: self.world.kill(self.process, "it has failed"))

    def _beat(self) -> None:
        exchanged = self._obeying.exchanged() if self._obeying else (-1, -1)
        self.offer("pulse", Beat(self.name, self.metrics() if self._is_ready else {}, *exchanged, self.incarnation))
        self.world.later(BEAT_SECONDS, self.process, self._beat)

    # -- the line to the launcher ------------------------------------------------------------------------------------

    def listen(self, what: str, take: Callable[[Message, Bundle], None]) -> None:
        """Take messages at an endpoint of this role."""
        endpoint = f"{self.name}/{what}" if what else self.name
        self.wires.listen(endpoint, self.process, self.attempt.token, take)

    def send(self, thread: str, target: str, message: Message, values: Any = ()) -> float:
        """Send to an endpoint; until when the thread has to wait. Raises PeerLost."""
        return self.wires.send(self.process, thread, target, self.attempt.token, message, values)

    def offer(self, thread: str, message: Message) -> None:
        """Tell the launcher something where it can take it at once."""
        self.wires.offer(self.process, thread, LAUNCHER, self.attempt.token, message)

    def tell(self, message: Message) -> None:
        """Tell the launcher something: the main thread waits until that can go. Raises PeerLost."""
        self._busy_until = self.send("main", LAUNCHER, message)

    # -- saving ------------------------------------------------------------------------------------------------------

    def save(self, folder: Path, last: str) -> None:
        """A process apart writes the parameters as they are now, at its leisure; or they are written here, at once. What has changed alone, at times."""
        assert self.parts
        tensors = self.parts.assembly.store
        assert not self._saved
        if not tensors:
            self._end_save({})
            return
        values = values_of({name: tensor.clone() for name, tensor in tensors.items()})
        base = self._deltas.base(last) if self.world.draw.random() < 0.6 else None
        share = Share(folder, self.name, values, base)
        if self.world.draw.random() < 0.15:
            self._write(share, is_apart=False)
        else:
            mean = self.world.draw.choice((0.005, 0.005, 0.2))
            self.world.soon(self.process, lambda: self._write(share, is_apart=True), mean=mean)

    def _write(self, share: Share, *, is_apart: bool) -> None:
        try:
            self._end_save(share.told(self._deltas, *share.write()))
        except CheckpointError as error:
            self._deltas.refused()
            self._end_save({"error": str(error)})
        except Killed:
            if not is_apart or self.world.draw.random() < 0.5:
                raise
            self._deltas.refused()
            self._end_save({"error": "its process was ended"})

    def _end_save(self, outcome: dict[str, Any]) -> None:
        self._saved = {"saved": outcome}
        self.call()

    def saved(self) -> dict[str, Any]:
        saved, self._saved = self._saved, {}
        return saved

    def publish(self, version: str, base: str) -> None:
        raise AssertionError("nobody wants a version")

    def published(self) -> dict[str, Any]:
        return {}

    # -- what each kind does -----------------------------------------------------------------------------------------

    finished = False

    @property
    def quiet(self) -> bool:
        return True

    @property
    def patience(self) -> float:
        """Seconds for which one of its threads waits for others."""
        return self.settings.deadline_seconds if self.is_warm else self.settings.warm_up_seconds

    @abstractmethod
    def build(self, parts: Parts) -> None:
        """Make the machines, and open their endpoints."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """What the checkpoint has of it besides parameters."""

    def start(self, book: dict[str, str]) -> None:
        """Begin to work."""

    def lost(self, role: str, incarnation: int) -> None:
        """A role is gone, and will be begun again: nothing is sent to it, and who waits, waits from now on."""
        self.renewals += 1
        self.wires.lost(self.process, role)

    def found(self, role: str, book: dict[str, str]) -> None:
        """It has been begun again."""
        self.wires.found(self.process, role)

    def pause(self) -> None:
        """Begin no more steps and rounds."""

    def resume(self) -> None:
        """Begin steps and rounds again."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it besides parameters."""
        return {}

    def metrics(self) -> dict[str, Any]:
        """What it has measured."""
        return {"cpu_seconds": 0.0}


class _Line:
    """A role's line to its launcher (htrain.executor.transport.link)."""

    def __init__(self, role: Role) -> None:
        self._role = role

    def beat(self, metrics: dict[str, Any]) -> None:
        self._role.offer("main", Beat(self._role.name, metrics, incarnation=self._role.incarnation))

    def state(self, state: str, details: dict[str, Any], number: int, place: int) -> None:
        self._role.world.note(self._role.process, "says that it is %s (%d) %s", state, number, details)
        self._role.tell(State(self._role.name, state, details, number, place, self._role.incarnation))

    def refuse(self) -> None:
        raise AssertionError("the launcher gives no such order")


@dataclass
class Mailbox:
    """Messages for one thread of a role, which `wakes` when one has come and it waits."""

    wakes: Callable[[], None]
    messages: deque[tuple[Message, Bundle]] = field(default_factory=deque)
    is_awaited: bool = False

    def take(self, message: Message, bundle: Bundle) -> None:
        self.messages.append((message, bundle))
        if self.is_awaited:
            self.is_awaited = False
            self.wakes()


def is_trainer(role: str) -> bool:
    return role_of(role) == TRAINER

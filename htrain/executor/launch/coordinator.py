"""Carries out what the launcher's machine says: with sockets, the clock, the run folder, and the processes of the roles."""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from htrain.errors import CheckpointError, PeerLost
from htrain.executor.host.process import this_process
from htrain.executor.launch.interrupt import Interrupt
from htrain.executor.launch.launcher_pulse import LauncherPulse
from htrain.executor.record.identity import Identity
from htrain.executor.record.measured import save_measured
from htrain.executor.record.saves import Saves
from htrain.executor.record.totals import RunTotals
from htrain.executor.record.validations import Validation
from htrain.executor.roles.address_book import AddressBooks
from htrain.executor.roles.alone import Alone
from htrain.executor.roles.coordination import (
    Asked,
    AskWhetherLives,
    AskWhetherReplaceable,
    Await,
    BeginAgain,
    Came,
    CloseCheckpoint,
    CloseVersion,
    Connect,
    DropCheckpoint,
    Ended,
    Event,
    Instruction,
    KeepMeasured,
    Leaves,
    Listened,
    Machine,
    OpenCheckpoint,
    OpenVersion,
    Reach,
    Refused,
    RunResult,
    ShowTotals,
    Tell,
    TellAll,
    Validate,
    Validated,
    VersionEnded,
)
from htrain.executor.roles.coordinator import CoordinatorMachine, ServingMachine
from htrain.executor.roles.limits import is_for_launcher, most_message_bytes
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import LAUNCHER, Launcher
from htrain.executor.transport.port import Inbox, Network, Outbox
from htrain.executor.transport.wire import Addresses, Order
from htrain.files import put_file
from htrain.plan.plan import Plan


class WorkerPool(Protocol):
    """The processes or threads that play the roles."""

    def can_begin_again(self, role: str) -> bool:
        """Whether a role, of which `lost` has told, or which is silent, can be begun anew while others go on."""

    def begin_again(self, role: str, checkpoint: str) -> None:
        """Do so, with the parameters of a checkpoint where it has any: `lost` tells of it no more. One that lives, and may be alone, is ended before."""

    @property
    def descriptors(self) -> Sequence[int]:
        """What can be read as soon as `lost` and `lives` may have news; nothing, from the beginning, where `lost` never has any."""

    def lost(self) -> str:
        """What happened to a role that ended by itself, naming it; "" while all live."""

    def leaving(self) -> str:
        """Who is to leave once all is saved, and that it does; "" while nobody is."""

    def lives(self, role: str) -> bool:
        """Whether a role is known to live, however silent it is."""

    def end(self) -> None:
        """End those that have not ended; nothing of the run is left behind."""

    def abandon(self) -> None:
        """The same for a run that has failed: what roles do is of no use any more."""

    def kill(self) -> bool:
        """End them, and what they were begun by, at once; False where they, as threads, only end by themselves, when they are told to."""


class OwnFolder(Protocol):
    """The run folder, which is the run's own until it `is_lost`: somebody has removed or renamed it."""

    is_lost: bool

    def give_sign(self) -> None:
        """See whether it is, and say that its owner lives, where that is due. For any thread; called each second or two."""

    def look(self) -> None:
        """See whether it is, now. Raises CheckpointError where it is lost."""

    def require(self) -> None:
        """Raises CheckpointError where it was found to be lost."""


class Validations(Protocol):
    """What evaluates checkpoints beside training. The launcher's thread alone calls it."""

    @property
    def descriptors(self) -> Sequence[int]:
        """What can be read as soon as `news` may have some."""

    @property
    def spared(self) -> Collection[str]:
        """The names of checkpoints that are not to be removed."""

    def begin(self, checkpoint: Path) -> None:
        """Begin to evaluate a checkpoint. Requires: of the one before, `news` has told."""

    def news(self) -> Validated | None:
        """What the run is told of an evaluation that has ended, once; None where none has."""


class Publications(Protocol):
    """What makes versions of what roles publish. The launcher's thread alone calls it."""

    @property
    def descriptors(self) -> Sequence[int]:
        """What can be read as soon as `news` may have some."""

    def begin(self, examples: int, *, is_final: bool) -> tuple[str, str]:
        """The name of the next version, and of its base, "" for none. Requires: of the one before, `news` has told."""

    def finish(self, published: Mapping[str, Mapping[str, Any]]) -> None:
        """Begin to make a version of what roles have written, or could not."""

    def news(self) -> VersionEnded | None:
        """How a version ended, once; None where none has."""


@dataclass(frozen=True)
class NoVersions:
    """Of a run whose model nobody wants to have published."""

    descriptors: Sequence[int] = ()

    def begin(self, examples: int, *, is_final: bool) -> tuple[str, str]:
        """Not to be called. Raises AssertionError."""
        raise AssertionError("nobody wants a version")

    def finish(self, published: Mapping[str, Mapping[str, Any]]) -> None:
        """Not to be called. Raises AssertionError."""
        raise AssertionError("nobody wants a version")

    def news(self) -> VersionEnded | None:
        """There is none."""
        return None

    def close(self) -> None:
        """There is nothing to abandon."""


@dataclass(frozen=True)
class NoValidations:
    """Of a run whose checkpoints nobody wants to have evaluated; those that it was resumed with may be `spared`."""

    spared: Collection[str] = ()
    descriptors: Sequence[int] = ()

    def show(self, on_found: Callable[[Validation], None]) -> None:
        """There is none to show."""

    def begin(self, checkpoint: Path) -> None:
        """Not to be called. Raises AssertionError."""
        raise AssertionError(f"{checkpoint}: nobody wants it validated")

    def news(self) -> Validated | None:
        """There is none."""
        return None

    def finish(self, checkpoint: Path, interrupt: Interrupt, folder: OwnFolder) -> tuple[Validation, ...]:
        """There are none of the last checkpoint either."""
        return ()

    def close(self) -> None:
        """There is nothing to abandon."""


@dataclass(frozen=True)
class Outside:
    """What a run has around it: `interrupt` says whether the user asks to stop; `on_totals` is called about twice a second, `tell` with news;
    `folder` is its own; `on_book` is called once with the addresses of all endpoints; `validations` evaluate its checkpoints,
    `publications` make versions of its model; `has_its_own` says whether what the run reads, data and plan, is still as it was."""

    interrupt: Interrupt
    on_totals: Callable[[RunTotals, dict[str, dict[str, Any]]], None]
    tell: Callable[[str], None]
    folder: OwnFolder
    on_book: Callable[[Mapping[str, str]], None] = lambda book: None
    validations: Validations = NoValidations()
    publications: Publications = NoVersions()
    has_its_own: Callable[[], bool] = lambda: True

    def keep_folder(self) -> None:
        """Give a sign of life where that is due. For the launcher's own thread. Raises CheckpointError where the run folder was found to be lost."""
        self.folder.give_sign()
        self.folder.require()


class Coordinator:
    """Runs one plan to its end. A role that can be begun again alone is so, `retries` times without a checkpoint between them; `alone` counts. It waits in one
    place, `_events`, for all that may come, and no longer than its machine says."""

    def __init__(
        self,
        plan: Plan,
        network: Network,
        settings: RunSettings,
        identity: Identity,
        outside: Outside,
        retries: int = 0,
    ) -> None:
        self._plan = plan
        self.alone = Alone(retries)
        self._roles = frozenset(plan.cluster.roles)
        self._books = AddressBooks(plan)
        network.most_bytes = most_message_bytes(plan)
        self._inbox: Inbox = network.inbox(LAUNCHER)
        self.place = Launcher(self._inbox.address, this_process(), network.token)
        self._network = network
        self._outbox: Outbox | None = None
        self._pulse: LauncherPulse | None = None
        self._settings = settings
        self._outside = outside
        self._saves = Saves(
            settings.run_folder, identity, outside.tell, lambda: outside.validations.spared,
            left=settings.left, extent=settings.extent, look=outside.folder.look,
        )  # fmt: skip
        self._until = 0.0  # how long the machine would wait
        self._strangers: Mapping[str, int] = {}  # messages of theirs that roles have dropped

    def run(self, pool: WorkerPool) -> RunResult:
        """Bring `pool` together, train to the end of the data, checkpoint, end. Raises what CoordinatorMachine.run does."""
        kind = ServingMachine if self._settings.serving else CoordinatorMachine
        machine = kind(self._plan, self._settings, tells_of_ends=bool(pool.descriptors), alone=self.alone)
        try:
            return self._drive(machine.run(time.monotonic()), pool)
        except KeyboardInterrupt:
            if not pool.kill():
                self._tell_all(Order("abort"))
            raise
        except PeerLost:
            pool.abandon()
            raise
        except CheckpointError:
            if self._outside.folder.is_lost:  # what roles still write would come to another run's
                pool.abandon()
            raise
        finally:
            if self._pulse:
                self._pulse.stop()
            pool.end()
            self._tell_of_strangers()
            self._inbox.close()
            if self._outbox:
                self._outbox.close()

    def _tell_of_strangers(self) -> None:
        """Whose messages were dropped, and by whom."""
        dropped = {LAUNCHER: self._inbox.strangers, **self._strangers}
        if count := sum(dropped.values()):
            by = ", ".join(f"{role} {number:,}" for role, number in sorted(dropped.items()) if number)
            self._outside.tell(f"{count:,} messages of strangers were dropped: {by}")

    def _drive(self, run: Machine[RunResult], pool: WorkerPool) -> RunResult:
        events = self._events(pool)
        try:
            instruction = next(run)
            while True:
                try:
                    answer = self._carry_out(instruction, events, pool)
                except Exception as error:
                    instruction = run.throw(error)
                else:
                    instruction = run.send((time.monotonic(), answer))
        except StopIteration as end:
            result: RunResult = end.value
            return result

    def _events(self, pool: WorkerPool) -> Iterator[Event]:
        """What comes, one after another, without end. Raises RunError for a message that cannot be read, and what keeps roles from hearing of the launcher."""
        interrupt, is_told, has_left = self._outside.interrupt, False, False
        beside = (self._outside.validations, self._outside.publications)
        while True:
            seconds = max(0.0, self._until - time.monotonic())
            descriptors = [each for part in (pool, interrupt, *beside) for each in part.descriptors]
            self._inbox.wait(seconds, descriptors)
            while got := self._inbox.receive(0):
                if is_for_launcher(got[0], self._roles):
                    yield Came(got[0])
                else:
                    self._inbox.refuse()
            if lost := pool.lost():
                yield Ended(lost, is_replaceable=self._can_begin_again(lost.partition(" ")[0], pool))
            if not has_left and (leaving := pool.leaving()):
                has_left = True
                yield Leaves(leaving)
            if interrupt.is_asked and not is_told:
                is_told = True
                yield Asked()
            for part in beside:
                if known := part.news():
                    yield known
            self._outside.keep_folder()
            if self._pulse:
                self._pulse.check()
            yield Listened()

    def _carry_out(self, said: Instruction, events: Iterator[Event], pool: WorkerPool) -> Any:
        if isinstance(said, Await):
            self._until = said.until
            return next(events)
        if isinstance(said, AskWhetherLives):
            return pool.lives(said.role)
        if isinstance(said, AskWhetherReplaceable):
            return self._can_begin_again(said.role, pool)
        if isinstance(said, OpenCheckpoint | CloseCheckpoint | DropCheckpoint):
            return self._save(said)
        if isinstance(said, OpenVersion):
            return self._outside.publications.begin(said.examples, is_final=said.is_final)
        if isinstance(said, CloseVersion):
            self._outside.publications.finish(said.published)
        elif isinstance(said, Connect):
            self._connect(said, pool)
        elif isinstance(said, TellAll):
            self._tell_all(said.order)
        elif isinstance(said, BeginAgain):
            self._network.lost(said.role)
            pool.begin_again(said.role, said.checkpoint)
        elif isinstance(said, Reach):
            self._reach(said)
        elif isinstance(said, Validate):
            self._outside.validations.begin(said.checkpoint)
        elif isinstance(said, Tell):
            self._outside.tell(said.text)
        elif isinstance(said, ShowTotals):
            self._strangers = {role: report.get("strangers", 0) for role, report in said.reports.items()}
            self._outside.on_totals(said.totals, said.reports)
        else:
            self._keep(said)
        return None

    def _can_begin_again(self, role: str, pool: WorkerPool) -> bool:
        return pool.can_begin_again(role) and self._outside.has_its_own()

    def _reach(self, said: Reach) -> None:
        assert self._outbox
        self._network.found(said.role, said.endpoints)
        self._keep_places(said.places)
        ((_, book),) = self._books.of([said.role], said.book)
        self._outbox.send(f"{said.role}/control", Addresses(book, said.ordered, said.incarnation))

    def _keep_places(self, places: Mapping[str, Mapping[str, Any]]) -> None:
        self._outside.folder.look()
        with self._saves.unless_refused("where roles run"):
            put_file(self._settings.run_folder / "roles.json", (json.dumps(places, indent=1) + "\n").encode())

    def _connect(self, said: Connect, pool: WorkerPool) -> None:
        self._outbox = self._network.outbox(said.book)
        self._outbox.while_waiting = lambda: self._look_for(pool)
        self._pulse = LauncherPulse(self._network, said.book, self._outside.folder.give_sign)
        self._keep_places(said.places)
        self._outside.on_book(said.book)
        for role, book in self._books.of(self._plan.cluster.roles, said.book):
            # What serves workers from outside tells them of all others.
            self._outbox.send(f"{role}/control", Addresses(dict(said.book) if self._settings.serving else book))

    def _look_for(self, pool: WorkerPool) -> None:
        """Have nobody waited for whom `pool` knows to be lost, which is the next event."""
        if lost := pool.lost():
            role = lost.partition(" ")[0]
            for each in [role] if role in self._roles else self._plan.cluster.roles:
                self._network.lost(each)

    def _tell_all(self, order: Order) -> None:
        """Never waits. An order is not lost with a connection; a role that does not take it is gone, and its pool or its silence will say so."""
        if self._outbox:
            for role in self._plan.cluster.roles:
                self._outbox.post(f"{role}/control", order)

    def _save(self, said: OpenCheckpoint | CloseCheckpoint | DropCheckpoint) -> Any:
        """Raises CheckpointError where the run folder is lost: the run ends, and does not try again."""
        self._outside.folder.look()
        try:
            if isinstance(said, OpenCheckpoint):
                return self._saves.open(said.trainers)
            if isinstance(said, CloseCheckpoint):
                self._saves.close(said.trainers, said.saved, finished=said.finished)
            else:
                self._saves.discard()
        except CheckpointError as error:
            return Refused(str(error))
        except OSError as error:  # a file system that is away for a moment
            return Refused(f"{error.filename or self._settings.run_folder}: {error.strerror}")
        return None

    def _keep(self, said: KeepMeasured) -> None:
        self._outside.folder.look()
        with self._saves.unless_refused("what was measured"):
            save_measured(self._settings.run_folder, said.measured)

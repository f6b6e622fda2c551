"""The launcher's side of a run: brings roles together, watches them, checkpoints, and ends the run (docs/decisions/runs-and-resumes.md)."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

import htrain.errors as errors
from htrain.errors import CheckpointError, Error, Interrupted, PeerLost, RunError
from htrain.executor.host.process import this_process
from htrain.executor.launch.launcher_pulse import LauncherPulse
from htrain.executor.record.identity import Identity
from htrain.executor.record.measured import Measured, measure, save_measured
from htrain.executor.record.saves import Saves
from htrain.executor.record.totals import RunTotals, summarise
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import LAUNCHER, Launcher
from htrain.executor.transport.port import Inbox, Network, Outbox
from htrain.executor.transport.wire import Addresses, Beat, Failed, Hello, Order, Ready, State
from htrain.net.names import TRAINER, role_at, role_of
from htrain.plan.plan import Plan
from htrain.sync.liveness import Liveness, Lost

_TICK_SECONDS = 0.1  # the clock and the user's Ctrl-C are looked at this often
_NEWS_SECONDS = 1.0  # for the news of a process's end, once another role misses it
_WINDOW_SECONDS = 5.0
_SAVE_BYTES_PER_SECOND = 10_000_000  # that the slowest disk takes
_AGAIN_SECONDS = 5.0  # between two tries of the last save
_LAST_SAVE_SECONDS = 60.0


class WorkerPool(Protocol):
    """The processes or threads that play the roles."""

    @property
    def descriptors(self) -> Sequence[int]:
        """What can be read as soon as `lost` and `lives` may have news."""

    def lost(self) -> str:
        """What happened to a role that ended by itself, naming it; "" while all live."""

    def lives(self, role: str) -> bool:
        """Whether a role is known to live, however silent it is."""

    def end(self) -> None:
        """End those that have not ended; nothing of the run is left behind."""

    def kill(self) -> None:
        """End them at once."""


@dataclass(frozen=True)
class RunResult:
    """How a run went. `checkpoint` is the folder of the last one."""

    totals: RunTotals
    checkpoint: Path
    train_seconds: float
    measured: Measured


@dataclass(frozen=True)
class Outside:
    """What a run has around it: `interrupted` says whether the user asked to stop; `on_totals` is called about twice a second, `tell` with news,
    `give_sign` every second, by any thread."""

    interrupted: Callable[[], bool]
    on_totals: Callable[[RunTotals, dict[str, dict[str, Any]]], None]
    tell: Callable[[str], None]
    give_sign: Callable[[], None]


@dataclass
class _Seen:
    """What the launcher knows of its roles."""

    book: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    finished: dict[str, dict[str, Any]] = field(default_factory=dict)
    unreadable: Error | None = None
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)


class Coordinator:
    """Runs one plan to its end."""

    def __init__(
        self, plan: Plan, network: Network, settings: RunSettings, identity: Identity, outside: Outside
    ) -> None:
        self._plan = plan
        self._roles = plan.cluster.roles
        self._trainers = [r for r in self._roles if role_of(r) == TRAINER]
        self._inbox: Inbox = network.inbox(LAUNCHER)
        self.place = Launcher(self._inbox.address, this_process())
        self._network = network
        self._outbox: Outbox | None = None
        self._pulse: LauncherPulse | None = None
        self._run_folder = settings.run_folder
        self._settings = settings
        self._outside = outside
        self._saves = Saves(settings, identity, outside.tell)
        limits = {"limit_seconds": settings.liveness_seconds, "warm_up_seconds": settings.warm_up_seconds}
        self._liveness = Liveness(self._roles, **limits)
        self._listened = time.monotonic()
        self._seen = _Seen()
        self._began = time.monotonic()
        self._first: dict[str, dict[str, Any]] = {}
        self._steady: list[tuple[float, dict[str, dict[str, Any]]]] = []
        self._windows: list[tuple[float, dict[str, dict[str, Any]]]] = []

    def run(self, pool: WorkerPool) -> RunResult:
        """Bring `pool` together, train to the end of the data, checkpoint, end.

        Raises PeerLost naming a role that died or fell silent, what a role reported as its failure, and, after a checkpoint, Interrupted and what
        kept a reader from reading on.
        """
        try:
            self._gather(pool)
            started = self._began = time.monotonic()
            self._first = dict(self._seen.reports)
            self._windows = [(started, self._first)]
            self._tell_all("start")
            stopped = self._train(pool)
            seconds = time.monotonic() - started
            self._last_save(pool, finished=not stopped)
            totals = self._totals()
            self._outside.on_totals(totals, self._seen.reports)
            self._tell_all("stop")
            measured = self._measured()
            if stopped:
                raise self._why_stopped(totals)
            with self._saves.unless_refused("what was measured"):
                save_measured(self._run_folder, measured)
            assert self._saves.last
            return RunResult(totals, self._saves.last, seconds, measured)
        except KeyboardInterrupt:
            pool.kill()
            raise
        except BaseException:
            self._abort()
            raise
        finally:
            if self._pulse:
                self._pulse.stop()
            pool.end()
            self._inbox.close()
            if self._outbox:
                self._outbox.close()

    def _gather(self, pool: WorkerPool) -> None:
        seen, patience = self._seen, self._settings.warm_up_seconds
        self._await(pool, lambda: len({role_at(n) for n in seen.book}) == len(self._roles), "did not come up", patience)
        self._outbox = self._network.outbox(seen.book)
        self._pulse = LauncherPulse(self._network, seen.book, self._outside.give_sign)
        with self._saves.unless_refused("where roles run"):
            (self._run_folder / "roles.json").write_text(json.dumps(seen.places, indent=1) + "\n")
        for role in self._roles:
            self._outbox.send(f"{role}/control", Addresses(seen.book))
        self._await(
            pool,
            lambda: len(seen.ready) == len(self._roles),
            "did not load its parameters",
            patience + self._save_seconds,
        )

    def _await(self, pool: WorkerPool, done: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            self._listen(pool)
            if self._outside.interrupted():
                raise Interrupted("stopped before training began")
            if time.monotonic() > deadline:
                known = self._seen.ready or {role_at(n) for n in self._seen.book}
                raise PeerLost(f"{min(set(self._roles) - known, default='a role')} {what} within {seconds:.0f} s")

    def _train(self, pool: WorkerPool) -> bool:
        """Watch until the data is over; return True when the run is to stop before: the user has asked for it, or a reader cannot read on."""
        shown = time.monotonic()
        self._saves.begin()
        while len(self._seen.finished) < len(self._trainers):
            self._listen(pool)
            now = time.monotonic()
            if self._outside.interrupted() or self._seen.unreadable:
                return True
            if now - shown > 0.5:
                shown = now
                self._outside.on_totals(self._totals(), self._seen.reports)
            if self._saves.is_due:
                self._checkpoint(pool, finished=False)
                self._tell_all("resume")
        return bool(self._seen.unreadable)

    def _why_stopped(self, totals: RunTotals) -> Error:
        if error := self._seen.unreadable:
            return type(error)(
                f"{error}; until there it is saved: once the same data can be read, go on with --resume {self._run_folder}"
            )
        return Interrupted(f"stopped after {totals.examples:,} examples; go on with --resume {self._run_folder}")

    def _listen(self, pool: WorkerPool) -> None:
        """Wait for news, a moment at most, and take all that has come; raise what a role, its process or its silence says went wrong."""
        self._inbox.wait(_TICK_SECONDS, pool.descriptors)
        while got := self._inbox.receive(0):
            try:
                self._take(got[0])
            except PeerLost:  # whoever misses a role says so at once; who it is that died says more
                self._await_loss(pool)
                raise
        self._check_pool(pool)
        self._outside.give_sign()
        self._check_silence(pool)

    def _await_loss(self, pool: WorkerPool) -> None:
        """Raises PeerLost for a role whose process ended, as soon as that is known; nothing where it is not within a second."""
        deadline = time.monotonic() + _NEWS_SECONDS
        while (left := deadline - time.monotonic()) > 0 and pool.descriptors:
            self._check_pool(pool)
            wait(pool.descriptors, left)
        self._check_pool(pool)

    def _check_pool(self, pool: WorkerPool) -> None:
        """Raises PeerLost for a role whose process ended."""
        if lost := pool.lost():
            role = lost.partition(" ")[0]
            last_step = f" (its last step: {self._last_step(role)})" if role in self._roles else ""
            raise PeerLost(f"{lost}{last_step}; {self._saves.advice}")

    def _last_step(self, role: str) -> str:
        report = self._seen.reports.get(role, {})
        return str(report.get("steps", report.get("passes", "not known")))

    def _check_silence(self, pool: WorkerPool) -> None:
        now = time.monotonic()
        passed, self._listened = now - self._listened, now
        for news in self._liveness.listened(passed):
            lives = pool.lives(news.role)
            said = (
                f"{news.role} has been silent for {news.seconds:.0f} s{', though its process lives' if lives else ''}"
            )
            if isinstance(news, Lost):
                raise PeerLost(
                    f"{said} (its last step: {self._last_step(news.role)}; --liveness-seconds gives it longer); {self._saves.advice}"
                )
            self._outside.tell(said)

    def _take(self, message: object) -> None:
        seen = self._seen
        if isinstance(message, Hello):
            seen.book.update(message.endpoints)
            seen.places[message.source] = {"host": message.host, "pid": message.pid}
        elif isinstance(message, Ready):
            seen.ready.add(message.source)
            seen.reports[message.source] = message.metrics
        elif isinstance(message, Beat) and message.metrics:
            seen.reports[message.source] = message.metrics
        elif isinstance(message, State) and message.state == "unreadable":
            seen.unreadable = _error_of(message.details["kind"], message.details["error"])
        elif isinstance(message, State):
            (seen.finished if message.state == "finished" else seen.states)[message.source] = message.details
        elif isinstance(message, Failed):
            text = message.error if message.error.startswith(message.source) else f"{message.source}: {message.error}"
            raise _error_of(
                message.kind, f"{text}; {self._saves.advice}" if message.kind in ("PeerLost", "RunError") else text
            )
        if isinstance(message, Beat | State | Ready | Hello):
            self._liveness.heard(message.source)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint(self, pool: WorkerPool, *, finished: bool) -> bool:
        """Bring all roles to rest between steps, save them, and make the checkpoint valid. False where the disk refused, which has been told then."""
        self._ask(pool, "pause", "", max(self._settings.deadline_seconds, self._settings.warm_up_seconds))
        trainers = {t: self._seen.states[t] for t in self._trainers}
        try:
            folder = self._saves.open(trainers)
            self._ask(pool, "save", str(folder), self._settings.warm_up_seconds + self._save_seconds)
            self._saves.close(trainers, self._seen.states, finished=finished)
        except CheckpointError as error:
            self._saves.refused(error)
            return False
        return True

    def _last_save(self, pool: WorkerPool, *, finished: bool) -> None:
        """The checkpoint at the end of the run. A disk that refuses has a minute to be mended; then CheckpointError is raised.

        None is made of a run that could not read a single row.
        """
        if self._seen.unreadable and not self._has_trained:
            raise self._seen.unreadable
        deadline = time.monotonic() + _LAST_SAVE_SECONDS
        while not self._checkpoint(pool, finished=finished):
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"what was trained last could not be saved ({self._saves.error}); {self._saves.advice}"
                )
            again = time.monotonic() + _AGAIN_SECONDS
            while time.monotonic() < again:
                self._listen(pool)

    @property
    def _has_trained(self) -> bool:
        before = sum(int(state["totals"]["examples"]) for state in self._settings.positions.values())
        return sum(int(self._seen.reports.get(t, {}).get("examples", 0)) for t in self._trainers) > before

    @property
    def _save_seconds(self) -> float:
        """For the largest role to be written, or read."""
        return max((load.holds.parameters for load in self._plan.loads.values()), default=0) / _SAVE_BYTES_PER_SECOND

    def _ask(self, pool: WorkerPool, verb: str, folder: str, seconds: float) -> None:
        """Give an order to all and wait for everybody's answer. Silence and threads that hang are noticed sooner."""
        self._seen.states = {}
        self._tell_all(verb, folder)
        deadline = time.monotonic() + seconds
        while len(self._seen.states) < len(self._roles):
            self._listen(pool)
            if time.monotonic() > deadline:
                missing = min(set(self._roles) - set(self._seen.states))
                raise PeerLost(
                    f"{missing} did not answer the order to {verb} within {seconds:.0f} s; {self._saves.advice}"
                )

    def _tell_all(self, verb: str, folder: str = "") -> None:
        """Never waits: a role that cannot take an order is gone, and its pool or its silence will say so."""
        assert self._outbox
        for role in self._roles:
            self._outbox.offer(f"{role}/control", Order(verb, folder))

    def _abort(self) -> None:
        if self._outbox:
            self._tell_all("abort")

    # -- figures -----------------------------------------------------------------------------------------------------

    def _note_steady(self, now: float, reports: dict[str, dict[str, Any]]) -> None:
        """Keep the first and the last reports of the steady part: all roles train, and none has come to the end."""
        if all(reports[trainer]["steps"] > self._first[trainer]["steps"] for trainer in self._trainers):
            self._liveness.warm()
            if not self._seen.finished:
                self._steady = [*self._steady[:1], (now, reports)]

    def _measured(self) -> Measured:
        """Predicted against measured, over the steady part; over all of a run that is too short to have one."""
        if len(self._steady) > 1:
            (then, before), (now, after) = self._steady
        else:
            (then, before), (now, after) = (self._began, self._first), (time.monotonic(), self._seen.reports)
        return measure(self._plan, before, after, now - then)

    def _totals(self) -> RunTotals:
        now = time.monotonic()
        reports = dict(self._seen.reports)
        self._windows.append((now, reports))
        while len(self._windows) > 2 and now - self._windows[1][0] > _WINDOW_SECONDS:
            self._windows.pop(0)
        self._note_steady(now, reports)
        then, before = self._windows[0]
        return summarise(reports, before, seconds=now - self._began, window_seconds=now - then)


def _error_of(kind: str, text: str) -> Error:
    """A role's error, as it raised it."""
    found = getattr(errors, kind, RunError)
    return found(text) if isinstance(found, type) and issubclass(found, Error) else RunError(text)

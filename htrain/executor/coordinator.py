"""The launcher's side of a run: brings roles together, watches them, checkpoints, and ends the run (DESIGN 5)."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import htrain.errors as errors
from htrain.errors import Error, Interrupted, PeerLost, RunError
from htrain.executor.checkpoint import VERSION, Manifest, SavedFile, checkpoint_folder, prune, write_manifest
from htrain.executor.link import LAUNCHER
from htrain.executor.measured import Measured, measure, save_measured
from htrain.executor.port import Inbox, Network, Outbox
from htrain.executor.totals import RunTotals, summarise
from htrain.executor.wire import Addresses, Beat, Failed, Hello, Order, Ready, State
from htrain.plan import Plan

_SILENCE_SECONDS = 12.0  # a role beats twice a second; one that is silent this long is lost
_WINDOW_SECONDS = 5.0


class Crew(Protocol):
    """The processes or threads that play the roles."""

    def lost(self) -> str:
        """What happened to a role that ended by itself, naming it; "" while all live."""

    def end(self) -> None:
        """End those that have not ended; nothing of the run is left behind."""


@dataclass(frozen=True)
class RunResult:
    """How a run went. `checkpoint` is the folder of the last one."""

    totals: RunTotals
    checkpoint: Path
    train_seconds: float
    measured: Measured


@dataclass
class _Seen:
    """What the launcher knows of its roles."""

    book: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    states: dict[str, dict[str, Any]] = field(default_factory=dict)
    finished: dict[str, dict[str, Any]] = field(default_factory=dict)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)


class Coordinator:
    """Runs one plan to its end. `interrupted` says whether the user asked to stop; `on_totals` is called about twice a second."""

    def __init__(
        self,
        plan: Plan,
        network: Network,
        *,
        run_folder: Path,
        checkpoint_seconds: float,
        deadline_seconds: float,
        interrupted: Callable[[], bool],
        on_totals: Callable[[RunTotals, dict[str, dict[str, Any]]], None],
        on_checkpoint: Callable[[Path], None],
    ) -> None:
        self._plan = plan
        self._roles = plan.cluster.roles
        self._trainers = [r for r in self._roles if r.startswith("trainer")]
        self._inbox: Inbox = network.inbox(LAUNCHER)
        self.address = self._inbox.address
        self._network = network
        self._outbox: Outbox | None = None
        self._run_folder = run_folder
        self._checkpoint_seconds = checkpoint_seconds
        self._deadline_seconds = deadline_seconds
        self._interrupted = interrupted
        self._on_totals = on_totals
        self._on_checkpoint = on_checkpoint
        self._seen = _Seen()
        self._began = time.monotonic()
        self._began_steps: dict[str, int] = {}
        self._steady: list[tuple[float, dict[str, dict[str, Any]]]] = []
        self._windows: list[tuple[float, dict[str, dict[str, Any]]]] = []

    def run(self, crew: Crew) -> RunResult:
        """Bring `crew` together, train to the end of the data, checkpoint, end.

        Raises PeerLost naming a role that died or fell silent, what a role reported as its failure, Interrupted after a checkpoint.
        """
        try:
            self._gather(crew)
            started = self._began = time.monotonic()
            self._tell_all("start")
            stopped = self._train(crew)
            seconds = time.monotonic() - started
            folder = self._checkpoint(crew, finished=not stopped)
            totals = self._totals()
            self._on_totals(totals, self._seen.reports)
            self._tell_all("stop")
            measured = self._measured()
            if stopped:
                raise Interrupted(f"stopped after {totals.examples:,} examples; go on with --resume {self._run_folder}")
            save_measured(self._run_folder, measured)
            return RunResult(totals, folder, seconds, measured)
        except Error:
            self._abort()
            raise
        finally:
            crew.end()
            self._inbox.close()
            if self._outbox:
                self._outbox.close()

    def _gather(self, crew: Crew) -> None:
        self._await(
            crew,
            lambda: len({n.partition("/")[0] for n in self._seen.book}) == len(self._roles),
            "did not come up",
            self._deadline_seconds + 60,
        )
        self._outbox = self._network.outbox(self._seen.book)
        (self._run_folder / "roles.json").write_text(json.dumps(self._seen.places, indent=1) + "\n")
        for role in self._roles:
            self._outbox.send(f"{role}/control", Addresses(self._seen.book))
        self._await(crew, lambda: len(self._seen.ready) == len(self._roles), "did not load its parameters", 3600.0)
        self._seen.heard = dict.fromkeys(self._roles, time.monotonic())

    def _await(self, crew: Crew, done: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            self._listen(crew)
            if self._interrupted():
                raise Interrupted("stopped before training began")
            if time.monotonic() > deadline:
                known = self._seen.ready or {n.partition("/")[0] for n in self._seen.book}
                raise PeerLost(f"{min(set(self._roles) - known, default='a role')} {what} within {seconds:.0f} s")

    def _train(self, crew: Crew) -> bool:
        """Watch until the data is over; return True when the user stopped the run instead."""
        saved = shown = time.monotonic()
        while len(self._seen.finished) < len(self._trainers):
            self._listen(crew)
            now = time.monotonic()
            self._check_silence(now)
            if self._interrupted():
                return True
            if now - shown > 0.5:
                shown = now
                self._on_totals(self._totals(), self._seen.reports)
            if self._checkpoint_seconds and now - saved > self._checkpoint_seconds:
                self._checkpoint(crew, finished=False)
                self._tell_all("resume")
                saved = time.monotonic()
        return False

    def _listen(self, crew: Crew) -> None:
        """Take what has come; raise what a role, or its process, says went wrong."""
        got = self._inbox.receive(0.1)
        if not got:
            self._check_crew(crew)
        while got:
            try:
                self._take(got[0])
            except PeerLost:  # whoever misses a role says so at once; who it is that died says more
                self._check_crew(crew, seconds=1.0)
                raise
            got = self._inbox.receive(0)

    def _check_crew(self, crew: Crew, *, seconds: float = 0.0) -> None:
        """Raises PeerLost for a role whose process ended; waits up to `seconds` for the news of it."""
        deadline = time.monotonic() + seconds
        while not (lost := crew.lost()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if lost:
            raise PeerLost(
                f"{lost} (its last step: {self._last_step(lost.partition(' ')[0])}); the last checkpoint is in {self._run_folder}"
            )

    def _last_step(self, role: str) -> str:
        report = self._seen.reports.get(role, {})
        return str(report.get("steps", report.get("passes", "not known")))

    def _take(self, message: object) -> None:
        seen = self._seen
        if isinstance(message, Hello):
            seen.book.update(message.endpoints)
            seen.places[message.source] = {"host": message.host, "pid": message.pid}
        elif isinstance(message, Ready):
            seen.ready.add(message.source)
        elif isinstance(message, Beat):
            seen.reports[message.source] = message.metrics
            seen.heard[message.source] = time.monotonic()
        elif isinstance(message, State):
            seen.heard[message.source] = time.monotonic()
            (seen.finished if message.state == "finished" else seen.states)[message.source] = message.details
        elif isinstance(message, Failed):
            kind = getattr(errors, message.kind, RunError)
            text = message.error if message.error.startswith(message.source) else f"{message.source}: {message.error}"
            raise kind(text)

    def _check_silence(self, now: float) -> None:
        for role, heard in self._seen.heard.items():
            if now - heard > _SILENCE_SECONDS:
                raise PeerLost(
                    f"{role} has been silent for {_SILENCE_SECONDS:.0f} s (its last step: {self._last_step(role)}); go on with --resume {self._run_folder}"
                )

    def _checkpoint(self, crew: Crew, *, finished: bool) -> Path:
        """Bring all roles to rest between steps, save them, and make the checkpoint valid."""
        seen = self._seen
        self._ask(crew, "pause", self._roles, "")
        trainers = {t: seen.states[t] for t in self._trainers}
        examples = sum(int(state["totals"]["examples"]) for state in trainers.values())
        folder = checkpoint_folder(self._run_folder, examples)
        folder.mkdir(parents=True, exist_ok=True)
        self._ask(crew, "save", self._roles, str(folder))
        files = {role: SavedFile(*state["file"]) for role, state in seen.states.items() if state.get("file")}
        write_manifest(folder, Manifest(VERSION, self._plan.digest, examples, trainers, files, finished))
        prune(self._run_folder)
        self._on_checkpoint(folder)
        return folder

    def _ask(self, crew: Crew, verb: str, roles: Sequence[str], folder: str) -> None:
        """Give an order to all and wait for everybody's answer."""
        self._seen.states = {}
        self._tell_all(verb, folder)
        deadline = time.monotonic() + max(self._deadline_seconds, 600.0 if verb == "save" else 0.0)
        while len(self._seen.states) < len(roles):
            self._listen(crew)
            if verb != "save":
                self._check_silence(time.monotonic())
            if time.monotonic() > deadline:
                raise PeerLost(f"{min(set(roles) - set(self._seen.states))} did not answer the order to {verb}")

    def _tell_all(self, verb: str, folder: str = "") -> None:
        """Never waits: a role that cannot take an order is gone, and its crew or its silence will say so."""
        assert self._outbox
        for role in self._roles:
            self._outbox.offer(f"{role}/control", Order(verb, folder))

    def _abort(self) -> None:
        if self._outbox:
            self._tell_all("abort")

    def _note_steady(self, now: float, reports: dict[str, dict[str, Any]]) -> None:
        """Keep the first and the last reports of the steady part: all roles train, and none has come to the end."""
        begun = all(reports[trainer].get("steps", 0) > self._began_steps.get(trainer, 0) for trainer in self._trainers)
        if not self._began_steps:
            self._began_steps = {trainer: reports[trainer].get("steps", 0) for trainer in self._trainers}
        elif begun and not self._seen.finished:
            self._steady = [*self._steady[:1], (now, reports)]

    def _measured(self) -> Measured:
        """Predicted against measured, over the steady part; over all of a run that is too short to have one."""
        if len(self._steady) > 1:
            (then, before), (now, after) = self._steady
        else:
            (then, before), (now, after) = (self._began, {}), (time.monotonic(), self._seen.reports)
        return measure(self._plan, before, after, now - then)

    def _totals(self) -> RunTotals:
        now = time.monotonic()
        reports = dict(self._seen.reports)
        if len(reports) < len(self._roles):  # no window yet: a resumed role's first report counts from before the run
            return summarise(reports, reports, seconds=now - self._began, window_seconds=0.0)
        self._windows.append((now, reports))
        while len(self._windows) > 2 and now - self._windows[1][0] > _WINDOW_SECONDS:
            self._windows.pop(0)
        self._note_steady(now, reports)
        then, before = self._windows[0]
        return summarise(reports, before, seconds=now - self._began, window_seconds=now - then)

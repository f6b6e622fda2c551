"""The launcher's side of a run, as a machine: brings roles together, watches them, checkpoints, and ends the run (docs/decisions/runs-and-resumes.md).

It is a generator like that of a net replica: it yields instructions, and is sent the time and what came of each (htrain.executor.roles.coordination).
What cannot be carried out is thrown into it, and ends the run as what a role reports does.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import htrain.errors as errors
from htrain.errors import CheckpointError, Error, Interrupted, PeerLost, PublishError, RunError
from htrain.executor.record.figures import Figures
from htrain.executor.record.measured import NOTHING_MEASURED
from htrain.executor.record.totals import RunTotals
from htrain.executor.roles.coordination import (
    Asked,
    AskWhetherLives,
    Await,
    Came,
    CloseCheckpoint,
    CloseVersion,
    Connect,
    DropCheckpoint,
    Ended,
    Instruction,
    KeepMeasured,
    Listened,
    Machine,
    OpenCheckpoint,
    OpenVersion,
    Refused,
    RunResult,
    ShowTotals,
    States,
    Tell,
    TellAll,
    Validate,
    Validated,
    VersionEnded,
)
from htrain.executor.roles.publishing import PublishSchedule
from htrain.executor.roles.saving import SaveSchedule
from htrain.executor.roles.validating import ValidationSchedule
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Beat, Failed, Hello, Message, Order, Ready, State
from htrain.net.names import TRAINER, role_at, role_of
from htrain.plan.plan import Plan
from htrain.sync.liveness import MOST_SECONDS, Liveness, Lost, Silent

_NEWS_SECONDS = 1.0  # for the news of a process's end, once another role misses it
_LONGER_SECONDS = 0.01  # than it may be, a silence has to be
_SHOW_SECONDS = 0.5  # between two looks at the totals
_SAVE_BYTES_PER_SECOND = 10_000_000  # that the slowest disk takes
_AGAIN_SECONDS = 5.0  # between two tries of the last save
_LAST_SAVE_SECONDS = 60.0


@dataclass
class _Seen:
    """What roles have said of themselves. `states` are their answers, of the kind `wanted`, to the order of this `number`, the last that wants one."""

    book: dict[str, str] = field(default_factory=dict)
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)
    wanted: str = ""
    number: int = 0
    states: States = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    published: States = field(default_factory=dict)  # their shares of the open version
    unreadable: Error | None = None

    @property
    def known(self) -> set[str]:
        """The roles that are up."""
        return {role_at(endpoint) for endpoint in self.book}


class CoordinatorMachine:
    """Runs one plan to its end.

    `tells_of_ends` says whether events tell of processes that end by themselves. Times are seconds of any one clock; how long others are waited for
    counts only while this machine has listened (htrain.sync.liveness).
    """

    def __init__(self, plan: Plan, settings: RunSettings, *, tells_of_ends: bool) -> None:
        self._roles = plan.cluster.roles
        self._trainers = [role for role in self._roles if role_of(role) == TRAINER]
        self._settings = settings
        self._tells_of_ends = tells_of_ends
        largest = max((load.holds.parameters for load in plan.loads.values()), default=0)
        self._save_seconds = largest / _SAVE_BYTES_PER_SECOND  # for the largest role to be written, or read
        self._liveness = Liveness(
            self._roles, limit_seconds=settings.liveness_seconds, warm_up_seconds=settings.warm_up_seconds
        )
        self._figures = Figures(plan)
        self._saves = SaveSchedule(settings)
        self._validations = ValidationSchedule(every=settings.valid_every, validated=settings.validated)
        self._publications = PublishSchedule(settings)
        self._seen = _Seen()
        self._asked = False
        self._takes_orders = False
        self._examples_at_rest = 0  # trained by the whole job when all were at rest last
        self._now = 0.0
        self._heard = 0.0  # when all that had come was heard last
        self._patience = 0.0  # seconds for which it has listened

    def run(self, now: float) -> Machine[RunResult]:
        """Bring the roles together, train to the end of the data, checkpoint, end.

        Raises PeerLost naming a role that died or fell silent, what a role reported as its failure, and, after a checkpoint, Interrupted, what kept a
        reader from reading on, and what kept a checkpoint from being validated.
        """
        self._now = self._heard = now
        try:
            return (yield from self._run())
        except Exception:
            if self._takes_orders:
                yield TellAll(Order("abort"))
            raise

    def _run(self) -> Machine[RunResult]:
        yield from self._gather()
        began = self._now
        self._figures.begin(began)
        yield from self._do(TellAll(Order("start")))
        yield from self._train()
        train_seconds = self._now - began
        stopped = not self._is_trained
        yield from self._last_save(finished=not stopped)
        if not stopped or self._early_reason:
            yield from self._publish_last()
        totals = self._figures.totals(self._now, ends=True)
        yield from self._do(ShowTotals(totals, self._figures.reports))
        yield from self._do(TellAll(Order("stop")))
        self._takes_orders = False
        assert self._saves.last
        early = self._early_reason if stopped else ""
        if stopped and not early:
            return self._left_off(
                RunResult(totals, self._saves.last, train_seconds, self._figures.trained, NOTHING_MEASURED)
            )
        measured = self._figures.measured(self._now)
        yield from self._do(KeepMeasured(measured))
        return RunResult(totals, self._saves.last, train_seconds, self._figures.trained, measured, early)

    def _left_off(self, result: RunResult) -> RunResult:
        """All is saved, and the run has stopped before the end of its data. Raises why."""
        raise self._why_stopped(result.totals)

    def _do(self, instruction: Instruction) -> Machine[Any]:
        """Have something done; what came of it."""
        self._now, answer = yield instruction
        return answer

    def _gather(self) -> Machine[None]:
        seen, seconds = self._seen, self._settings.warm_up_seconds
        yield from self._await_all(lambda: seen.known, "did not come up", seconds)
        self._takes_orders = True
        try:
            yield from self._do(Connect(seen.book, seen.places))
        except PeerLost as error:
            yield from self._missed(error)
        yield from self._await_all(lambda: seen.ready, "did not load its parameters", seconds + self._save_seconds)

    def _await_all(self, known: Callable[[], Collection[str]], what: str, seconds: float) -> Machine[None]:
        """Until all roles are known."""
        end = self._patience + seconds
        while missing := set(self._roles).difference(known()):
            if self._patience >= end:
                raise PeerLost(f"{min(missing)} {what} within {seconds:.0f} s")
            yield from self._event(patience=end)
            if self._asked:
                raise Interrupted("stopped before training began")

    def _train(self) -> Machine[None]:
        """Watch until the data is over, or the run is to stop before: the user has asked for it, or a reader cannot read on."""
        show = self._now + _SHOW_SECONDS
        self._saves.begin(self._now)
        self._publications.begin(self._now)
        while not (self._is_trained or self._asked or self._seen.unreadable or self._validations.ends_run):
            if self._now >= show:
                yield from self._show()
                show = self._now + _SHOW_SECONDS
            elif self._now >= self._saves.due:
                yield from self._checkpoint(finished=False)
                yield from self._do(TellAll(Order("resume")))
            elif self._validations.is_due(self._figures.examples):
                yield from self._validate()
            elif self._now >= self._publications.due:
                yield from self._publish()
            elif self._now >= self._publications.slow:
                yield from self._do(Tell(self._publications.told_slow()))
            else:
                times = (show, self._saves.due, self._publications.due, self._publications.slow)
                yield from self._event(until=min(times))

    def _validate(self) -> Machine[None]:
        """Take a checkpoint, and have it evaluated while training goes on."""
        is_saved = yield from self._checkpoint(finished=False)
        yield from self._do(TellAll(Order("resume")))
        self._validations.begun(self._examples_at_rest, is_saved=is_saved)
        if is_saved:
            assert self._saves.last
            yield from self._do(Validate(self._saves.last))

    def _show(self) -> Machine[None]:
        totals = self._figures.totals(self._now, ends=bool(self._seen.finished))
        if self._figures.is_warm:
            self._liveness.warm()
        yield from self._do(ShowTotals(totals, self._figures.reports))

    @property
    def _is_trained(self) -> bool:
        """Whether all data has been trained, by all."""
        return self._seen.finished.issuperset(self._trainers) and not self._seen.unreadable

    @property
    def _early_reason(self) -> str:
        """Why validations have ended the run, as they are meant to; "" where something else has, too."""
        is_other = self._asked or self._seen.unreadable or self._validations.error
        return "" if is_other else self._validations.stops

    def _why_stopped(self, totals: RunTotals) -> Error:
        folder = self._settings.run_folder
        if error := self._seen.unreadable:
            return type(error)(
                f"{error}; until there it is saved: once the same data can be read, go on with --resume {folder}"
            )
        if (failed := self._validations.error) and not self._asked:
            return type(failed)(f"{failed}; what was trained is saved: go on with --resume {folder}")
        return Interrupted(f"stopped after {totals.examples:,} examples; go on with --resume {folder}")

    # -- events ------------------------------------------------------------------------------------------------------

    def _event(self, *, until: float = math.inf, patience: float = math.inf) -> Machine[None]:
        """Take what comes, until a time, or until others have been listened to for so many seconds; raise what it says went wrong.

        A longer wait than Liveness counts at once would be in vain.
        """
        silence = min(MOST_SECONDS, self._liveness.seconds_left + _LONGER_SECONDS)
        end = min(until, self._now + patience - self._patience, self._heard + silence)
        event = yield from self._do(Await(max(self._now, end)))
        if isinstance(event, Came):
            try:
                self._take(event.message)
            except PeerLost as error:
                yield from self._missed(error)
            yield from self._close_version()
        elif isinstance(event, Ended):
            raise self._lost(event.what)
        elif isinstance(event, Asked):
            self._asked = True
        elif isinstance(event, Validated):
            self._validations.ended(event.stops, event.error)
        elif isinstance(event, VersionEnded):
            yield from self._do(Tell(self._publications.ended(event.news, event.error, self._now)))
        else:
            yield from self._silence()

    def _missed(self, error: PeerLost) -> Machine[None]:
        """Whoever misses a role says so at once; who it is that died says more, and is known a moment later. Raises the one or the other."""
        end = self._now + _NEWS_SECONDS
        is_over = not self._tells_of_ends
        while not is_over:
            event = yield from self._do(Await(end))
            if isinstance(event, Ended):
                raise self._lost(event.what) from error
            is_over = isinstance(event, Listened) and self._now >= end
        raise error

    def _lost(self, what: str) -> PeerLost:
        """The error of a role whose process ended."""
        role = what.partition(" ")[0]
        last_step = f" (its last step: {self._figures.last_step(role)})" if role in self._roles else ""
        return PeerLost(f"{what}{last_step}; {self._saves.advice}")

    def _silence(self) -> Machine[None]:
        """All that had come was heard: who has been silent for too long?"""
        passed, self._heard = self._now - self._heard, self._now
        self._patience += min(passed, MOST_SECONDS)
        for news in self._liveness.listened(passed):
            lives = yield from self._do(AskWhetherLives(news.role))
            yield from self._do(Tell(self._silent(news, lives=lives)))

    def _silent(self, news: Silent | Lost, *, lives: bool) -> str:
        """In words, that a role may be slow. Raises PeerLost for one that is given up."""
        said = f"{news.role} has been silent for {news.seconds:.0f} s{', though its process lives' if lives else ''}"
        if isinstance(news, Lost):
            last_step = self._figures.last_step(news.role)
            raise PeerLost(
                f"{said} (its last step: {last_step}; --liveness-seconds gives it longer); {self._saves.advice}"
            )
        return said

    def _take(self, message: Message) -> None:
        """Keep what a role has said. Raises the failure that it tells of."""
        seen = self._seen
        if isinstance(message, Failed):
            raise self._failure(message)
        if isinstance(message, Hello):
            seen.book.update(message.endpoints)
            seen.places[message.source] = {"host": message.host, "pid": message.pid}
        elif isinstance(message, Ready):
            seen.ready.add(message.source)
            self._figures.report(message.source, message.metrics)
        elif isinstance(message, Beat) and message.metrics:
            self._figures.report(message.source, message.metrics)
        elif isinstance(message, State):
            self._take_state(message)
        if isinstance(message, Beat | State | Ready | Hello):
            self._liveness.heard(message.source)

    def _take_state(self, message: State) -> None:
        seen = self._seen
        if message.state == "unreadable":
            seen.unreadable = _error_of(message.details["kind"], message.details["error"])
        elif message.state == "finished":
            seen.finished.add(message.source)
        elif message.state == "published":
            seen.published[message.source] = message.details
        elif (message.state, message.number) == (seen.wanted, seen.number):
            seen.states[message.source] = message.details

    def _failure(self, message: Failed) -> Error:
        text = message.error if message.error.startswith(message.source) else f"{message.source}: {message.error}"
        advice = f"; {self._saves.advice}" if message.kind in ("PeerLost", "RunError") else ""
        return _error_of(message.kind, f"{text}{advice}")

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint(self, *, finished: bool) -> Machine[bool]:
        """Bring all roles to rest between steps, save them, and make the checkpoint valid. False where the disk refused, which has been told then.

        Raises what a reader could not read where nothing has been trained: there is nothing to save.
        """
        paused = yield from self._ask(
            "pause", "paused", max(self._settings.deadline_seconds, self._settings.warm_up_seconds)
        )
        trainers = {trainer: paused[trainer] for trainer in self._trainers}
        self._examples_at_rest = _examples_of(trainers)
        if self._seen.unreadable and not self._have_trained(trainers):
            raise self._seen.unreadable
        folder = yield from self._do(OpenCheckpoint(trainers))
        if isinstance(folder, Refused):
            return (yield from self._refused(folder))
        seconds = self._settings.warm_up_seconds + self._save_seconds
        saved = yield from self._ask("save", "saved", seconds, folder=str(folder))
        closed = _refusal(saved) or (yield from self._do(CloseCheckpoint(trainers, saved, finished)))
        if isinstance(closed, Refused):
            return (yield from self._refused(closed))
        yield from self._do(Tell(self._saves.made(folder, self._now)))
        return True

    def _refused(self, by: Refused) -> Machine[bool]:
        yield from self._do(DropCheckpoint())
        yield from self._do(Tell(self._saves.refused(by.error, self._now)))
        return False

    def _ask(self, verb: str, answer: str, seconds: float, *, folder: str = "", base: str = "") -> Machine[States]:
        """Give an order to all and wait for everybody's answer. Silence and threads that hang are noticed sooner."""
        self._seen.wanted, self._seen.states = answer, {}
        self._seen.number += 1
        yield from self._do(TellAll(Order(verb, folder, base, self._seen.number)))
        end = self._patience + seconds
        while missing := set(self._roles).difference(self._seen.states):
            if self._patience >= end:
                raise PeerLost(
                    f"{min(missing)} did not answer the order to {verb} within {seconds:.0f} s; {self._saves.advice}"
                )
            yield from self._event(patience=end)
        return self._seen.states

    def _last_save(self, *, finished: bool) -> Machine[None]:
        """The checkpoint at the end of the run. A disk that refuses has a minute to be mended; then CheckpointError is raised."""
        end = self._now + _LAST_SAVE_SECONDS
        while not (yield from self._checkpoint(finished=finished)):
            if self._now > end:
                raise CheckpointError(
                    f"what was trained last could not be saved ({self._saves.error}); {self._saves.advice}"
                )
            again = self._now + _AGAIN_SECONDS
            while self._now < again:
                yield from self._event(until=again)

    # -- versions ----------------------------------------------------------------------------------------------------

    def _publish(self) -> Machine[None]:
        """Begin a version. Roles come to rest between two steps, where caches hold no update back, and take their dense weights; they train on while they
        write."""
        seconds = max(self._settings.deadline_seconds, self._settings.warm_up_seconds)
        paused = yield from self._ask("pause", "paused", seconds)
        self._examples_at_rest = _examples_of({trainer: paused[trainer] for trainer in self._trainers})
        yield from self._open_version(is_final=False)
        yield from self._do(TellAll(Order("resume")))

    def _open_version(self, *, is_final: bool) -> Machine[None]:
        version, base = yield from self._do(OpenVersion(self._examples_at_rest, is_final))
        self._seen.published = {}
        self._publications.begun(self._now)
        yield from self._ask("publish", "publishing", self._settings.warm_up_seconds, folder=version, base=base)

    def _close_version(self) -> Machine[None]:
        """Once all roles have written what they have of a version."""
        if self._publications.is_written_by(len(self._seen.published), of=len(self._roles)):
            yield from self._do(CloseVersion(self._seen.published))

    def _publish_last(self) -> Machine[None]:
        """The version of the end, behind one that is still written: all are at rest. A storage that refuses has a minute; then PublishError is raised.

        Raises Interrupted where the user does not want to wait for it.
        """
        end = self._now + _LAST_SAVE_SECONDS
        while self._publications.is_wanted:
            yield from self._version_ended()  # that was begun before
            yield from self._open_version(is_final=True)
            yield from self._version_ended()
            if not self._publications.error:
                return
            if self._now > end:
                raise PublishError(
                    f"{self._publications.error}; all is trained and saved in {self._settings.run_folder}, but its last version is not published"
                )
            again = self._now + _AGAIN_SECONDS
            while self._now < again:
                yield from self._event(until=again)

    def _version_ended(self) -> Machine[None]:
        """Until no version is under way. Raises PublishError for one that a storage keeps from ending."""
        seconds = 2 * _LAST_SAVE_SECONDS + self._save_seconds
        end = self._now + seconds
        while self._publications.is_running:
            if self._now > end:
                raise PublishError(
                    f"the last version was not written within {seconds:.0f} s; all is trained and saved in {self._settings.run_folder}"
                )
            yield from self._event(until=self._now + _SHOW_SECONDS)
            if self._asked:
                raise Interrupted(
                    f"stopped while its last version was published; all is trained and saved in {self._settings.run_folder}"
                )

    def _have_trained(self, trainers: States) -> bool:
        """Whether this run has trained more than those that it goes on from. Trainers say it at rest; a report from before may miss their last steps."""
        return _examples_of(trainers) > _examples_of(self._settings.positions)


class ServingMachine(CoordinatorMachine):
    """Runs sparse PSs that serve workers from outside a plan, until the user asks them to stop."""

    @property
    def _is_trained(self) -> bool:
        """Never: workers come and go."""
        return False

    def _left_off(self, result: RunResult) -> RunResult:
        """That is how it ends."""
        return result


def _examples_of(trainers: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(int(state["totals"]["examples"]) for state in trainers.values())


def _refusal(saved: Mapping[str, Mapping[str, Any]]) -> Refused | None:
    """What a disk has refused to a role that was to save."""
    return next((Refused(f"{role}: {state['error']}") for role, state in saved.items() if state.get("error")), None)


def _error_of(kind: str, text: str) -> Error:
    """A role's error, as it raised it."""
    found = getattr(errors, kind, RunError)
    return found(text) if isinstance(found, type) and issubclass(found, Error) else RunError(text)

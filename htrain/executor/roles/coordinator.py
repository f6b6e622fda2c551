"""The launcher's side of a run, as a machine: brings roles together, watches them, checkpoints, and ends the run (docs/decisions/runs-and-resumes.md).

It is a generator like that of a net replica: it yields instructions, and is sent the time and what came of each (htrain.executor.roles.coordination).
What cannot be carried out is thrown into it, and ends the run as what a role reports does.
"""

from collections.abc import Mapping
from typing import Any

from htrain.errors import CheckpointError, Error, Interrupted, PeerLost, PublishError
from htrain.executor.record.measured import NOTHING_MEASURED
from htrain.executor.record.totals import RunTotals
from htrain.executor.roles.alone import Alone
from htrain.executor.roles.coordination import (
    CloseCheckpoint,
    CloseVersion,
    DropCheckpoint,
    KeepMeasured,
    Leaves,
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
from htrain.executor.roles.replacing import Replacing, examples_of
from htrain.executor.roles.saving import Writing
from htrain.executor.roles.validating import ValidationSchedule
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Order
from htrain.plan.plan import Plan
from htrain.printable import as_word

_SHOW_SECONDS = (
    0.5  # between two looks at the totals, and the more the more roles there are, each of whose reports is looked at
)
_SHOWN_A_SECOND = 300
_AGAIN_SECONDS = 5.0  # between two tries of the last save
_LAST_SAVE_SECONDS = 60.0


class CoordinatorMachine(Replacing):
    """Runs one plan to its end. Roles that are at rest begin to write a checkpoint, or a version, and train on while they do."""

    def __init__(self, plan: Plan, settings: RunSettings, *, tells_of_ends: bool, alone: Alone | None = None) -> None:
        super().__init__(plan, settings, tells_of_ends=tells_of_ends, alone=alone)
        self._validations = ValidationSchedule(every=settings.valid_every, validated=settings.validated)
        self._publications = PublishSchedule(settings)
        self._leaves = ""  # who is to, once all is saved
        self._is_last = False  # the checkpoint that is made
        self._examples_at_rest = 0  # trained by the whole job when all were at rest last

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
        yield from self._order("start")
        yield from self._train()
        train_seconds = self._now - began
        stopped = not self._is_trained
        yield from self._last_save(finished=not stopped)
        if not stopped or self._early_reason:
            yield from self._publish_last()
        totals = self._figures.totals(self._now, ends=True)
        yield from self._do(ShowTotals(totals, self._figures.reports))
        yield from self._order("stop")
        self._takes_orders = False
        assert self._saves.last
        early = self._early_reason if stopped else ""
        if stopped and not early:
            return self._left_off(
                RunResult(totals, self._saves.last, train_seconds, self._figures.trained, NOTHING_MEASURED)
            )
        measured = NOTHING_MEASURED
        if self._figures.trained:  # else what was measured before it went on with nothing left stays
            measured = self._figures.measured(self._now)
            yield from self._do(KeepMeasured(measured))
        return RunResult(totals, self._saves.last, train_seconds, self._figures.trained, measured, early)

    def _left_off(self, result: RunResult) -> RunResult:
        """All is saved, and the run has stopped before the end of its data. Raises why."""
        raise self._why_stopped(result.totals)

    def _train(self) -> Machine[None]:
        """Watch until the data is over, or the run is to stop before: the user has asked for it, or a reader cannot read on."""
        show = self._now + self._show_seconds
        self._saves.begin(self._now)
        self._publications.begin(self._now)
        while not (self._is_trained or self._asked or self._seen.unreadable or self._validations.ends_run):
            self._goes_on, self._at_rest = True, False
            if self._leaves:
                yield from self._leave()
            elif self._now >= show:
                yield from self._show()
                show = self._now + self._show_seconds
            elif self._now >= self._saves.due:
                yield from self._checkpoint()
            elif self._validations.is_due(self._figures.examples) and not self._saves.writing:
                yield from self._checkpoint(validates=True)
            elif self._now >= self._publications.due:
                yield from self._publish()
            elif self._now >= self._publications.slow:
                yield from self._do(Tell(self._publications.told_slow()))
            elif self._now >= self._saves.slow:
                yield from self._do(Tell(self._saves.told_slow()))
            else:
                times = (show, self._saves.due, self._saves.slow, self._publications.due, self._publications.slow)
                yield from self._event(until=min(times))
        self._goes_on = False

    def _leave(self) -> Machine[None]:
        """Save all, without a step behind, and end the try: raises PeerLost. Where a disk refuses, what it had before has to do."""
        self._goes_on = False
        yield from self._written()
        yield from self._saved_at_once(finished=False)
        raise PeerLost(f"{self._leaves}; {self._saves.advice}")

    def _is_owed(self, role: str) -> bool:
        """Its part of a version."""
        return self._publications.is_running and role not in self._seen.published

    def _all_rest(self) -> Machine[States]:
        """Bring all to rest between steps, those that are away included; in which states they are. From now on all are needed. Raises PeerLost."""
        paused: States = {}
        while not paused:
            while self._alone.away:
                yield from self._event()
            paused = yield from self._ask("pause", "paused", self._longest_seconds)
        self._goes_on, self._at_rest = False, True
        return paused

    def _heard_of(self) -> Machine[None]:
        if self._alone.away:
            yield from self._bring_back()
        yield from self._close_checkpoint()
        yield from self._close_version()

    def _beside(self, event: Validated | VersionEnded | Leaves) -> Machine[None]:
        if isinstance(event, Leaves):
            self._leaves = event.what
        elif isinstance(event, Validated):
            self._validations.ended(event.stops, event.error)
        else:
            yield from self._do(Tell(self._publications.ended(event.news, event.error, self._now)))

    def _show(self) -> Machine[None]:
        totals = self._figures.totals(self._now, ends=bool(self._seen.finished))
        if self._figures.is_warm:
            self._is_warm = True
            self._liveness.warm()
        yield from self._do(ShowTotals(totals, self._figures.reports))

    @property
    def _show_seconds(self) -> float:
        return max(_SHOW_SECONDS, len(self._roles) / _SHOWN_A_SECOND)

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
                f"{error}; until there it is saved: once the same data can be read, go on with --resume {as_word(folder)}"
            )
        if (failed := self._validations.error) and not self._asked:
            return type(failed)(f"{failed}; what was trained is saved: go on with --resume {as_word(folder)}")
        return Interrupted(f"stopped after {totals.examples:,} examples; go on with --resume {as_word(folder)}")

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint(self, *, validates: bool = False) -> Machine[None]:
        """Take a checkpoint, which roles write while they train on, and have it evaluated then if it `validates`."""
        is_begun = yield from self._begin_checkpoint(validates=validates)
        if validates:
            self._validations.begun(self._examples_at_rest, is_saved=is_begun)
        yield from self._order("resume")
        yield from self._close_checkpoint()

    def _begin_checkpoint(self, *, validates: bool = False, finished: bool = False) -> Machine[bool]:
        """Bring all roles to rest between steps, and have them begin to write what they hold. False where the disk refused, which has been told then.

        Raises what a reader could not read where nothing has been trained: there is nothing to save.
        """
        began, goes_on = self._now, self._goes_on
        paused = yield from self._all_rest()
        trainers = {trainer: paused[trainer] for trainer in self._trainers}
        self._examples_at_rest = examples_of(trainers)
        if self._seen.unreadable and not self._have_trained(trainers):
            raise self._seen.unreadable
        folder = yield from self._do(OpenCheckpoint(trainers))
        if isinstance(folder, Refused):
            yield from self._refused(folder)
            return False
        self._seen.saved, self._seen.save = {}, self._seen.number + 1
        # Some have written all when they say that they begin to (htrain.executor.loops.saver).
        base = "" if finished or self._early_reason else self._saves.base  # the last of a run that has ended is whole
        self._goes_on = goes_on  # a trainer has said where it stands, and keeps nothing else
        yield from self._ask("save", "saving", self._most_save_seconds, folder=str(folder), base=base)
        writing = Writing(folder, trainers, began, self._now - began, validates=validates, finished=finished)
        self._saves.begun(writing, self._now)
        return True

    def _close_checkpoint(self) -> Machine[None]:
        """Once all roles have written what they have of a checkpoint, make it valid."""
        writing = self._saves.writing
        if writing is None or len(self._seen.saved) < len(self._roles):
            return
        saved, self._seen.saved = self._seen.saved, {}
        closed = _refusal(saved) or (yield from self._do(CloseCheckpoint(writing.trainers, saved, writing.finished)))
        if isinstance(closed, Refused):
            if writing.validates:
                self._validations.refused()
            yield from self._refused(closed)
            return
        self._alone.saved()
        self._examples_saved = examples_of(writing.trainers)
        yield from self._do(Tell(self._saves.made(saved, self._now)))
        if writing.validates:
            yield from self._do(Validate(writing.folder))

    def _refused(self, by: Refused) -> Machine[None]:
        yield from self._do(DropCheckpoint())
        yield from self._do(Tell(self._saves.refused(by.error, self._now, is_last=self._is_last)))

    @property
    def _most_save_seconds(self) -> float:
        return self._settings.warm_up_seconds + self._save_seconds

    def _last_save(self, *, finished: bool) -> Machine[None]:
        """The checkpoint at the end of the run, behind one that is still written. A disk that refuses has a minute to be mended.

        Raises CheckpointError then.
        """
        yield from self._written()
        self._is_last = True
        end = self._now + _LAST_SAVE_SECONDS
        while not (yield from self._saved_at_once(finished=finished)):
            if self._now > end:
                raise CheckpointError(
                    f"what was trained last could not be saved ({self._saves.error}); {self._saves.advice}"
                )
            again = self._now + _AGAIN_SECONDS
            while self._now < again:
                yield from self._event(until=again)

    def _saved_at_once(self, *, finished: bool) -> Machine[bool]:
        """Take a checkpoint, and wait until it is made; False where the disk has refused it."""
        if not (yield from self._begin_checkpoint(finished=finished)):
            return False
        yield from self._close_checkpoint()
        yield from self._written()
        return not self._saves.error

    def _written(self) -> Machine[None]:
        """Until no checkpoint is under way. Raises CheckpointError for a disk that keeps one from being written."""
        end = self._patience + self._most_save_seconds
        while self._saves.writing:
            if self._patience >= end:
                missing, name = min(set(self._roles).difference(self._seen.saved)), self._saves.writing.folder.name
                seconds = f"{self._most_save_seconds:.0f} s"
                raise CheckpointError(
                    f"{missing} has not written its share of the checkpoint {name} within {seconds}; {self._saves.advice}"
                )
            yield from self._event(patience=end)

    # -- versions ----------------------------------------------------------------------------------------------------

    def _publish(self) -> Machine[None]:
        """Begin a version. Roles come to rest between two steps, where caches hold no update back, and take their dense weights; they train on while they
        write."""
        paused = yield from self._all_rest()
        self._examples_at_rest = examples_of({trainer: paused[trainer] for trainer in self._trainers})
        yield from self._open_version(is_final=False)
        yield from self._order("resume")

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
        end = self._patience + seconds  # a launcher that sleeps has not waited
        while self._publications.is_running:
            if self._patience > end:
                raise PublishError(
                    f"the last version was not written within {seconds:.0f} s; all is trained and saved in {self._settings.run_folder}"
                )
            yield from self._event(until=self._now + self._show_seconds)
            if self._asked:
                raise Interrupted(
                    f"stopped while its last version was published; all is trained and saved in {self._settings.run_folder}"
                )

    def _have_trained(self, trainers: States) -> bool:
        """Whether this run has trained more than those that it goes on from. Trainers say it at rest; a report from before may miss their last steps."""
        return examples_of(trainers) > examples_of(self._settings.positions)


class ServingMachine(CoordinatorMachine):
    """Runs sparse PSs that serve workers from outside a plan, until the user asks them to stop."""

    @property
    def _is_trained(self) -> bool:
        """Never: workers come and go."""
        return False

    def _left_off(self, result: RunResult) -> RunResult:
        """That is how it ends."""
        return result


def _refusal(saved: Mapping[str, Mapping[str, Any]]) -> Refused | None:
    """What a disk has refused to a role that was to save."""
    return next((Refused(f"{role}: {state['error']}") for role, state in saved.items() if state.get("error")), None)

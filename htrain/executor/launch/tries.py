"""A run in a folder that is ours: its tries, each of which goes on from the last checkpoint of the one before (docs/how-to/run.md)."""

import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from htrain.data import Dataset
from htrain.data.growth import Extent
from htrain.data.identity import other_than_read, stamps_of
from htrain.data.source import is_read_by_parts, schema_of
from htrain.errors import CheckpointError, DataError, Interrupted, PeerLost, PlanError, PublishError
from htrain.executor.launch.coordinator import Coordinator, NoValidations, NoVersions, Outside, WorkerPool
from htrain.executor.launch.earlier import Beginning, Earlier
from htrain.executor.launch.interrupt import Interrupt, interrupts
from htrain.executor.launch.publish import Versions, Wanted
from htrain.executor.launch.publish import prepared as published
from htrain.executor.launch.resuming import extent_of, gone_on
from htrain.executor.launch.validate import Validating, Validator, prepared
from htrain.executor.record.identity import Identity, identify
from htrain.executor.record.kept import find_checkpoints
from htrain.executor.record.layout import Layout, keep_layout
from htrain.executor.record.progress import Progress
from htrain.executor.record.resume import other_data
from htrain.executor.record.run_folder import (
    Claim,
    RunRecord,
    forget_beginning,
    read_record,
    require_empty,
    start_record,
)
from htrain.executor.record.run_log import RunLog
from htrain.executor.record.totals import RunTotals
from htrain.executor.roles.alone import why_not_partial
from htrain.executor.roles.coordination import RunResult
from htrain.executor.roles.retries import Retries
from htrain.executor.roles.saving import without_advice
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher
from htrain.executor.transport.port import Network
from htrain.plan.folder import header_digest
from htrain.plan.plan import Plan
from htrain.printable import as_word

_SIGN_SECONDS = 1.0  # between two signs of life, while a run waits to be begun again


@dataclass(frozen=True)
class Beside:
    """What a user wants to have beside training."""

    validating: Validating
    published: Wanted


class Pools(Protocol):
    """Where the roles of each try are played."""

    def network(self) -> Network:
        """The network of the next try."""

    def gather(self, settings: RunSettings, identity: Identity, outside: Outside) -> None:
        """Wait until there is somebody to play every role. Raises what makes that futile, Interrupted."""

    def pool(self, plan: Plan, settings: RunSettings, network: Network, launcher: Launcher) -> WorkerPool:
        """Its worker pool."""

    def close(self) -> None:
        """No further try is made."""


@dataclass(frozen=True)
class Job:
    """What all tries of a run have in common. Its `settings` are those of the first, which goes on from a checkpoint where it `resumes`; else its folder may be
    `left` by one that ended before its first checkpoint."""

    plan: Plan
    settings: RunSettings
    beside: Beside
    validation_data: Dataset | None
    pools: Pools
    claim: Claim
    progress: Progress
    resumes: bool
    left: bool = False


class Tries:
    """The tries of one job, of which `most` in a row may fail besides the first, for roles that were lost, without a checkpoint between them."""

    def __init__(self, job: Job, most: int) -> None:
        self._job = job
        self._retries = Retries(most)
        self._stamps = stamps_of(job.settings.data)
        self._identity = identify(job.plan, job.settings.data)
        self._trained = 0  # as the last report of this try said
        self._has_gathered = False  # those who play roles, for one try at least
        self._interrupt: Interrupt | None = None  # from the first try that trains to the end of the run
        self._begun_again = self._set_back = 0  # in all tries (`RunResult`)
        self._reopens = False  # the storage of versions, in another try than the first

    def run(self) -> RunResult:
        """To the end of the data. Raises what a run does; PeerLost once as many tries have failed; Interrupted where the user asks to stop."""
        if all(self._job.settings.begin_with):
            earlier = Earlier(Beginning(*self._job.settings.begin_with))
            plan, data, grow = self._job.plan, self._job.settings.data, self._job.settings.grow
            earlier.require(plan, earlier.require_values(plan, data, schema_of(data, Extent()), grow=grow))
            checkpoint = Path(self._job.settings.begin_with[1])
            is_own = checkpoint.parent.parent.resolve() == self._job.settings.run_folder.resolve()
            if news := earlier.news(self._job.plan) or ("" if is_own else f"begins with {checkpoint}"):
                self._job.progress.note(news)
        with ExitStack() as signals:
            return self._run(signals)

    def _run(self, signals: ExitStack) -> RunResult:
        resumes = self._job.resumes
        while True:
            try:
                result = self._once(self._identity, signals, resumes=resumes)
                return replace(
                    result, retries=self._retries.count, begun_again=self._begun_again, set_back=self._set_back
                )
            except (PeerLost, PublishError) as error:
                if isinstance(error, PublishError) and not self._reopens:
                    raise  # but a storage that is away while a run goes on may be back for a later try
                self._await_next(error)
                self._require_plan()
                self._require_data()
                self._require_no_interrupt(error)
            resumes = self._job.resumes or bool(self._checkpoint)
            self._job.progress.begin_again()

    # -- one try -----------------------------------------------------------------------------------------------------

    def _once(self, identity: Identity, signals: ExitStack, *, resumes: bool) -> RunResult:
        job = self._job
        job.claim.look()  # else what another run has in a folder of this name would be gone on with
        data = job.settings.data
        settings = replace(job.settings, extent=extent_of(data, identity.data, by_parts=is_read_by_parts(data)))
        with ExitStack() as stack:
            if resumes:
                found = find_checkpoints(settings.run_folder)
                settings = gone_on(job.plan, settings, identity, found, job.progress.note)
            goes_on = resumes or job.left
            if not goes_on and not self._retries.count:
                require_empty(settings.run_folder)  # before its versions come, perhaps into a folder of it
            self._reopens = self._retries.count > 0
            wanted = job.beside.published
            settings, versions = published(job.plan, settings, wanted, may_grow=begun_with_another(job.settings))
            self._reopens = False
            stack.enter_context(closing(versions))
            if not self._retries.count:  # what stands there is this job's, and the disk may be full by now
                stack.callback(self._forget_unless_gathered, goes_on=goes_on)
                start_record(settings.run_folder, record_of(job.settings), resume=goes_on)
                keep_layout(settings.run_folder, Layout.of(job.plan, str(settings.plan_folder.resolve())))
            settings, validator = prepared(
                job.plan, settings, job.beside.validating, job.validation_data, job.progress.note
            )
            stack.enter_context(closing(validator))
            self._interrupt = self._interrupt or signals.enter_context(interrupts())
            return self._train(settings, identity, self._interrupt, validator, versions)

    def _forget_unless_gathered(self, *, goes_on: bool) -> None:
        """A new run that nobody has played a role of leaves nothing, which would be in the way of the same command."""
        if not (self._has_gathered or goes_on or self._job.claim.is_lost):
            forget_beginning(self._job.settings.run_folder)

    def _train(
        self,
        settings: RunSettings,
        identity: Identity,
        interrupt: Interrupt,
        validator: Validator | NoValidations,
        versions: Versions | NoVersions,
    ) -> RunResult:
        job = self._job
        if settings.retry == "partial" and not self._retries.count and (reason := why_not_partial(job.plan, settings)):
            job.progress.note(f"--retry partial: a sparse PS that dies takes all back with it, since {reason}")
        log = RunLog(settings.run_folder, job.progress.note)
        validator.show(log.chart)
        network = job.pools.network()

        def on_totals(totals: RunTotals, reports: dict[str, dict[str, Any]]) -> None:
            self._trained = totals.examples
            log.write(totals, reports)
            job.progress.update(totals)

        try:
            outside = Outside(
                interrupt, on_totals, job.progress.note, job.claim, validations=validator, publications=versions, has_its_own=self._has_its_own,
            )  # fmt: skip
            job.pools.gather(settings, identity, outside)
            self._has_gathered = True
            coordinator = Coordinator(job.plan, network, settings, identity, outside, retries=self._retries.most)
            pool = job.pools.pool(job.plan, settings, network, coordinator.place)
            try:
                result = coordinator.run(pool)
            finally:
                self._begun_again += coordinator.alone.count
                self._set_back += coordinator.alone.set_back
            found = validator.finish(result.checkpoint, interrupt, job.claim)
            return replace(result, validations=found)
        finally:
            log.close()
            network.close()

    # -- between two -------------------------------------------------------------------------------------------------

    @property
    def _checkpoint(self) -> str:
        """The name of that which the next try would go on from, "" where there is none."""
        complete = find_checkpoints(self._job.settings.run_folder).complete
        return complete[0][0].name if complete else ""

    def _await_next(self, error: PeerLost | PublishError) -> None:
        """Tell of a failure, and wait until it is time to go on. Raises it where that is not to be, as where the user had asked to stop; Interrupted where that
        comes now."""
        interrupt = self._interrupt
        if interrupt is None or interrupt.is_asked:
            raise error
        seconds = self._retries.failed(self._checkpoint)
        if seconds is None:
            ended = self._retries.ended
            raise type(error)(f"{error}; {ended}" if ended else str(error)) from error
        self._job.progress.note(self._news(error, seconds))
        end = time.monotonic() + seconds
        while not interrupt.is_asked and (left := end - time.monotonic()) > 0:
            wait(interrupt.descriptors, min(left, _SIGN_SECONDS))
            self._job.claim.give_sign()
            self._job.claim.require()
        self._require_no_interrupt(error)

    def _require_no_interrupt(self, error: PeerLost | PublishError) -> None:
        """Raises Interrupted where the user has asked to stop behind this failure."""
        if self._interrupt and self._interrupt.is_asked:
            raise Interrupted(f"stopped behind a failure: {error}")

    def _news(self, error: PeerLost | PublishError, seconds: float) -> str:
        complete = find_checkpoints(self._job.settings.run_folder).complete
        kept = complete[0][1].examples if complete else 0
        where = f"from checkpoint {complete[0][0].name}" if complete else "from its beginning"
        again = max(0, self._trained - kept)
        wait = f" in {seconds:.0f} s" if seconds else ""
        some = f"about {again:,} examples are" if again else "few examples, if any, are"  # since the last report
        which = f"retry {self._retries.in_a_row} of {self._retries.most}"
        return f"{without_advice(str(error))}; the run goes on{wait} {where}: {some} trained again ({which})"

    def _has_its_own(self) -> bool:
        """Whether the plan, and data, can be read that the run began with."""
        try:
            return not self._is_other_plan and not self._other_data()
        except (PlanError, DataError):
            return False

    @property
    def _is_other_plan(self) -> bool:
        """Whether the plan was written anew. Raises PlanError where there is none."""
        settings = self._job.settings
        return header_digest(settings.plan_folder) != settings.plan_header

    def _require_plan(self) -> None:
        """Raises PlanError where the plan is not what the run began with. One that cannot be read may be back for the roles of the next try."""
        try:
            is_other = self._is_other_plan
        except PlanError:
            return
        if is_other:
            folder, run = self._job.settings.plan_folder, self._job.settings.run_folder
            advice = (
                f"go on with --resume {as_word(run)}"
                if self._checkpoint
                else f"start again in another folder than {run}"
            )
            raise PlanError(
                f"{folder}: is another plan than the one that the run began with: put that one back, and {advice}"
            )

    def _require_data(self) -> None:
        """Raises CheckpointError where data is not what the run began with, DataError where it cannot be read."""
        if difference := self._other_data():
            raise other_data(str(self._job.settings.run_folder), difference)

    def _other_data(self) -> str:
        """What tells data from that which the run began with, by name and content. What has come since is none of this run's: it is for the next. Files that
        nobody has written to are not read again. Raises DataError."""
        uri = self._job.settings.data
        if self._stamps and self._stamps == stamps_of(uri):
            return ""
        return other_than_read(uri, self._identity.data)


def begun_with_another(settings: RunSettings) -> bool:
    """Whether a run began with what another had trained, in this part of it or in an earlier one."""
    with suppress(CheckpointError):
        return bool(settings.begin_with[1] or read_record(settings.run_folder).begun_with)
    return False


def record_of(settings: RunSettings) -> RunRecord:
    """run.json of a run with these settings."""
    return RunRecord(
        str(settings.plan_folder.resolve()),
        settings.data,
        settings.epochs,
        settings.deterministic,
        settings.begin_with[1],
    )

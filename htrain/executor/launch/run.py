"""Running a plan: checks, folders, signals, and the worker pool (docs/how-to/run.md)."""

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from rich.console import Console

from htrain.data import open_data
from htrain.errors import CheckpointError, Error
from htrain.executor.launch.coordinator import Coordinator, NoValidations, NoVersions, Outside, WorkerPool
from htrain.executor.launch.earlier import Beginning, Earlier
from htrain.executor.launch.inputs import check_inputs, check_numbers
from htrain.executor.launch.interrupt import interrupts
from htrain.executor.launch.pool import RoleProcesses, RoleThreads
from htrain.executor.launch.publish import Versions, Wanted
from htrain.executor.launch.publish import prepared as published
from htrain.executor.launch.validate import Validating, Validator, prepared
from htrain.executor.record.checkpoint import find_checkpoints
from htrain.executor.record.identity import Identity, identify
from htrain.executor.record.progress import Progress
from htrain.executor.record.resume import resumed
from htrain.executor.record.run_folder import Claim, RunRecord, claimed, refuse_served, require_empty, start_record
from htrain.executor.record.run_log import RunLog
from htrain.executor.record.totals import RunTotals
from htrain.executor.roles.coordination import RunResult
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher
from htrain.executor.transport.port import Network
from htrain.own.registry import places_of
from htrain.plan.check import check_plan
from htrain.plan.plan import Plan, load_plan

if TYPE_CHECKING:
    from htrain.executor.launch.mpi import RoleRanks

Hosting = Literal["processes", "threads", "mpi"]


@dataclass(frozen=True)
class Beside:
    """What a user wants to have beside training."""

    validating: Validating
    published: Wanted


def run_plan(
    settings: RunSettings,
    *,
    validating: Validating,
    published: Wanted,
    hosting: Hosting,
    resume: bool,
    num_threads: int,
    console: Console,
) -> RunResult:
    """Run a plan to the end of its data, or resume it from its last checkpoint.

    Raises PlanError, DataError, CheckpointError for what cannot start; PeerLost when a role died; Interrupted after Ctrl-C or SIGTERM, once a checkpoint
    has been written; with as little lost, what kept a checkpoint from being validated; and PublishError, where the last version is not published.
    """
    beside = Beside(validating, published)
    if hosting == "mpi":
        return _run_rank(settings, beside, resume=resume, num_threads=num_threads, console=console)
    return _run(
        settings,
        beside,
        hosting,
        Network("inproc" if hosting == "threads" else "tcp"),
        resume=resume,
        num_threads=num_threads,
        console=console,
        make_pool=local_pool,
    )


def _run_rank(settings: RunSettings, beside: Beside, *, resume: bool, num_threads: int, console: Console) -> RunResult:
    """Rank 0 runs the plan with the other ranks as its worker pool; they follow it, and then leave."""
    mpi = import_module("htrain.executor.launch.mpi")  # needs mpi4py, and starts MPI
    torch.set_num_threads(num_threads)
    try:
        network = mpi.meet(settings)
    except Error as error:
        if mpi.rank():
            sys.exit(error.exit_status)  # the launcher says it
        raise
    if mpi.rank():
        mpi.follow(network)
        sys.exit(0)
    pool: RoleRanks = mpi.RoleRanks()

    def assign(
        plan: Plan, settings: RunSettings, hosting: Hosting, network: Network, launcher: Launcher, num_threads: int
    ) -> WorkerPool:
        pool.assign(plan.processes, settings, launcher)
        return pool

    status = 1
    try:
        result = _run(
            settings, beside, "mpi", network, resume=resume, num_threads=num_threads, console=console, make_pool=assign
        )  # fmt: skip
        status = 0
        return result
    except Error as error:
        status = error.exit_status
        raise
    finally:
        if not pool.has_left():
            atexit.register(os._exit, status)  # without MPI's end; mpiexec then ends the ranks that hang
        pool.dismiss()


PoolMaker = Callable[[Plan, RunSettings, Hosting, Network, Launcher, int], WorkerPool]


def _run(
    settings: RunSettings,
    beside: Beside,
    hosting: Hosting,
    network: Network,
    resume: bool,
    num_threads: int,
    console: Console,
    make_pool: PoolMaker,
) -> RunResult:
    try:
        plan = check_plan(load_plan(settings.plan_folder))
        settings = replace(settings, ops=places_of((*plan.ops, *plan.strategies)))
        dataset = open_data(settings.data)
        check_inputs(plan, dataset)
        check_numbers(plan, dataset)
        validation_data = beside.validating.open(plan)
        if hosting == "mpi":
            import_module("htrain.executor.launch.mpi").require_ranks(plan.processes)
        check_folder(settings.run_folder, resume=resume)
        if resume:
            refuse_served(settings.run_folder)
        with (
            claimed(settings.run_folder) as claim,
            Progress(console, dataset.num_examples() * settings.epochs) as progress,
            ExitStack() as stack,
        ):
            if claim.taken_over:
                progress.note(f"{settings.run_folder}: taken over from {claim.taken_over}, which is gone")
            identity = identify(plan, settings.data)
            if all(settings.begin_with):
                Earlier(Beginning(*settings.begin_with)).require(plan)
            if resume:
                settings = resumed(settings, identity, find_checkpoints(settings.run_folder), progress.note)
            settings, versions = published(plan, settings, beside.published)
            stack.enter_context(closing(versions))
            start_record(settings.run_folder, _record(settings), resume=resume)
            settings, validator = prepared(plan, settings, beside.validating, validation_data, progress.note)
            stack.enter_context(closing(validator))
            return _train(
                plan, settings, validator, versions, identity=identity, hosting=hosting,
                network=network, num_threads=num_threads, make_pool=make_pool, claim=claim, progress=progress,
            )  # fmt: skip
    finally:
        network.close()


def _train(
    plan: Plan,
    settings: RunSettings,
    validator: Validator | NoValidations,
    versions: Versions | NoVersions,
    identity: Identity,
    hosting: Hosting,
    network: Network,
    num_threads: int,
    make_pool: PoolMaker,
    claim: Claim,
    progress: Progress,
) -> RunResult:
    """In a folder that is ours."""
    log = RunLog(settings.run_folder, progress.note)
    validator.show(log.chart)

    def on_totals(totals: RunTotals, reports: dict[str, dict[str, Any]]) -> None:
        log.write(totals, reports)
        progress.update(totals)

    try:
        with interrupts() as interrupt:
            outside = Outside(
                interrupt, on_totals, progress.note, claim.give_sign, validations=validator, publications=versions
            )
            coordinator = Coordinator(plan, network, settings, identity, outside)
            pool = make_pool(plan, settings, hosting, network, coordinator.place, num_threads)
            result = coordinator.run(pool)
            return replace(result, validations=validator.finish(result.checkpoint, interrupt, claim.give_sign))
    finally:
        log.close()


def check_folder(folder: Path, *, resume: bool) -> None:
    """Whether there is something to go on with. Raises CheckpointError, and UsageError for a new run in a folder that holds something else than an owner."""
    if resume and not folder.is_dir():
        raise CheckpointError(f"{folder}: no such run folder")
    if not resume and folder.exists():
        require_empty(folder)


def _record(settings: RunSettings) -> RunRecord:
    return RunRecord(
        str(settings.plan_folder.resolve()),
        settings.data,
        settings.epochs,
        settings.deterministic,
        settings.begin_with[1],
    )


def local_pool(
    plan: Plan, settings: RunSettings, hosting: Hosting, network: Network, launcher: Launcher, num_threads: int
) -> WorkerPool:
    """The roles of a plan on this machine, as threads of this process or as processes."""
    if hosting == "threads":
        torch.set_num_threads(num_threads)
        return RoleThreads(plan.cluster.roles, plan, settings, network, launcher)
    return RoleProcesses(plan.processes, settings, launcher, num_threads)

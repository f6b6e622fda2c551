"""Running a plan: checks, folders, signals, and the worker pool (docs/how-to/run.md)."""

import atexit
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from rich.console import Console

from htrain.data import open_data
from htrain.data.drivers import scheme_of
from htrain.errors import CheckpointError, Error, UsageError
from htrain.executor.host.sockets import sockets_folder
from htrain.executor.host.threads import callers_settings_kept
from htrain.executor.launch import on_hosts
from htrain.executor.launch.coordinator import Outside, WorkerPool
from htrain.executor.launch.inputs import check_inputs, check_numbers, check_rows, check_values
from htrain.executor.launch.joined import JoinedPools, Meeting, meeting_of
from htrain.executor.launch.pool import RoleProcesses, RoleThreads, Supervisors
from htrain.executor.launch.reach import Needed, Probes, task_of
from htrain.executor.launch.tries import Beside, Job, Tries
from htrain.executor.record.identity import Identity
from htrain.executor.record.progress import Progress
from htrain.executor.record.run_folder import began, claimed, refuse_owned, refuse_served, require_empty
from htrain.executor.roles.alone import can_be_alone
from htrain.executor.roles.coordination import RunResult
from htrain.executor.settings import RunSettings
from htrain.executor.strategies.strategy import cache_of
from htrain.executor.transport.link import Launcher
from htrain.executor.transport.port import Network
from htrain.jit import is_kept
from htrain.ops.bundle import LOOPS
from htrain.own.registry import places_of
from htrain.plan.check import check_plan
from htrain.plan.folder import header_digest
from htrain.plan.plan import Plan, load_plan
from htrain.publishing.storage import local_folder, require_address
from htrain.spec.settings import Elsewhere, MostRetries

if TYPE_CHECKING:
    from htrain.executor.launch.mpi import RoleRanks

Hosting = Literal["processes", "threads", "mpi", "ray"]
# A run in a new folder, on from its last checkpoint, or whichever of these its folder is for.
Begin = Literal["new", "resume", "either"]
_RETRIES = 3
_NOTHING_KEPT = (
    "no folder for Numba's cache can be written: each process compiles its loops for itself, so that first steps come later; "
    "let NUMBA_CACHE_DIR name a folder that can"
)


def run_plan(
    settings: RunSettings,
    *,
    beside: Beside,
    hosting: Hosting | Elsewhere,
    begin: Begin,
    retries: MostRetries,
    num_threads: int,
    console: Console,
) -> RunResult:
    """Run a plan to the end of its data, from its beginning or from its last checkpoint.

    Raises PlanError, DataError, CheckpointError for what cannot start; PeerLost when a role died, and went on dying in as many `retries`; Interrupted after
    Ctrl-C or SIGTERM, once a checkpoint has been written; with as little lost, what kept a checkpoint from being validated; PublishError, where the last
    version is not published; and UsageError for retries where roles cannot be started again.
    """
    _require_that_roles_can_be_begun_again(settings, hosting, retries)
    _require_that_versions_are_seen(beside.published.address, hosting)
    if isinstance(hosting, Elsewhere) or hosting == "ray":
        most = _RETRIES if retries == "auto" else retries
        with _met(hosting, settings, num_threads, console) as meeting:
            return _run_joined(settings, beside, meeting, begin=begin, retries=most, console=console)
    most = (_RETRIES if hosting == "processes" else 0) if retries == "auto" else retries
    if hosting == "mpi":
        return _run_rank(settings, beside, begin=begin, num_threads=num_threads, console=console)
    pools = LocalPools(hosting, num_threads)
    with callers_settings_kept():
        return _run(settings, beside, pools, begin=begin, retries=most, console=console)


def _require_that_roles_can_be_begun_again(
    settings: RunSettings, hosting: Hosting | Elsewhere, retries: MostRetries
) -> None:
    """Raises UsageError for what is asked for of roles that are lost, where none is begun again."""
    places = {"mpi": "under mpiexec, which ends all ranks with the first", "threads": "as threads of one process"}
    where = "" if isinstance(hosting, Elsewhere) else places.get(hosting, "")
    asked = f"--retries {retries}" if retries not in ("auto", 0) else ""
    asked = asked or ("--retry partial" if settings.retry == "partial" else "")
    if where and asked:
        raise UsageError(f"{asked}: roles cannot be started again {where}: leave it out, or run them as processes")
    if settings.retry == "partial" and retries == 0:
        raise UsageError(
            "--retry partial has no effect with --retries 0, which ends the run with the first role that is lost: leave one of them out"
        )


def _require_that_versions_are_seen(address: str, hosting: Hosting | Elsewhere) -> None:
    """Raises PublishError for what is no address of versions, and UsageError for one that no process shares with another, where roles are processes."""
    if not address:
        return
    require_address(address)
    if scheme_of(address) == "memory" and hosting != "threads":
        raise UsageError(
            f"--publish {address}: is memory of one process, where nobody sees what roles write that are others: name a folder or a store, or let "
            "roles be threads of this process (--threads)"
        )


@contextmanager
def _met(
    hosting: Elsewhere | Literal["ray"], settings: RunSettings, num_threads: int, console: Console
) -> Iterator[Meeting]:
    """Where roles join that come from elsewhere."""
    if isinstance(hosting, Elsewhere) and hosting.hosts:
        with on_hosts.agents(
            hosting, num_threads, lambda text: console.print(text, markup=False, soft_wrap=True)
        ) as meeting:
            yield meeting
        return
    if isinstance(hosting, Elsewhere):
        yield meeting_of(hosting)
        return
    try:
        on_ray = import_module("htrain.executor.launch.on_ray")  # needs Ray
    except ModuleNotFoundError as error:
        raise UsageError(
            "--on ray wants Ray, which is not installed here: pip install 'htrain[ray]', on all nodes"
        ) from error
    with on_ray.agents(settings, num_threads) as meeting:
        yield meeting


def _run_joined(
    settings: RunSettings, beside: Beside, meeting: Meeting, *, begin: Begin, retries: int, console: Console
) -> RunResult:
    """Run the plan with roles that come from elsewhere, and are told in the end how that went."""
    settings, beside = _for_elsewhere(settings, beside)
    pools = JoinedPools(meeting, settings)
    try:
        result = _run(settings, beside, pools, begin=begin, retries=retries, console=console)
    except BaseException as error:
        pools.end(error)
        raise
    pools.end(None)
    return result


def _run_rank(settings: RunSettings, beside: Beside, *, begin: Begin, num_threads: int, console: Console) -> RunResult:
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
    ranks = Ranks(mpi.RoleRanks(), network)
    status = 1
    try:
        result = _run(settings, beside, ranks, begin=begin, retries=0, console=console)
        status = 0
        return result
    except Error as error:
        status = error.exit_status
        raise
    finally:
        if not ranks.ranks.has_left():
            atexit.register(os._exit, status)  # without MPI's end; mpiexec then ends the ranks that hang
        ranks.ranks.dismiss()


def _for_elsewhere(settings: RunSettings, beside: Beside) -> tuple[RunSettings, Beside]:
    """The same with whole paths of folders: roles are started in other ones. Data stays as it was said: a run is resumed with the same words."""
    plan, checkpoint = (str(Path(place).resolve()) if place else "" for place in settings.begin_with)
    settings = replace(settings, run_folder=settings.run_folder.resolve(), begin_with=(plan, checkpoint))
    if folder := local_folder(beside.published.address):
        beside = replace(beside, published=replace(beside.published, address=str(Path(folder).resolve())))
    return settings, beside


def _run(
    settings: RunSettings,
    beside: Beside,
    pools: "LocalPools | Ranks | JoinedPools",
    *,
    begin: Begin,
    retries: int,
    console: Console,
) -> RunResult:
    with closing(pools):
        header = header_digest(settings.plan_folder)  # before it is read: roles refuse one that is written meanwhile
        plan = check_plan(load_plan(settings.plan_folder))
        settings = replace(settings, plan_header=header, ops=places_of((*plan.ops, *plan.strategies)))
        dataset = open_data(settings.data)
        check_inputs(plan, dataset)
        check_rows(plan, dataset)
        check_numbers(plan, dataset)
        cache_of(plan, plan.cluster.roles[0]).require_partition()
        validation_data = beside.validating.open(plan)
        if validation_data:
            name = f"--valid: {validation_data.source.name}"
            check_values(plan, name, validation_data.schema, dataset.schema, whose="that is trained on")
        pools.require(plan)
        if begin != "either":
            check_folder(settings.run_folder, resume=begin == "resume")
        with (
            claimed(settings.run_folder) as claim,
            Progress(console, dataset.num_examples() * settings.epochs) as progress,
        ):
            if claim.taken_over:
                progress.note(f"{settings.run_folder}: taken over from {claim.taken_over}, which is gone")
            if not is_kept(LOOPS[0]):
                progress.note(_NOTHING_KEPT)
            holds = began(settings.run_folder) if begin == "either" else "no run"
            if begin == "resume" or holds != "no run":
                refuse_served(settings.run_folder)
            resumes, left = begin == "resume" or holds == "checkpoint", holds == "nothing to go on from"
            job = Job(plan, settings, beside, validation_data, pools, claim, progress, resumes, left)
            return Tries(job, retries).run()


class LocalPools:
    """The roles of a plan on this machine, as threads of this process or as processes."""

    def __init__(self, hosting: Hosting, num_threads: int) -> None:
        self._hosting, self._num_threads = hosting, num_threads
        self._supervisors = Supervisors(num_threads)
        self._folders: list[Path] = []

    def require(self, plan: Plan) -> None:
        """This machine takes every plan."""

    def network(self) -> Network:
        """A new one: of this process, or of a folder that is this user's alone. Nothing listens where another user, or another host, could reach it."""
        if self._hosting == "threads":
            return Network("inproc")
        self._folders.append(folder := sockets_folder())
        return Network("ipc", folder=folder)

    def gather(self, settings: RunSettings, identity: Identity, outside: Outside) -> None:
        """Nobody is waited for."""

    def pool(self, plan: Plan, settings: RunSettings, network: Network, launcher: Launcher) -> WorkerPool:
        """New threads, or processes, which the same supervisor forks in each try."""
        if self._hosting == "threads":
            torch.set_num_threads(self._num_threads)
            return RoleThreads(plan.cluster.roles, plan, settings, network, launcher)
        alone = can_be_alone(plan, settings)
        return RoleProcesses(plan.processes, settings, launcher, self._supervisors, alone=alone)

    def close(self) -> None:
        """End the supervisor, and remove what sockets have left."""
        self._supervisors.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


class Ranks:
    """The ranks that mpiexec has started, which can be used once."""

    def __init__(self, ranks: "RoleRanks", network: Network) -> None:
        self.ranks = ranks
        self._network = network
        self._processes: tuple[tuple[str, ...], ...] = ()

    def require(self, plan: Plan) -> None:
        """Raises ClusterError for a plan of another number of processes."""
        import_module("htrain.executor.launch.mpi").require_ranks(plan.processes)
        self._processes = tuple(map(tuple, plan.processes))

    def network(self) -> Network:
        """That in which they have met."""
        return self._network

    def gather(self, settings: RunSettings, identity: Identity, outside: Outside) -> None:
        """They are there. Raises what one of them cannot reach, or does not find as it is here; Interrupted."""
        probes = Probes.of(settings)
        probes.put()
        try:
            task = task_of(settings, identity.data, probes, files=(), header_digest=settings.plan_header)
            needed = Needed(task, self._processes, str(settings.plan_folder))
            self.ranks.require_reach(needed, outside.interrupt, outside.keep_folder)
        finally:
            probes.remove()

    def pool(self, plan: Plan, settings: RunSettings, network: Network, launcher: Launcher) -> WorkerPool:
        """All of them."""
        self.ranks.assign(plan.processes, settings, launcher)
        return self.ranks

    def close(self) -> None:
        """Close the network, whether a run came into it or not, and remove what sockets have left."""
        self._network.close()
        if self._network.folder:
            shutil.rmtree(self._network.folder, ignore_errors=True)


def check_folder(folder: Path, *, resume: bool) -> None:
    """Whether there is something to go on with. Raises CheckpointError, also where a run that lives owns the folder, which looks like one that has ended until
    it has a checkpoint; and UsageError for a new run in a folder that holds something else than an owner."""
    refuse_owned(folder)
    if resume and not folder.is_dir():
        raise CheckpointError(f"{folder}: no such run folder")
    if not resume and folder.exists():
        require_empty(folder)

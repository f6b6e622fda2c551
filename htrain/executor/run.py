"""Running a plan: checks, folders, signals, and the crew (DESIGN 5)."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import torch
from rich.console import Console

from htrain.data import Dataset, open_data
from htrain.errors import CheckpointError, DataError, UsageError
from htrain.executor.checkpoint import Manifest, latest_checkpoint, read_manifest
from htrain.executor.coordinator import Coordinator, Crew, RunResult
from htrain.executor.crew import ProcessCrew, ThreadCrew
from htrain.executor.port import Network
from htrain.executor.progress import Progress
from htrain.executor.run_log import RunLog
from htrain.executor.settings import RunSettings
from htrain.executor.totals import RunTotals
from htrain.plan import Plan, load_plan
from htrain.plan_check import check_plan

Hosting = Literal["processes", "threads", "mpi"]


class RunRecord(msgspec.Struct, forbid_unknown_fields=True):
    """run.json in the run folder: what `--resume` needs to go on, and `eval` to find the plan."""

    plan: str
    data: str
    epochs: int
    deterministic: bool


def run_plan(settings: RunSettings, *, hosting: Hosting, resume: bool, num_threads: int, console: Console) -> RunResult:
    """Run a plan to the end of its data, or resume it from its last checkpoint.

    Raises PlanError, DataError, CheckpointError for what cannot start; PeerLost when a role died; Interrupted after Ctrl-C or SIGTERM,
    once a checkpoint has been written.
    """
    if hosting == "mpi":
        return _run_rank(settings, resume=resume, num_threads=num_threads, console=console)
    return _run(
        settings,
        hosting,
        Network("inproc" if hosting == "threads" else "tcp"),
        resume,
        num_threads,
        console,
        _local_crew,
    )


def _run_rank(settings: RunSettings, *, resume: bool, num_threads: int, console: Console) -> RunResult:
    """Rank 0 runs the plan with the other ranks as its crew; they follow it, and then leave."""
    mpi = import_module("htrain.executor.mpi")  # needs mpi4py, and starts MPI
    torch.set_num_threads(num_threads)
    if mpi.rank():
        mpi.follow()
        sys.exit(0)
    network = Network("tcp", mpi.own_host())
    crew = mpi.MpiCrew()

    def muster(
        plan: Plan, settings: RunSettings, hosting: Hosting, network: Network, launcher: str, num_threads: int
    ) -> Crew:
        crew.muster(plan.cluster.roles, settings, launcher)
        return cast(Crew, crew)

    try:
        return _run(settings, "mpi", network, resume, num_threads, console, muster)
    finally:
        crew.dismiss()


CrewMaker = Callable[[Plan, RunSettings, Hosting, Network, str, int], Crew]


def _run(
    settings: RunSettings,
    hosting: Hosting,
    network: Network,
    resume: bool,
    num_threads: int,
    console: Console,
    make_crew: CrewMaker,
) -> RunResult:
    plan = check_plan(load_plan(settings.plan_folder))
    dataset = open_data(settings.data)
    check_inputs(plan, dataset)
    settings = _resumed(plan, settings) if resume else settings
    _prepare(settings, resume)
    log = RunLog(settings.run_folder)
    total = dataset.num_examples() * settings.epochs
    try:
        with _signals() as interrupted, Progress(console, total) as progress:
            coordinator = _coordinator(plan, settings, network, interrupted, log, progress)
            crew = make_crew(plan, settings, hosting, network, coordinator.address, num_threads)
            return coordinator.run(crew)
    finally:
        log.close()
        network.close()


def _coordinator(
    plan: Plan,
    settings: RunSettings,
    network: Network,
    interrupted: Callable[[], bool],
    log: RunLog,
    progress: Progress,
) -> Coordinator:
    def on_totals(totals: RunTotals, reports: dict[str, dict[str, Any]]) -> None:
        log.write(totals, reports)
        progress.update(totals)

    return Coordinator(
        plan,
        network,
        run_folder=settings.run_folder,
        checkpoint_seconds=settings.checkpoint_seconds,
        deadline_seconds=settings.deadline_seconds,
        interrupted=interrupted,
        on_totals=on_totals,
        on_checkpoint=lambda folder: progress.note(f"checkpoint {folder}"),
    )


def _local_crew(
    plan: Plan, settings: RunSettings, hosting: Hosting, network: Network, launcher: str, num_threads: int
) -> Crew:
    if hosting == "threads":
        torch.set_num_threads(num_threads)
        return ThreadCrew(plan.cluster.roles, plan, settings, network, launcher)
    return ProcessCrew(plan.cluster.roles, settings, launcher, num_threads)


def check_inputs(plan: Plan, dataset: Dataset) -> None:
    """Raises DataError when the data lacks an input of the plan, or has it in another shape."""
    columns = input_columns(dataset)
    for name, wanted in plan.inputs.items():
        if columns.get(name) != wanted:
            seen = columns.get(name, "no such input")
            raise DataError(
                f"{dataset.source.name}: the plan wants input '{name}' as {wanted}, the data has {seen}; compile the model with --data for this data"
            )


def input_columns(dataset: Dataset) -> dict[str, str]:
    """The columns of a dataset's batches as `name: dtype[shape]`, as a plan writes them."""
    columns = {"label": "float32[B]"}
    for item in dataset.schema.inputs:
        if item.kind == "dense":
            columns[item.name] = f"float32[B,{item.width}]"
        elif item.kind == "bag":
            columns |= {
                item.name: f"int64[<={item.width if item.width > 1 else ''}B]",
                f"{item.name}_offsets": "int64[B]",
            }
        else:
            columns[item.name] = f"int64[B,{item.width}]"
            columns |= {f"{item.name}_length": "int64[B]"} if item.kind == "padded" else {}
    return columns


def _prepare(settings: RunSettings, resume: bool) -> None:
    """The run folder: a new one, or the one to go on in."""
    folder = settings.run_folder
    if folder.exists() and not resume and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: already holds a run; go on with --resume {folder}, or choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        record = RunRecord(str(settings.plan_folder.resolve()), settings.data, settings.epochs, settings.deterministic)
        (folder / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror}") from error


def read_record(run_folder: Path) -> RunRecord:
    """run.json of a run folder. Raises CheckpointError."""
    path = run_folder / "run.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except OSError as error:
        raise CheckpointError(f"{run_folder}: not a run folder (run.json: {error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error


def _resumed(plan: Plan, settings: RunSettings) -> RunSettings:
    folder = latest_checkpoint(settings.run_folder)
    manifest = read_manifest(folder)
    check_belongs(manifest, plan, folder)
    return replace(settings, restore=str(folder), positions=manifest.trainers)


def check_belongs(manifest: Manifest, plan: Plan, folder: Path) -> None:
    """Raises CheckpointError when a checkpoint was made by another plan."""
    if manifest.plan_digest != plan.digest:
        raise CheckpointError(
            f"{folder}: belongs to another plan (digest {manifest.plan_digest[:12]}, this one has {plan.digest[:12]}): resume with the plan of the run"
        )


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask the run to stop, once; elsewhere than in the main thread they are not ours to take."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

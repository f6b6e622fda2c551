"""A run folder, as far as a report of the run needs it. It must be one of the plan that it is shown beside."""

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from htrain.decoding import from_json
from htrain.errors import CheckpointError, Error
from htrain.executor.record.checkpoint import Manifest
from htrain.executor.record.identity import PlanIdentity
from htrain.executor.record.kept import find_checkpoints
from htrain.executor.record.measured import Measured, load_measured, measure
from htrain.executor.record.run_folder import RunRecord, read_record, refuse_owned
from htrain.executor.record.validations import Validation, kept_checkpoint, read_validations
from htrain.files import read_file
from htrain.net.names import TRAINER, role_of
from htrain.plan.plan import Plan, load_plan
from htrain.printable import as_word
from htrain.report.runs.metrics import History, RoleLine, read_history

_MOST_BYTES = 1 << 24  # of roles.json


@dataclass(frozen=True)
class Run:
    """A run: where it is, what has become of it in a sentence, its history where it left metrics, and what it measured where it came so far.

    `waited` is the share of the steady part for which trainers, in the mean, waited for others, `stalled` that for rows that are brought in
    ahead, and `hit_rate` that of rows found in caches; nan where it is not known. `is_one_process`: its roles were threads, with one lock of
    Python's among them. `notes` are for the reader. `kept` is the checkpoint that stays beside the last ones, as the best of its `validations`; "" for none.
    """

    folder: Path
    record: RunRecord
    state: str
    history: History | None
    measured: Measured | None
    waited: float
    stalled: float
    hit_rate: float
    is_one_process: bool
    notes: tuple[str, ...]
    validations: tuple[Validation, ...] = ()
    kept: str = ""


def read_run(plan: Plan, folder: Path) -> Run:
    """The run in `folder`. Raises CheckpointError for what is no run folder, and for a run of another plan than `plan`."""
    record = read_record(folder)
    found = find_checkpoints(folder)
    manifest = found.complete[0][1] if found.complete else None
    _require_plan(plan, folder, record, manifest)
    history = read_history(folder, [role for role in plan.cluster.roles if role_of(role) == TRAINER])
    strangers = sorted(history.roles - set(plan.cluster.roles)) if history else []
    if strangers:
        raise _other_plan(folder, record, f"its metrics have the role '{strangers[0]}', which the plan has not")
    measured = _measured(plan, folder, history)
    validations = read_validations(folder)
    is_one_process = len(plan.cluster.roles) > 1 and len(_processes(folder)) == 1
    return Run(
        folder,
        record,
        state=_served_state(folder) if record.is_served else _state(folder, manifest, history),
        history=history,
        measured=measured,
        waited=_waited(history) if history else math.nan,
        stalled=_stalled(history) if history else math.nan,
        hit_rate=_hit_rate(history) if history else math.nan,
        is_one_process=is_one_process,
        notes=() if record.is_served else tuple(_notes(folder, history, measured, is_one_process=is_one_process)),
        validations=validations,
        kept=kept_checkpoint(validations),
    )


def _require_plan(plan: Plan, folder: Path, record: RunRecord, manifest: Manifest | None) -> None:
    """A checkpoint says which plan it belongs to; before the first one, the plan that the run was started with does, where it still is."""
    identity = manifest.identity.plan if manifest else None
    if identity is None:
        with suppress(Error):
            identity = PlanIdentity.of(load_plan(Path(record.plan)))
    difference = identity.difference(PlanIdentity.of(plan)) if identity else ""
    if difference:
        raise _other_plan(folder, record, difference)


def _other_plan(folder: Path, record: RunRecord, difference: str) -> CheckpointError:
    return CheckpointError(f"{folder}: is a run of another plan ({difference}): show it beside {record.plan}")


def _state(folder: Path, manifest: Manifest | None, history: History | None) -> str:
    examples = max(history.examples if history else 0, manifest.examples if manifest else 0)
    try:
        refuse_owned(folder)
    except CheckpointError:
        return f"goes on: {examples:,} examples until now"
    if manifest is None:
        return f"ended after {examples:,} examples, before its first checkpoint"
    if manifest.finished and manifest.examples >= examples:
        return f"came to its end after {examples:,} examples"
    saved = "" if manifest.examples == examples else f", of which {manifest.examples:,} are in its last checkpoint"
    return f"was stopped after {examples:,} examples{saved}; it can go on with --resume"


def _served_state(folder: Path) -> str:
    try:
        refuse_owned(folder)
    except CheckpointError:
        return "serves its tables to workers of their own; what they ask for stands in its metrics.jsonl"
    return (
        f"has served its tables to workers of their own; it can go on with htrain serve PLAN --resume {as_word(folder)}"
    )


def _measured(plan: Plan, folder: Path, history: History | None) -> Measured | None:
    """The measured figures of the run's last part: by its metrics, or, without these, what it wrote at its end."""
    if history is None:
        with suppress(CheckpointError):
            return load_measured(folder)
        return None
    if history.seconds <= 0 or history.after.run.examples <= history.before.run.examples:
        return None
    return measure(plan, history.before.reports, history.after.reports, history.seconds)


def _waited(history: History) -> float:
    """The share of time for which the trainers waited for others, in the mean."""
    before, after = history.before.roles, history.after.roles
    trainers = [role for role in after if role_of(role) == TRAINER]
    waited = sum(after[t].seconds_waited - before.get(t, RoleLine(t)).seconds_waited for t in trainers)
    return _share(waited, history.seconds * len(trainers))


def _stalled(history: History) -> float:
    trainers = sum(role_of(role) == TRAINER for role in history.after.roles)
    stalled = history.after.run.caches.stall_seconds - history.before.run.caches.stall_seconds
    return _share(stalled, history.seconds * trainers)


def _hit_rate(history: History) -> float:
    before, after = history.before.run.caches, history.after.run.caches
    hits, misses = after.hits - before.hits, after.misses - before.misses
    return _share(hits, hits + misses)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan


class _Place(msgspec.Struct, frozen=True):
    host: str
    pid: int


def _processes(folder: Path) -> set[_Place]:
    """The processes that the roles ran in; none where roles.json does not say."""
    try:
        text = read_file(folder / "roles.json", most_bytes=_MOST_BYTES)
        return set(from_json(text, dict[str, _Place]).values())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return set()


def _notes(folder: Path, history: History | None, measured: Measured | None, *, is_one_process: bool) -> list[str]:
    notes = []
    if history is None:
        rest = "what it measured at its end is here" if measured else "there is nothing to compare with the plan"
        notes.append(f"{folder} has no metrics that can be read: {rest}.")
    elif measured is None:
        notes.append(f"{folder} ended before all roles had reported twice: there is nothing to compare with the plan.")
    if history and history.resumed_at:
        times = len(history.resumed_at)
        which = "last part that trained something" if history.trained_nothing else "last part"
        notes.append(
            f"It was resumed {'once' if times == 1 else f'{times} times'}: what is compared with the plan is its {which}."
        )
    if is_one_process:
        notes.append("Its roles were threads of one process: the memory of each is that of its parameters.")
    if history and history.is_cut:
        notes.append("The last line of its metrics is cut off, and left out.")
    if history and history.num_damaged:
        count = history.num_damaged
        notes.append(
            f"{count:,} line{'' if count == 1 else 's'} of its metrics cannot be read, and {'is' if count == 1 else 'are'} left out."
        )
    return notes

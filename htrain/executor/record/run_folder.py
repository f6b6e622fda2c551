"""The run folder: who owns it, and what the run in it was started with.

One run at a time trains in a folder. Its launcher holds a lock of the system on `owner.json` and writes its name there; a lock goes with the process that
holds it, however that ends, so what a killed launcher leaves behind is taken over. Where a file system shares no locks between hosts, the name counts: an
owner on another host says every few seconds that it lives, by the file's time.
"""

import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from htrain.decoding import from_json
from htrain.errors import CheckpointError, Error, UsageError
from htrain.executor.host.process import Process, this_process
from htrain.files import is_there, put_file, read_file
from htrain.plan.folder import is_plan
from htrain.printable import as_word
from htrain.publishing.versions import FOLDER

OWNER, RECORD = "owner.json", "run.json"
FROM_MEMORY = "from-memory"  # a folder of what a run was given that stood in no file
SIGN_SECONDS = 5.0  # between two signs of life
_GONE_SECONDS = 60.0  # without one
_MOST_BYTES = 1 << 20
_HAS_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]+:/")  # of an address, whose second slash a path has lost
_MOST_TRIES = 100  # at a folder that others make and remove
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class RunRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """run.json in the run folder: what `--resume` needs to go on, and `eval` to find the plan."""

    plan: str
    data: str
    epochs: int
    deterministic: bool
    begun_with: str = ""

    @property
    def is_served(self) -> bool:
        """Whether tables were served to workers from outside, who have data of their own."""
        return not self.data


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """owner.json: the launcher that trains in a folder; `since` in seconds of the epoch."""

    process: Process
    since: float


class Claim:
    """A folder that is ours, until it `is_lost`: somebody has removed or renamed it, and another run may own what has its name now. `taken_over` names the
    owner that has left it behind, "" where there was none."""

    def __init__(self, path: Path, file: int, taken_over: str) -> None:
        self.taken_over = taken_over
        self.is_lost = False
        self._path = path
        self._file = file
        self._signed = time.monotonic()

    def give_sign(self) -> None:
        """See whether the folder is still ours, and say that its owner lives, where that is due. For any thread."""
        if time.monotonic() - self._signed >= SIGN_SECONDS:
            self._signed = time.monotonic()
            self._see()
            with suppress(OSError):
                os.utime(self._file)

    def look(self) -> None:
        """See whether the folder is still ours, before something is written there or removed. Raises CheckpointError where it is lost."""
        self._see()
        self.require()

    def require(self) -> None:
        """Raises CheckpointError where the folder was found to be lost."""
        if not self.is_lost:
            return
        folder, owner = self._path.parent, _read_owner(self._path)
        if owner:
            raise CheckpointError(
                f"{folder}: was removed, or renamed, while its run went on, and is another run's now ({owner.process}): this one ends, and writes nothing there"
            )
        raise CheckpointError(
            f"{folder}: was removed, or renamed, while its run went on, which ends: under its new name it goes on with --resume, if it has a checkpoint; "
            "else start it anew"
        )

    def _see(self) -> None:
        try:
            self.is_lost |= not _is_at(self._file, self._path)
        except OSError:  # a file system that is away for a moment, or has nothing more under our number
            owner = _read_owner(self._path)
            self.is_lost |= owner is not None and owner.process != this_process()

    def release(self) -> None:
        """Give the folder back."""
        with suppress(OSError):
            if _is_at(self._file, self._path):
                self._path.unlink()
        os.close(self._file)


@contextmanager
def claimed(folder: Path) -> Iterator[Claim]:
    """Own `folder` for a while; it is made where it is not there, and goes again where nothing came into it.

    Raises CheckpointError naming the owner that it has, and where it cannot be written now; UsageError where it never could (`cannot_be_written`).
    """
    try:
        is_new = not folder.exists()
        claim = _claim_new(folder)
    except (OSError, ValueError) as error:
        raise cannot_be_written(folder, error) from error
    try:
        yield claim
    finally:
        claim.release()
        if is_new:
            with suppress(OSError):  # it holds something, as it should
                folder.rmdir()


def refuse_owned(folder: Path) -> None:
    """Raises CheckpointError where a run that lives owns `folder`, as far as can be told without a lock: quickly, before anything else is loaded."""
    owner = _read_owner(folder / OWNER)
    if owner and owner.process.lives:
        raise _owned(folder, owner)


def is_owned_by_another(folder: Path) -> bool:
    """Whether a run of another process owns `folder`, which lives or, on another host, may live, as far as can be told without a lock."""
    owner = _read_owner(folder / OWNER)
    is_ours = owner and owner.process.is_near and owner.process.pid == os.getpid()
    return bool(owner and not is_ours and owner.process.lives is not False)


def _claim_new(folder: Path) -> Claim:
    """Claim a folder, which others may make and remove between any two looks at it: then again."""
    tries = 0
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _claim(folder)
        except (FileNotFoundError, FileExistsError):  # or it is none, and stays so
            tries += 1
            if tries == _MOST_TRIES:
                raise


_PASSES = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE}


def cannot_be_written(path: Path, error: OSError | ValueError) -> Error:
    """The error of a run folder, or of a file in it, that cannot be written. A disk that is full, or read-only since it failed, is mended, and the same command
    works: who starts it again, as systemd does, knows by the status 1 of a CheckpointError; another is a UsageError."""
    kind = CheckpointError if getattr(error, "errno", None) in _PASSES else UsageError
    return kind(f"{path}: cannot be written: {_why_not(path, error)}")


def _why_not(folder: Path, error: OSError | ValueError) -> str:
    """What keeps a folder from being made. The system calls a link to nowhere a file that exists; to make a folder there could be to write to another disk than
    was meant, where that is not mounted."""
    if isinstance(error, FileExistsError):
        for path in (folder, *folder.parents):
            if path.is_symlink() and not path.exists():
                return f"{path} is a link to {os.readlink(path)}, where there is no folder: make it, or choose another --out"
    return getattr(error, "strerror", None) or str(error)


def _claim(folder: Path) -> Claim:
    path = folder / OWNER
    file, has_locks = _locked(path)
    before = _read_owner(path)
    if file < 0:
        raise _owned(folder, before)
    try:
        if before and _may_live(before, path, has_locks):
            raise _owned(folder, before)
        if not before and os.fstat(file).st_size:
            raise UsageError(f"{path}: is not what htrain writes there: name another folder, or remove it")
        _write_owner(file)
    except BaseException:
        os.close(file)
        raise
    return Claim(path, file, str(before.process) if before else "")


def _locked(path: Path) -> tuple[int, bool]:
    """The open file, locked, and whether locks are to be had here; -1 where another has the lock. The name may have been taken from a file
    between its opening and its lock: then again."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        has_locks = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return -1, True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(file)
                raise
            has_locks = False
        if _is_at(file, path):
            return file, has_locks
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _may_live(owner: Owner, path: Path, has_locks: bool) -> bool:
    """Whether the owner that stands in a file may live though we have its lock. One on this host would have held it."""
    lives = owner.process.lives
    if lives is None:
        return _age_seconds(path) < _GONE_SECONDS
    return lives and not has_locks


def _age_seconds(path: Path) -> float:
    """How long ago a file was changed, by the clock of its file system."""
    with tempfile.TemporaryFile(dir=path.parent) as now:
        return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime


def _read_owner(path: Path) -> Owner | None:
    """Who stands in owner.json; None where nobody does, or it cannot be read."""
    try:
        return from_json(read_file(path, most_bytes=_MOST_BYTES), Owner)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _write_owner(file: int) -> None:
    text = msgspec.json.format(msgspec.json.encode(Owner(this_process(), time.time())))
    os.ftruncate(file, 0)
    os.pwrite(file, text, 0)


def _owned(folder: Path, owner: Owner | None) -> CheckpointError:
    who = (
        f"{owner.process} (since {time.strftime('%H:%M:%S', time.localtime(owner.since))})"
        if owner
        else "another process"
    )
    does = "serves its tables" if is_served(folder) else "works in it"  # run.json comes a moment after the owner
    return CheckpointError(
        f"{folder}: {who} {does}: wait for its end, or stop it first; a run of its own takes another --out"
    )


def require_empty(folder: Path) -> None:
    """Raises UsageError for a new run in a folder that holds something already, or that cannot be looked into. An owner that has gone counts for nothing,
    nor does what a run was given from memory.
    Raises CheckpointError for a disk that has failed (`cannot_be_written`)."""
    try:
        held = sorted(path.name for path in folder.iterdir() if path.name not in (OWNER, FROM_MEMORY))
    except OSError as error:
        raise cannot_be_written(folder, error) from error
    if began(folder) == "nothing to go on from":
        raise UsageError(
            f"{folder}: holds a run that ended before its first checkpoint: remove it, or choose another --out"
        )
    if held and began(folder) == "no run":
        raise UsageError(f"{folder}: holds something that is no run ({held[0]}): choose another --out, or remove it")
    if held:
        raise UsageError(
            f"{folder}: already holds a run; go on with --resume {as_word(folder)}, or choose another --out"
        )


def began(folder: Path) -> Literal["no run", "nothing to go on from", "checkpoint"]:
    """What a folder holds of a run: none, one that ended before its first checkpoint, or one that has a checkpoint. Raises CheckpointError where that cannot be
    told: a run whose checkpoints cannot be reached for a moment is not begun anew."""
    try:
        if any(is_there(each / "manifest.json") for each in _entries(folder / "checkpoints")):
            return "checkpoint"
        return "nothing to go on from" if is_there(folder / RECORD) else "no run"
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error


def _entries(folder: Path) -> list[Path]:
    """What a folder holds; nothing where there is none. Raises OSError."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def start_record(folder: Path, record: RunRecord, *, resume: bool) -> None:
    """Write run.json to a claimed folder, which is empty for a new run (`require_empty`) but for what that run itself has put there; one that goes on has begun
    with what it did. Raises CheckpointError or UsageError where it cannot be written (`cannot_be_written`)."""
    if resume and not record.begun_with:
        with suppress(CheckpointError):  # of a run that nobody has written down
            record = msgspec.structs.replace(record, begun_with=read_record(folder).begun_with)
    try:
        put_file(folder / RECORD, msgspec.json.format(msgspec.json.encode(record)))
    except OSError as error:
        raise cannot_be_written(folder, error) from error


_AT_ITS_BEGINNING = {RECORD, "parameters", "metrics.jsonl", "tensorboard"}


def forget_beginning(folder: Path) -> None:
    """Remove what a run has put into a claimed folder which ends before anybody has played a role of it: the same command may begin it again. Where something
    else has come there, all stays."""
    with suppress(OSError):
        held = [
            path
            for path in folder.iterdir()
            if path.name not in (OWNER, FROM_MEMORY) and not path.name.startswith("probe-")
        ]
        if {path.name for path in held} <= _AT_ITS_BEGINNING:
            for path in held:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def require_run(run_folder: Path) -> RunRecord:
    """run.json of a folder in which a plan was trained. Raises CheckpointError for one in which tables were served, too."""
    record = read_record(run_folder)
    if record.is_served:
        run = as_word(run_folder)
        raise CheckpointError(
            f"{run_folder}: its tables were served, without a model around them: go on with htrain serve {as_word(record.plan)} --resume {run}, begin with "
            f"them: htrain serve PLAN --out RUN --begin-with {run}, or take them out: htrain export {run} --to tables --out FOLDER"
        )
    return record


def is_served(run_folder: Path) -> bool:
    """Whether tables were served in a folder, as far as it says: where run.json cannot be read, whoever needs more of the folder tells why."""
    try:
        return read_record(run_folder).is_served
    except CheckpointError:
        return False


def plan_of(run_folder: Path, said: str | Path = "") -> Path:
    """The folder of the plan of a run that trained: the one that is `said`, or that it was started with. Raises CheckpointError where this has moved, and for a
    folder in which tables were served."""
    if is_served(run_folder):
        require_run(run_folder)
    return plan_of_tables(run_folder, said)


def plan_of_tables(run_folder: Path, said: str | Path = "") -> Path:
    """The same for whoever wants tables alone, which may have been served. Raises CheckpointError where the plan has moved."""
    if said:
        return Path(said)
    plan = Path(read_record(run_folder).plan)
    if not is_plan(plan):
        raise CheckpointError(f"{run_folder}: its plan is not at {plan} any more: say where it is now (--plan)")
    return plan


def refuse_served(run_folder: Path) -> None:
    """A run goes on from its checkpoints, whether run.json is beside them or not. Raises CheckpointError where tables were served."""
    if (run_folder / RECORD).exists():
        require_run(run_folder)


def read_record(run_folder: Path) -> RunRecord:
    """run.json of a run folder. Raises CheckpointError."""
    path = run_folder / RECORD
    try:
        return from_json(read_file(path, most_bytes=_MOST_BYTES), RunRecord)
    except OSError as error:
        what = mistaken(run_folder)
        instead = f"{what}: name the folder that 'htrain run PLAN --out' was given" if what else ""
        raise CheckpointError(f"{run_folder}: not a run folder ({RECORD}: {error.strerror}){instead}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error


def mistaken(folder: Path) -> str:
    """What a folder is that was given for a run's, behind a semicolon; "" where nobody can tell."""
    if is_plan(folder):
        return "; it is a plan"
    if _HAS_SCHEME.match(str(folder)) and not os.path.exists(folder):
        return "; runs are folders of this machine: versions at an address are for htrain.Published, and have no optimizer states"
    if os.path.isdir(folder / FOLDER):
        return "; it holds versions, which are for htrain.Published, and have no optimizer states"
    return ""

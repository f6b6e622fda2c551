"""A process started by mpiexec, in two: the rank, which says how its role ended, and the role, which trains.

mpiexec ends all ranks within milliseconds when one of them dies, and names none. So the process that it has started stays outside: it forks the one that
takes part in MPI, waits for it, and tells whose it was when it dies. Signals reach the launcher's alone, which decides for all.
"""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from htrain.errors import RunError, UsageError
from htrain.executor.host.process import end_with_parent
from htrain.executor.host.sockets import sockets_folder
from htrain.printable import as_word, one_line

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def is_rank() -> bool:
    """Whether mpiexec started this process beside others."""
    return any(_number(name) > 1 for name in _SIZES)


def is_launcher() -> bool:
    """Whether this process is the launcher of its run: the first rank, or no rank at all."""
    return not is_rank() or not any(_number(name) for name in _RANKS)


@contextmanager
def said_once() -> Iterator[None]:
    """All ranks were told the same: what is wrong with that, the launcher alone says. Raises UsageError there; other ranks leave with its status."""
    try:
        yield
    except UsageError as error:
        if is_launcher():
            raise
        sys.exit(error.exit_status)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


class _Role:
    """In the role: what it is called, and where to tell the rank of it."""

    name = "a role"
    pipe = -1
    folder: Path | None = None  # for sockets, which goes with the rank


def split(run_folder: Path) -> None:
    """Become two processes, before MPI begins. Returns in the one that takes part; the other waits for it, and exits as it does.

    Requires: this process has one thread.
    """
    _Role.name = "the launcher" if is_launcher() else "a role"
    read, write = os.pipe()  # the role's name
    alive, hold = os.pipe()  # ends with the rank
    if is_launcher():
        with suppress(RunError):  # who wants one says so to all
            _Role.folder = sockets_folder()
    rank = os.getpid()
    child = os.fork()
    if child:
        os.close(write)
        os.close(alive)
        os._exit(_wait(child, read, run_folder, forwards=is_launcher()))
    os.setpgid(0, 0)  # what is sent to the rank comes by way of it
    end_with_parent(
        signal.SIGCONT, parent=rank
    )  # one that is stopped could not end with it, and mpiexec would wait for it
    os.close(read)
    os.close(hold)
    _Role.pipe = write
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its store warns of hosts whose addresses have no name
    threading.Thread(target=_follow, args=(alive,), name="rank", daemon=True).start()


def call_role(name: str) -> None:
    """The role that this process plays from now on."""
    _Role.name = name
    if _Role.pipe >= 0:
        os.write(_Role.pipe, name.encode())
        os.close(_Role.pipe)


def new_folder() -> Path:
    """A folder for the sockets of a run: that which the launcher's rank has made, where there is one, and which the last of its two processes removes, however
    they end. Raises RunError."""
    return _Role.folder or sockets_folder()


def leave() -> None:
    """The role is done, and ends with its rank without a word: in MPI's own end, which may wait for others, no thread of Python's runs any more."""
    if _Role.pipe >= 0:
        end_with_parent()


def _wait(child: int, read: int, run_folder: Path, *, forwards: bool) -> int:
    """The rank: its exit status is that of the role, told in a line where that was killed."""
    for number in _FORWARDED:
        signal.signal(number, (lambda n, _: _send(child, n)) if forwards else signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    _remove_folder()
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    with open(read, encoding="utf-8", errors="replace") as told:
        name = told.read() or _Role.name
    has_checkpoint = any(run_folder.glob("checkpoints/*/manifest.json"))
    advice = f"go on with --resume {as_word(run_folder)}" if has_checkpoint else "it has no checkpoint to go on from"
    _say(f"htrain: {name} (process {child}) was killed by signal {-code}; {advice}")
    return 1


def _send(child: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)


def _follow(alive: int) -> None:
    """In the role: end with the rank, and tell whose it was where it did not wait for the role."""
    os.read(alive, 1)
    _say(f"htrain: {_Role.name} (process {os.getpid()}) ends: mpiexec's process that waits for it was killed")
    _remove_folder()
    os._exit(1)


def _remove_folder() -> None:
    if _Role.folder:
        shutil.rmtree(_Role.folder, ignore_errors=True)


def _say(line: str) -> None:
    """In one write: other ranks say theirs at the same time."""
    with suppress(OSError, ValueError):
        sys.stderr.flush()
        os.write(2, f"{one_line(line)}\n".encode("utf-8", "backslashreplace"))

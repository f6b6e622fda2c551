"""A process, named so that others on its host can tell whether it still lives; and one that goes with its parent."""

import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec
import psutil

_PR_SET_PDEATHSIG = 1  # of Linux
_prctl = (
    ctypes.CDLL(None).prctl if sys.platform == "linux" else None
)  # found now: a fork beside threads may not look for it
_CLOCK_SECONDS = 2.0  # by which the start of a process may seem to move when the host's clock is set

_COLLECT_AFTER = (
    700,
    10,
    10,
)  # new objects, and collections of younger ones: Python's own; a command collects less often while it imports


def settle() -> None:
    """What this process has loaded stays, so that collections pass it by, and pages of it stay shared with processes that are forked; they come as often as
    with any other Python from now on."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    gc.enable()


class Process(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a process runs. A number is given to another process when its first owner is gone, so `began`, when it started, belongs to the name.

    `host` is the host's name; `space` tells apart processes that count in different ways: containers of one host, and two starts of it.
    """

    host: str
    space: str
    pid: int
    began: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_near(self) -> bool:
        """Whether this process can see that one."""
        return (self.host, self.space) == (socket.gethostname(), _space())

    @property
    def lives(self) -> bool | None:
        """Whether it has not ended; None for a process that cannot be seen from here. One that is stopped lives, one that nobody has reaped does not."""
        if not self.is_near:
            return None
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.began) < _CLOCK_SECONDS and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def this_process() -> Process:
    """The process that asks."""
    return Process(socket.gethostname(), _space(), os.getpid(), psutil.Process().create_time())


def end_with_parent(number: signal.Signals = signal.SIGKILL, *, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when its parent dies, even where this one is stopped; at once where `parent`, by its number from before the
    fork, has died already. Elsewhere than on Linux, nothing."""
    if _prctl:
        _prctl(_PR_SET_PDEATHSIG, int(number))
        if parent is not None and os.getppid() != parent:  # it died before that was said
            os.kill(os.getpid(), number)


def parent_number() -> int | None:
    """The number of the process that has begun this one by multiprocessing, as it was then; None for another."""
    parent = multiprocessing.parent_process()
    return parent.pid if parent else None


def python_command(imports: str, call: str, *words: str) -> list[str]:
    """The command of another Python that imports something of htrain's, and then runs `call`, with `words` as its arguments. In the end it looks for modules
    where this one does. While it imports, it does not look in the current folder, as Python does by itself with "-c", and as notebooks do later: a user's
    `queue.py` there would be taken for Python's own."""
    places = [str(place) for place in sys.path]
    elsewhere = [
        *filter(None, places),
        str(Path(__file__).parents[3]),
    ]  # where htrain is, if only the current folder says so
    code = f"import sys; sys.path[:] = {elsewhere!r}; {imports}; sys.path[:] = {places!r}; {call}"
    return [sys.executable, "-P", "-c", code, *words]


def _space() -> str:
    """This start of the host, and the space in which its process numbers count; "" where the system does not tell."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""

"""A process that has the memory of this one as it is at one moment, and writes from it what this one goes on to change.

It is a fork: the system shares pages until one of the two writes to them, and copies only those. It runs `work` alone, on one thread: of this process's locks
none may be needed there, since whoever holds one is not there to release it. So `work` does system calls on memory that was made ready before.
"""

import errno
import gc
import math
import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from htrain.errors import RunError
from htrain.executor.host.process import end_with_parent
from htrain.executor.host.threads import NICE

_READ_BYTES = 1 << 16
_ENDING_SECONDS = 10.0
_FORKING = threading.Lock()  # what is done around a fork is the whole process's, and libraries refuse one beside another (filelock, which torch needs)


class Apart:
    """Such a process, of this `pid`, which runs from now on. `work` returns what is to be known of it; what it raises is known as an error's text.

    Raises OSError where the system, or a library, lets no process begin.
    """

    def __init__(self, work: Callable[[], bytes]) -> None:
        self._reading, writing = os.pipe()
        self._ending = threading.Lock()  # nobody may end a process whose number has gone to another
        self._is_over = False
        self.cpu_seconds = 0.0
        try:
            parent = os.getpid()
            with _alone():
                self.pid = os.fork()
                if self.pid == 0:
                    _be_apart(work, writing, parent)
        except (OSError, RuntimeError) as error:
            os.close(self._reading)
            raise OSError(getattr(error, "errno", None) or errno.EAGAIN, str(error)) from error
        finally:
            os.close(writing)

    def result(self, *, within: float = math.inf) -> bytes:
        """What `work` has returned, once it has ended. Raises RunError where it has raised something, was ended before, or goes on for longer than
        `within` seconds: it is ended then."""
        end, pieces = time.monotonic() + within, bytearray()
        while (is_ready := self._is_ready(end)) and (piece := os.read(self._reading, _READ_BYTES)):
            pieces += piece
        if not is_ready:
            self.kill()
        said = bytes(pieces) if is_ready else f"-its process did not end within {within:.0f} s".encode()
        end = time.monotonic() + _ENDING_SECONDS  # one that waits for a disk which never answers cannot even be killed
        while not self._reaped() and time.monotonic() < end:
            time.sleep(0.001)  # between the end of what it says and its own
        os.close(self._reading)
        if said[:1] == b"+":
            return said[1:]
        raise RunError(said[1:].decode(errors="replace") or "its process was ended")

    def _is_ready(self, end: float) -> bool:
        """Whether something can be read by then."""
        waiting = select.poll()
        waiting.register(self._reading)
        while (left := end - time.monotonic()) > 0:
            if waiting.poll(1000 * min(left, 60.0)):
                return True
        return False

    def _reaped(self) -> bool:
        with self._ending:
            try:
                pid, _, used = os.wait4(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._is_over = True  # the system has taken it, as where who began this process ignores SIGCHLD
                return True
            if pid:
                self._is_over = True
                self.cpu_seconds = used.ru_utime + used.ru_stime
            return self._is_over

    def kill(self) -> None:
        """End it at once, unless it has ended. From any thread; `result` still has to be asked for."""
        with self._ending:
            if not self._is_over:
                os.kill(self.pid, signal.SIGKILL)


@contextmanager
def _alone() -> Iterator[None]:
    """Nothing that this thread would do by itself: no signal is handled, and no garbage collected, whose owners may want a lock."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    _FORKING.acquire()
    collects = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():  # Python tells of locks from 3.12 on
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if collects:
            gc.enable()
        _FORKING.release()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _be_apart(work: Callable[[], bytes], writing: int, parent: int) -> None:
    """The child: it holds no file of its parent's open, which others take for its parent's life, and leaves without the parent's own way out."""
    status = 1
    try:
        end_with_parent(parent=parent)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        _close_all_but(writing)
        try:
            said = b"+" + work()
        except BaseException as error:
            said = b"-" + str(error).encode()
        while said:
            said = said[os.write(writing, said) :]
        status = 0
    finally:
        os._exit(status)


def _close_all_but(kept: int) -> None:
    """Close every open file but `kept` and the three standard ones. Which there are is asked for: the limit of open files says little of it, may be lower than
    the number of one that was opened before it was set, and a billion where a container sets none."""
    for place in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            numbers = [int(name) for name in os.listdir(place)]
            break
    else:
        numbers = list(range(max(0, os.sysconf("SC_OPEN_MAX"))))
    for number in numbers:
        if number > 2 and number != kept:
            with suppress(OSError):  # that by which they were listed
                os.close(number)

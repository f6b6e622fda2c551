"""The way out of every command: what it says, and the exit status.

    0    done                          2    the command line makes no sense
    1    something the user can mend   3    a bug of htrain's
    130  Ctrl-C                        128 + N  ended by signal N

Standard output holds a command's document alone. What else writes there, a model that prints while it is imported or a library in C, is
led to standard error. HTRAIN_TRACEBACK=1 adds Python's traceback to any error.
"""

import atexit
import errno
import faulthandler
import gc
import io
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from htrain.errors import Error
from htrain.printable import one_line, printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_BUG = 3
_LOST_SECONDS = 0.5  # until an exception that a library has swallowed is missed
_SOON_SECONDS = 0.01
_NO_THREAD = "can't start new thread"
_CURES = {
    errno.EMFILE: ": allow this process more of them (ulimit -n)",
    errno.EAGAIN: ": allow this user more processes (ulimit -u), or more memory",
}  # by what the system refuses
_NO_MEMORY = ("can't allocate memory", "not enough memory", "Cannot allocate memory")


class Signalled(KeyboardInterrupt):
    """A signal asks the command to end; what is half done is tidied up on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Signals:
    """The first signal ends the command by an exception, the second at once. One that is ignored stays so, as the end of the terminal under nohup.

    Libraries lose exceptions: a bare `except` around an import, a callback from C. One that is gone before it got to the door is raised again.
    So does Python, which can only print what a `__del__` or the callback of a weak reference raises, as those of its own import locks.
    PyTorch ends the process where it hears of one while it sets itself up in C++: none is raised until it is imported.
    """

    def __init__(self) -> None:
        self.number = 0
        self._over = False
        self._print = sys.unraisablehook
        sys.unraisablehook = self._unraisable
        self._raised: Callable[[], Signalled | None] = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.number or self._over:
            os._exit(128 + number)
        self.number = number
        signal.signal(signal.SIGALRM, self._on_alarm)
        self._raise_in(frame)

    def _raise_in(self, frame: FrameType | None) -> None:
        """Raise where that can be, or ask again soon."""
        not_here = _imports_torch(frame)
        signal.setitimer(signal.ITIMER_REAL, _SOON_SECONDS if not_here else _LOST_SECONDS, _LOST_SECONDS)
        if not not_here:
            raise self._exception()

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # on a busy host a collection takes longer than until the next alarm
        if not _imports_torch(frame):
            gc.collect()
        # While it is on its way, and what is half done is tidied up, somebody holds it.
        if self._over or self._raised():
            signal.setitimer(signal.ITIMER_REAL, _LOST_SECONDS, _LOST_SECONDS)
        else:
            self._raise_in(frame)

    def _unraisable(self, lost: "sys.UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, Signalled):
            self._print(lost)
        elif not self._over:  # the alarm asks again
            signal.setitimer(signal.ITIMER_REAL, _SOON_SECONDS, _LOST_SECONDS)  # by then its callback has returned

    def _exception(self) -> Signalled:
        """A new one. Nobody but who handles it keeps it: a frame of ours that did would be kept by its traceback."""
        raised = Signalled(self.number)
        self._raised = weakref.ref(raised)
        return raised

    def arrived(self) -> None:
        """The command has ended, one way or another, and is tidied up: a signal has nothing left to do but to end the process."""
        self._over = True
        if self.number:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _imports_torch(frame: FrameType | None) -> bool:
    """Whether this frame is one of those that import PyTorch."""
    while frame and not (frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "torch"):
        frame = frame.f_back
    return frame is not None


def open_door(commands: click.Command) -> NoReturn:
    """Run the command line of this process, which is a call of `commands`, and leave with its status."""
    documents = take_standard_output()
    faulthandler.enable(2)  # and of the roles that are forked from here
    status = _status(commands, Signals())  # from here on a signal raises, and nothing but `_status` would catch it
    sys.stdout = sys.stderr  # for whatever prints at exit
    gc.freeze()  # Python would look for garbage among all that was imported, three times, before it lets go of it all
    try:
        documents.close()
    except BrokenPipeError:
        status = status or 1
    except OSError as error:
        status = status or _say(*_told(error))
    _leave(status)


def _leave(status: int) -> NoReturn:
    """End this process. Python lets no thread back in once it takes itself down: one that comes from torch then, as that of a role that was not waited for,
    aborts the process. So where there are others, what is to be done at exit is done, and nothing is taken down. MPI's end is not among it, but in that."""
    if threading.active_count() > 1 and "mpi4py.MPI" not in sys.modules:
        atexit._run_exitfuncs()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


class _Document(io.FileIO):
    """Standard output, which says that it is that where it takes no more: an error of another file, or of none, says something else."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from error


def take_standard_output() -> TextIO:
    """Standard output as `sys.stdout`, on a descriptor that nobody else knows; descriptor 1 is standard error from now on."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # closed by who started us: a file opened next would take its place
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
    own = os.dup(1)
    os.dup2(2, 1)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    document = io.BufferedWriter(_Document(own, "wb"))
    sys.stdout = io.TextIOWrapper(document, encoding, "backslashreplace", line_buffering=os.isatty(own))
    if not sys.stderr:
        words = open(2, "wb", closefd=False)  # noqa: SIM115
        sys.stderr = io.TextIOWrapper(words, encoding, "backslashreplace", line_buffering=True)
    return sys.stdout


def _status(command: click.Command, signals: Signals) -> int:
    """Run `command`; what it raises becomes a line, and the exit status."""
    try:
        _check_words(sys.argv[1:])
        with command.make_context(
            "htrain", sys.argv[1:]
        ) as context:  # what click's main() does, less what it says of signals itself
            command.invoke(context)
        signals.arrived()
        return 0
    except BaseException as error:
        signals.arrived()
        if isinstance(error, BrokenPipeError):
            return 1
        if os.environ.get("HTRAIN_TRACEBACK", "") not in ("", "0"):
            click.echo(printable(traceback.format_exc()), err=True)
        if signals.number:  # a library may have made another exception of ours
            return _interrupted(signals.number)
        return _say(*_told(error))


def _check_words(words: list[str]) -> None:
    """Raises UsageError for words that no file of ours could hold, and for a current folder that is gone."""
    encoding = sys.getfilesystemencoding()
    what = (
        "UTF-8 text" if encoding == "utf-8" else f"{encoding} text, which this Python takes names for: set PYTHONUTF8=1"
    )
    for place, word in enumerate(words, 1):
        if any("\udc80" <= c <= "\udcff" for c in word):
            raise click.UsageError(f"argument {place}, '{word}', is not {what}")
    try:
        os.getcwd().encode()
    except FileNotFoundError as error:
        raise click.UsageError("the current folder has been removed") from error
    except UnicodeEncodeError as error:
        raise click.UsageError(f"the name of the current folder is not {what}") from error


def _told(error: BaseException) -> tuple[str, int]:
    """What to say of an exception, and the exit status. Nothing is said of an exit that was meant."""
    if isinstance(error, click.exceptions.Exit):
        return "", error.exit_code
    if isinstance(error, SystemExit):
        return "", error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # of click 8.2
        click.echo(error.format_message(), err=True)  # type: ignore[attr-defined]
        return "", 2
    if isinstance(error, click.ClickException):
        context = f" (see {error.ctx.command_path} --help)" if isinstance(error, click.UsageError) and error.ctx else ""
        return error.format_message() + context, error.exit_code
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "interrupted", 128 + signal.SIGINT
    if isinstance(error, Error):
        return str(error), error.exit_status
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return (
            f"not enough memory ({error or 'Python had none left'}): use a machine with more, or a smaller model or batch",
            1,
        )
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}{_CURES.get(error.errno or 0, '')}", 1
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return f"no thread can be started{_CURES[errno.EAGAIN]}", 1
    return (
        f"{type(error).__name__}: {error} ({_place(error)}): this is a bug of htrain; HTRAIN_TRACEBACK=1 shows its way here",
        _BUG,
    )


def _place(error: BaseException) -> str:
    """The innermost line of htrain's that the exception came through."""
    package = Path(__file__).parents[1]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(package)]
    return (
        f"{Path(frames[-1].filename).relative_to(package.parent)}:{frames[-1].lineno}" if frames else "outside htrain"
    )


def _interrupted(number: int) -> int:
    if number == signal.SIGINT:
        return _say("interrupted", 128 + number)
    return _say(f"ended by {signal.Signals(number).name}", 128 + number)


def _say(text: str, status: int) -> int:
    if text:
        with suppress(OSError):  # of a terminal that is gone, a log on a full disk: the status says the rest
            click.echo(f"htrain: {one_line(text)}", err=True)
    return status

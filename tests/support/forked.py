"""Commands of many tests, each in a process of its own that is forked from one which has imported everything: importing is most of a short command.

A command is a child of who asks, as if it had been started anew. Its stand-in has forked it, and has ended, while who asks took in orphans.
"""

import ctypes
import faulthandler
import fcntl
import gc
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from runpy import run_module
from socket import AF_UNIX, SOCK_SEQPACKET, recv_fds, send_fds, socket, socketpair
from tempfile import TemporaryFile
from typing import IO, NoReturn

_IMPORTED = (
    "htrain.api",
    "htrain.training",
    "htrain.cli.app",
    "htrain.executor.launch.run",
    "htrain.executor.launch.supervisor",
    "htrain.report.page",
    "held",
    "paced",
    "torch.export._trace",
    "torch._functorch.aot_autograd",
    "torch._inductor.fx_passes.dedupe_symint_uses",  # these and the next ones are imported by the first export
    "torch._inductor.sizevars",
    "torch._export.passes.replace_with_hop_pass_util",
    "sympy.tensor.tensor",
)
OF_OTHERS = (
    "torch.export._trace", "torch._functorch.aot_autograd", "hypothesis", "msgspec", "numba", "onnx.reference", "onnx_ir", "onnxscript", "pyarrow.csv",
    "pyarrow.parquet", "pytest", "rich.console", "safetensors.torch", "tensorboardX", "zmq",
)  # fmt: skip  # what htrain and its tests import, for a copy of htrain that is changed
_PR_SET_CHILD_SUBREAPER = 36  # of Linux
_REQUEST_BYTES = 1 << 18
_ENVIRONMENT = dict(os.environ)  # of all commands: the test that starts the first may have changed it for itself


class Started:
    """A command that runs: as much of `subprocess.Popen` as tests use, and as there."""

    def __init__(self, pid: int, stdout: IO[str] | None = None, stderr: IO[str] | None = None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self.returncode: int | None = None
        self._said = ["", ""]

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            select.select([descriptor], [], [], timeout)
            os.close(descriptor)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(["htrain"], timeout)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        deadline = time.monotonic() + timeout
        streams = [self.stdout, self.stderr]
        while opened := [stream for stream in streams if stream and not stream.closed]:
            ready = select.select(opened, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                raise subprocess.TimeoutExpired(f"htrain, which has said {self._said}", timeout)
            for stream in ready:
                place = streams.index(stream)
                if part := os.read(stream.fileno(), 1 << 16):
                    self._said[place] += part.decode(errors="replace")
                else:
                    stream.close()
        self.wait(max(0.0, deadline - time.monotonic()))
        return self._said[0], self._said[1]

    @property
    def heard(self) -> str:
        """What it has written to standard error, as far as `communicate` has got."""
        return self._said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Commands:
    """Starts commands until `close`. All begin with `imported` modules in memory."""

    def __init__(self, imported: Sequence[str] = _IMPORTED) -> None:
        self._connection, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        roles = import_module("htrain.executor.launch.environment").role_environment(1)
        added = {name: value for name, value in roles.items() if os.environ.get(name) != value}
        with theirs:
            self._parent = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *imported],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_ENVIRONMENT | added,
            )

    def run(self, words: Sequence[str], cwd: Path, timeout: int) -> subprocess.CompletedProcess[str]:
        """`htrain WORDS...` in a folder. One that takes longer than `timeout` seconds is ended by SIGALRM, and its status is -SIGALRM."""
        return self._to_the_end("", words, cwd, timeout)

    def run_module(
        self, module: str, words: Sequence[str], cwd: Path, timeout: int
    ) -> subprocess.CompletedProcess[str]:
        """`python -m MODULE WORDS...` in a folder, whose own packages come first.

        Requires: what the folder has a copy of is not among the modules that commands begin with.
        """
        return self._to_the_end(module, words, cwd, timeout)

    def on_terminal(self, words: Sequence[str], cwd: Path, timeout: int) -> subprocess.CompletedProcess[str]:
        """The same as `run` on a terminal: `stdout` is what it shows, of both streams."""
        screen, its = pty.openpty()
        process = Started(self._fork("", words, cwd, timeout, [its] * 3, terminal=True))
        os.close(its)
        shown = _shown(screen, timeout)
        return subprocess.CompletedProcess(
            ["htrain", *words], process.wait(timeout), shown.decode(errors="replace"), ""
        )

    def start(
        self, words: Sequence[str], *, held: tuple[Path, str] | None = None, log: IO[str] | None = None
    ) -> Started:
        """`htrain WORDS...`, here, while the test goes on. With trainers that stop, in a folder of orders and at places (held.py).

        What it says on standard error is to be read from the command, or goes to a `log`.
        """
        return self._start("", words, Path.cwd(), held=held, log=log)

    def start_module(self, module: str, cwd: Path) -> Started:
        """`python -m MODULE` in a folder, as `run_module` does, while the test goes on."""
        return self._start(module, [], cwd)

    def _start(
        self,
        module: str,
        words: Sequence[str],
        cwd: Path,
        *,
        held: tuple[Path, str] | None = None,
        log: IO[str] | None = None,
    ) -> Started:
        (stdout, its_stdout), (stderr, its_stderr) = os.pipe(), os.pipe()
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), its_stdout, log.fileno() if log else its_stderr]
            pid = self._fork(module, words, cwd, 0, streams, held=held)
        os.close(its_stdout)
        os.close(its_stderr)
        return Started(pid, open(stdout, errors="replace"), open(stderr, errors="replace"))

    def _to_the_end(
        self, module: str, words: Sequence[str], cwd: Path, timeout: int
    ) -> subprocess.CompletedProcess[str]:
        with open(os.devnull) as nothing, TemporaryFile() as stdout, TemporaryFile() as stderr:
            streams = [stream.fileno() for stream in (nothing, stdout, stderr)]
            status = Started(self._fork(module, words, cwd, timeout, streams)).wait(timeout + 60)
            said, told = (_text(file) for file in (stdout, stderr))
        return subprocess.CompletedProcess([module or "htrain", *words], status, said, told)

    def _fork(
        self,
        module: str,
        words: Sequence[str],
        cwd: Path,
        timeout: int,
        streams: list[int],
        *,
        terminal: bool = False,
        held: tuple[Path, str] | None = None,
    ) -> int:
        """The number of a new child of this process, with these three standard streams."""
        request = [terminal, module, list(words), str(cwd), timeout, held and [str(held[0]), held[1]]]
        _take_in_orphans(True)
        send_fds(self._connection, [json.dumps(request).encode()], streams)
        pid, done = (self._connection.recv(32).decode() for _ in range(2))
        _take_in_orphans(False)
        assert (pid.isdigit(), done) == (True, "done"), "the process that commands are forked from has ended"
        return int(pid)

    def close(self) -> None:
        self._connection.close()
        self._parent.wait(60)


@cache
def shared_commands() -> Commands:
    """Those that all tests of this process start."""
    return Commands()


def _take_in_orphans(yes: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").replace("\r\n", "\n")


def _shown(screen: int, timeout: int) -> bytes:
    """What a terminal shows until all of its programs have gone, or for some time."""
    shown, deadline = b"", time.monotonic() + timeout + 5
    while time.monotonic() < deadline:
        if select.select([screen], [], [], 0.5)[0]:
            try:
                shown += os.read(screen, 1 << 16)
            except OSError:
                break
    os.close(screen)
    return shown


# -- the process that commands are forked from


def _serve(connection: socket) -> None:
    """Fork a command for each request, by a process in between that says its number and ends: the command is then an orphan."""
    while True:
        data, streams, _, _ = recv_fds(connection, _REQUEST_BYTES, 3)
        if not data:
            return
        between = os.fork()
        if between == 0:
            command = os.fork()
            if command:
                connection.send(str(command).encode())
                os._exit(0)
            connection.close()
            _command(streams, *json.loads(data))
        for stream in streams:
            os.close(stream)
        os.waitpid(between, 0)
        connection.send(b"done")


def _command(
    streams: Sequence[int],
    terminal: bool,
    module: str,
    words: list[str],
    cwd: str,
    timeout: int,
    held: tuple[str, str] | None,
) -> NoReturn:
    """Be the command. It leaves without Python's own way out, which walks through all that was imported."""
    if terminal:
        os.setsid()
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    faulthandler.enable()
    os.chdir(cwd)
    signal.alarm(timeout)
    sys.argv = [module or "htrain", *words]
    try:
        _play(module, words, cwd, held)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else error.code is not None
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _play(module: str, words: list[str], cwd: str, held: tuple[str, str] | None) -> None:
    if module:
        sys.path.insert(0, cwd)
        run_module(module, run_name="__main__", alter_sys=True)
        return
    if held:
        import_module("held").hold_trainers(Path(held[0]), held[1])
    if words[:1] in (["run"], ["role"], ["serve"]) and not {"--threads", "--intra-op-threads"} & set(words):
        import_module("htrain.executor.launch.supervisor").fork_supervisor()  # as these do where torch is not loaded
    import_module("htrain.__main__").main()


def _compile_once() -> None:
    """What the first export of a process makes for all others, as what PyTorch's operators are made of, is a third of a command that compiles."""
    api = import_module("htrain.api")
    root = Path(__file__).parents[2]
    api.compile(str(root / "models" / "dlrm.py"), data="synthetic:?rows=1000&table_rows=100", self_check=True)


def main() -> None:
    descriptor, *imported = sys.argv[1:]
    for name in imported:
        import_module(name)
    if "htrain.api" in imported:
        _compile_once()
    if "paced" in imported:
        import_module("paced").pace_trainers()
    gc.freeze()  # as a supervisor does: a collection in a command would write to all pages that it shares
    _serve(socket(fileno=int(descriptor)))


if __name__ == "__main__":
    main()

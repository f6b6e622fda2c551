"""Commands of many tests, each in a process of its own that is forked from one which has imported everything: importing is most of a short command."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from runpy import run_module
from tempfile import TemporaryDirectory

_IMPORTED = (
    "htrain.api",
    "htrain.cli.app",
    "htrain.executor.launch.run",
    "htrain.report.page",
    "torch.export._trace",
    "torch._functorch.aot_autograd",
)
OF_OTHERS = (
    "torch.export._trace", "torch._functorch.aot_autograd", "hypothesis", "msgspec", "numba", "onnx.reference", "onnx_ir", "onnxscript", "pyarrow.csv",
    "pyarrow.parquet", "pytest", "rich.console", "safetensors.torch", "tensorboardX", "zmq",
)  # fmt: skip  # what htrain and its tests import, for a copy of htrain that is changed


class Commands:
    """Runs commands, one at a time, until `close`. All begin with `imported` modules in memory."""

    def __init__(self, imported: Sequence[str] = _IMPORTED) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, __file__, *imported],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def run(self, words: Sequence[str], cwd: Path, timeout: int) -> subprocess.CompletedProcess[str]:
        """`htrain WORDS...` in a folder. One that takes longer than `timeout` seconds is ended by SIGALRM, and its status is -SIGALRM."""
        return self._ask("", words, cwd, timeout, terminal=False)

    def run_module(
        self, module: str, words: Sequence[str], cwd: Path, timeout: int
    ) -> subprocess.CompletedProcess[str]:
        """`python -m MODULE WORDS...` in a folder, whose own packages come first.

        Requires: what the folder has a copy of is not among the modules that commands begin with.
        """
        return self._ask(module, words, cwd, timeout, terminal=False)

    def on_terminal(self, words: Sequence[str], cwd: Path, timeout: int) -> subprocess.CompletedProcess[str]:
        """The same on a terminal: `stdout` is what it shows, of both streams."""
        return self._ask("", words, cwd, timeout, terminal=True)

    def _ask(
        self, module: str, words: Sequence[str], cwd: Path, timeout: int, *, terminal: bool
    ) -> subprocess.CompletedProcess[str]:
        assert self._parent.stdin
        assert self._parent.stdout
        with TemporaryDirectory() as folder:
            self._parent.stdin.write(json.dumps([terminal, module, list(words), str(cwd), timeout, folder]) + "\n")
            status = json.loads(self._parent.stdout.readline())
            said, told = (Path(folder, name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess([module or "htrain", *words], status, said, told)

    def close(self) -> None:
        self._parent.communicate()


def _serve() -> None:
    for name in sys.argv[1:]:
        import_module(name)
    for line in sys.stdin:
        terminal, module, words, cwd, timeout, folder = json.loads(line)
        pid, screen = pty.fork() if terminal else (os.fork(), -1)
        if pid == 0:
            if not terminal:
                _to_files(folder)
            _command(module, words, cwd, timeout)
        if terminal:
            Path(folder, "stdout").write_bytes(_shown(screen, timeout))
            Path(folder, "stderr").touch()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


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


def _to_files(folder: str) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for place, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{folder}/{stream}", os.O_WRONLY | os.O_CREAT), place)


def _command(module: str, words: list[str], cwd: str, timeout: int) -> None:
    """Never comes back."""
    os.chdir(cwd)
    signal.alarm(timeout)
    sys.argv = [module or "htrain", *words]
    try:
        if module:
            sys.path.insert(0, cwd)
            run_module(module, run_name="__main__", alter_sys=True)
        else:
            import_module("htrain.cli.app").main()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else error.code is not None
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve()

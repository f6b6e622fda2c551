"""The door: what a command says on which stream, and how it ends, whatever a model, a signal or a full disk does."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forked import Commands

MODEL = """
import atexit, os, sys
import torch
from torch import nn
print("imported")
os.write(1, b"straight to the descriptor\\n")
atexit.register(print, "at exit")
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        print("built")
        self.top = nn.Linear(13, 1)
    def forward(self, dense):
        print("run")
        return self.top(dense)
def build():
    return Model()
"""


def test_a_model_that_prints_does_not_break_a_document(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    run = commands.run(["compile", "model.py", "--out", "plan", "--json"], tmp_path, timeout=90)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["plan"] == "plan"
    for word in ("imported", "straight to the descriptor", "built", "run"):
        assert word in run.stderr


def test_names_of_a_plan_cannot_move_the_cursor(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    assert commands.run(["compile", "model.py", "--out", "plan"], tmp_path, timeout=90).returncode == 0
    header = (tmp_path / "plan" / "plan.yaml").read_text()
    note = 'notes:\n- "\\e[2J\\e[31mno such thing\\u202e"\n'
    assert "notes: []\n" in header
    (tmp_path / "plan" / "plan.yaml").write_text(
        header.replace("notes: []\n", note).replace("model: model", 'model: "a\\eb"')
    )
    for words in (
        ["show", "plan"],
        ["check", "plan"],
        ["explain", "plan", "top"],
        ["show", "plan", "--net", "no\x1bne"],
    ):
        shown = commands.on_terminal(words, tmp_path, timeout=60)
        assert not [c for c in shown.stdout if not c.isprintable() and c not in "\r\n\t"], shown.stdout
    assert (
        "note: \\x1b[2J\\x1b[31mno such thing\\u202e"
        in commands.on_terminal(["show", "plan"], tmp_path, timeout=60).stdout
    )


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a command in a folder, and comes back when its door is open; none outlives its test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(folder: Path, *words: str, **streams: int) -> subprocess.Popen[bytes]:
        defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-m", "htrain", *words], cwd=folder, **{**defaults, **streams})  # type: ignore[call-overload]
        processes.append(process)
        deadline = time.monotonic() + 30
        while process.poll() is None and not catches(process.pid, signal.SIGTERM) and time.monotonic() < deadline:
            time.sleep(0.005)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def await_file(path: Path) -> None:
    """Come back when a model has got so far that it has made a file, or after a minute."""
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal: before, a signal is Python's own affair, which starts yet."""
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE) or ["0"]
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.0])
def test_ctrl_c_while_torch_is_imported_is_one_line(
    after: float, started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text("import time\ntime.sleep(60)\n")
    run = started(tmp_path, "compile", "model.py", "--out", "plan")
    time.sleep(after)
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=30)
    assert (run.returncode, told) == (130, b"htrain: interrupted\n")


SETS_ITSELF_UP = """
import os, pathlib, time
try:
    pathlib.Path("reached").touch()
    time.sleep(1)
    pathlib.Path("imported").touch()
except BaseException:
    os.abort()  # as C++ does that calls Python and cannot let an exception through
"""


def test_nothing_is_raised_into_torch_that_sets_itself_up(
    started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("from torch import inner\nimport time\ntime.sleep(0.2)\n")
    (tmp_path / "torch" / "inner.py").write_text(SETS_ITSELF_UP)
    (tmp_path / "model.py").write_text("import torch\n")
    run = started(tmp_path, "compile", "model.py", "--out", "plan")
    await_file(tmp_path / "reached")
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=30)
    assert (run.returncode, told) == (130, b"htrain: interrupted\n")
    assert (tmp_path / "imported").exists()


SWALLOWS = """
import pathlib, time
try:
    pathlib.Path("reached").touch()
    time.sleep(60)
except BaseException as error:
    kept = [error, None]
    kept[1] = kept  # as frames and exceptions hold each other
    del kept
time.sleep(60)
"""


IN_A_FINALIZER = """
import pathlib, time
class Slow:
    def __del__(self):
        pathlib.Path("reached").touch()
        time.sleep(60)
Slow()
time.sleep(60)
"""
IN_A_CALLBACK = """
import pathlib, time, weakref
class Thing:
    pass
def gone(reference):
    pathlib.Path("reached").touch()
    time.sleep(60)
thing = Thing()
watched = weakref.ref(thing, gone)
del thing
time.sleep(60)
"""


@pytest.mark.parametrize("code", [SWALLOWS, IN_A_FINALIZER, IN_A_CALLBACK])
def test_a_signal_that_a_library_or_python_swallows_is_not_lost(
    code: str, started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(code)
    run = started(tmp_path, "compile", "model.py", "--out", "plan")
    await_file(tmp_path / "reached")
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=30)
    assert (run.returncode, told) == (130, b"htrain: interrupted\n")


@pytest.mark.parametrize(
    ("number", "says"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM"), (signal.SIGHUP, "ended by SIGHUP")],
)
def test_a_signal_ends_a_command_without_leaving_anything(
    number: signal.Signals, says: str, started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    run = started(tmp_path, "data", "synth", "criteo", "--rows", "1000000000000", "--out", "a.tsv")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".htrain-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    run.send_signal(number)
    _, told = run.communicate(timeout=30)
    assert (run.returncode, told.decode()) == (128 + number, f"htrain: {says}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_crash_in_c_says_where_python_was(started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()\n")
    run = started(tmp_path, "compile", "model.py", "--out", "plan")
    _, told = run.communicate(timeout=60)
    assert run.returncode == -signal.SIGSEGV
    assert b"Segmentation fault" in told
    assert b'model.py", line 3 in crash' in told


def test_a_full_disk_behind_standard_output_is_one_line(
    started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    with open("/dev/full", "wb") as full:
        run = started(tmp_path, "--help", stdout=full.fileno())
        _, told = run.communicate(timeout=60)
    assert (run.returncode, told) == (1, b"htrain: standard output: No space left on device\n")


def test_news_that_a_full_disk_does_not_take_ends_no_command(
    started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """A log on standard error fills its disk up while the command has hours of work behind it."""
    (tmp_path / "train.libfm").write_text("1 0:1 7:1\n-1 3:1 8:1\n" * 20)
    with open("/dev/full", "wb") as full:
        words = ["partition", "libfm:train.libfm?rows=10", "--workers", "2", "--batch", "4", "--out", "p.safetensors"]
        run = started(tmp_path, *words, stderr=full.fileno())
        run.communicate(timeout=200)  # its loops are compiled where nobody has run it yet
    assert run.returncode == 0
    assert (tmp_path / "p.safetensors").exists()


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        ("OSError(24, os.strerror(24))", "Too many open files: allow this process more of them (ulimit -n)"),
        ("OSError(11, os.strerror(11))", "Resource temporarily unavailable: allow this user more processes (ulimit -u), or more memory"),
        ("OSError(28, os.strerror(28), 'a.tsv')", "a.tsv: No space left on device"),
        ('RuntimeError("can\'t start new thread")', "no thread can be started: allow this user more processes (ulimit -u), or more memory"),
    ],
)  # fmt: skip
def test_what_the_system_refuses_is_named_with_its_cure_and_not_as_standard_outputs(
    raised: str, says: str, tmp_path: Path
) -> None:
    script = tmp_path / "refused.py"
    script.write_text(
        "import os, sys\nimport htrain.plan.plan, htrain.cli.app\n"
        f"def refused(folder):\n    raise {raised}\n"
        "htrain.plan.plan.load_plan = refused\nsys.argv = ['htrain', 'show', 'plan']\nhtrain.cli.app.main()\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"htrain: {says}\n")


def test_names_that_python_was_told_to_take_for_ascii_are_not_said_to_be_no_utf_8(tmp_path: Path) -> None:
    ascii_names = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = subprocess.run(
        [sys.executable, "-m", "htrain", "show", "plän"], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **ascii_names},
    )  # fmt: skip
    assert run.returncode == 2
    assert run.stderr.endswith(" is not ascii text, which this Python takes names for: set PYTHONUTF8=1\n"), run.stderr


def test_a_bug_is_called_one_and_its_traceback_is_there_for_who_asks(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys\nimport htrain.cli.plans, htrain.plan.plan, htrain.cli.app\n"
        "def broken(folder):\n    raise KeyError('x')\n"
        "htrain.plan.plan.load_plan = broken\nsys.argv = ['htrain', 'show', 'plan']\nhtrain.cli.app.main()\n"
    )
    for asked in ("", "1"):
        run = subprocess.run(
            [sys.executable, script],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "HTRAIN_TRACEBACK": asked},
        )
        *trace, line = run.stderr.splitlines()
        assert run.returncode == 3
        assert line.startswith("htrain: KeyError: 'x' (htrain/cli/plans.py:")
        assert line.endswith("this is a bug of htrain; HTRAIN_TRACEBACK=1 shows its way here")
        assert bool(trace) == bool(asked)

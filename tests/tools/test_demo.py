"""`make demo` in the hands of somebody who has seen enough."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "tools" / "demo.py"


@pytest.mark.parametrize("begun", ["$ htrain data", "$ htrain compile"])
def test_an_interrupted_demo_ends_without_a_traceback(begun: str, tmp_path: Path) -> None:
    words = [sys.executable, "-u", str(DEMO), "--rows", "20000", "--folder", str(tmp_path / "demo")]
    demo = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell has what it runs in the background ignore it
    )  # fmt: skip
    assert demo.stdout
    assert any(line.startswith(begun) for line in demo.stdout)
    os.killpg(demo.pid, signal.SIGINT)  # as a terminal does
    said, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, said
    assert "Traceback" not in said

"""What the launcher knows of the processes of its roles."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from htrain.executor.host.process import this_process
from htrain.executor.launch.crew import ProcessCrew
from htrain.executor.settings import RunSettings
from htrain.executor.transport.link import Launcher

ROLES = ["trainer:0:0", "trainer:1:0", "sparse_ps:0"]


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ProcessCrew:
    """A crew whose nursery says in one go that three roles have begun and one of them has ended, in bytes that are cut within a line."""
    events = [{"role": role, "pid": 100 + n} for n, role in enumerate(ROLES)] + [{"role": "trainer:1:0", "status": -9}]
    text = "".join(json.dumps(event) + "\n" for event in events)
    script = (
        "import sys, time\nsys.stdin.readline()\n"
        f"for part in {[text[:-12], text[-12:]]!r}:\n    sys.stdout.write(part); sys.stdout.flush(); time.sleep(0.3)\n"
        "sys.stdin.read()\n"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **how: popen([sys.executable, "-c", script], **how))
    return ProcessCrew(
        ROLES, RunSettings(tmp_path, "synthetic:", tmp_path), Launcher("tcp://nowhere", this_process()), 1
    )


def test_all_that_was_said_at_once_is_heard_at_once(crew: ProcessCrew) -> None:
    try:
        deadline = time.monotonic() + 30
        while not crew.pids and time.monotonic() < deadline:
            crew.lives("nobody")
            time.sleep(0.01)
        assert crew.pids == {role: 100 + n for n, role in enumerate(ROLES)}
        assert crew.lives("sparse_ps:0")
        while not (lost := crew.lost()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lost == "trainer:1:0 (process 101) was killed by signal 9"
        assert not crew.lives("trainer:1:0")
    finally:
        crew.end()

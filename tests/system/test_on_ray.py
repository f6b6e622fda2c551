"""A run whose roles are tasks of Ray, in a cluster of this machine. Skipped where Ray is not installed."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Launched
from ledger import DATA, counted, ledger_plan, owed

import htrain
from htrain.errors import UsageError
from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine

GIB = 1 << 30
COUNTS = {"groups": 2, "trainers": 1, "group_ps": 0, "sparse_ps": 1, "dense_ps": 1}
ASKED = {"host_cores": 1, "trainer_memory": GIB, "sparse_ps_memory": GIB, "dense_ps_memory": GIB}


def test_without_ray_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "htrain.executor.launch.on_ray", None)
    with pytest.raises(
        UsageError, match=r"^--on ray wants Ray, which is not installed here: pip install 'htrain\[ray\]'"
    ):
        htrain.run(tmp_path, data=DATA, out=tmp_path / "run", hosting="ray")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    pytest.importorskip("ray", reason="no Ray here: pip install ray")
    ledger_plan(this_machine(**COUNTS, **ASKED)).save(tmp_path / "plan")
    made = Launched(tmp_path, "--on", "ray")
    yield made
    made.process.kill()
    made.process.wait()


def test_a_task_that_is_killed_is_begun_again_by_ray_and_every_example_is_trained_once(
    launched: Launched, tmp_path: Path
) -> None:
    (pid,) = launched.wait_for(r"trainer:1:0: process (\d+) on")
    checkpoints = len(launched.wait_for(r"(?m)^checkpoint "))
    os.kill(int(pid), signal.SIGKILL)
    launched.wait_for("trainer:1:0: process", 2)
    launched.wait_for(r"(?m)^checkpoint ", checkpoints + 2)
    launched.process.send_signal(signal.SIGINT)
    assert launched.process.wait(60) == 130, launched.log.read_text()
    said = launched.log.read_text()
    assert "Traceback" not in said
    assert "Ray starts them where it has room (trainer:0:0 0.25 cores and 1.0 GiB, " in said
    assert "the run goes on" in said
    assert find_checkpoints(launched.run).complete
    assert (counted(tmp_path / "plan", launched.run) == owed(launched.run)).all()

"""HET-GMP's workers as processes: a process for a trainer and the sparse PS beside it, stopped and resumed, killed, and as MPI ranks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gmp_data import BATCH, FieldNet, Parts, drawn, examples_of, parts_of
from whole_runs import ENDLESS, HTRAIN, start, start_held, wait_for_examples, wait_until_held

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
STEPS = 100


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Parts]:
    """A plan of two workers, and its data."""
    folder = tmp_path_factory.mktemp("gmp")
    parts = parts_of(folder / "data", 2, count=2 * BATCH * STEPS)
    options = with_flags(
        batch_size=BATCH, dense_sync="allreduce", sparse_sync="gmp", partition=str(parts.partition), gmp_staleness=3
    )
    inputs = {
        name: value for name, value in examples_of(parts.source).items() if name in ("sparse", "seen", "seen_length")
    }
    cluster = this_machine(groups=2, trainers=1, group_ps=0)
    htrain.compile(drawn(FieldNet), example_inputs=inputs, cluster=cluster, options=options).save(folder / "plan")
    return folder / "plan", parts


def processes_of(run: Path) -> dict[str, int]:
    """The process of each role."""
    return {role: int(place["pid"]) for role, place in json.loads((run / "roles.json").read_text()).items()}


def test_a_worker_is_one_process_which_is_named_when_it_is_killed_and_the_run_goes_on(
    planned: tuple[Path, Parts], tmp_path: Path
) -> None:
    plan, parts = planned
    run = tmp_path / "run"
    process = start(plan, parts.packed, "--out", str(run), "--checkpoint-seconds", "1", *ENDLESS)
    wait_for_examples(run, process, 1)
    found = processes_of(run)
    assert found["trainer:0:0"] == found["sparse_ps:0"] != found["trainer:1:0"] == found["sparse_ps:1"]
    os.kill(found["trainer:1:0"], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"(process {found['trainer:1:0']}) was killed by signal 9" in errors
    assert "Traceback" not in errors


def test_a_run_that_was_stopped_goes_on_to_where_an_undisturbed_one_comes(
    planned: tuple[Path, Parts], tmp_path: Path
) -> None:
    plan, parts = planned
    run = tmp_path / "run"
    process = start_held("30", plan, parts.packed, out=run)
    wait_until_held(run, process, "30", trainers=2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    result = htrain.run(plan, data=parts.packed, resume=run)
    assert result.totals.examples == 2 * BATCH * STEPS
    assert htrain.evaluate(run, data=parts.source).log_loss < 0.66


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec")
def test_a_worker_is_one_rank(planned: tuple[Path, Parts], tmp_path: Path) -> None:
    plan, parts = planned
    command = [
        MPIEXEC or "",
        "-n",
        "3",
        HTRAIN,
        "run",
        str(plan),
        "--data",
        parts.packed,
        "--out",
        str(tmp_path / "run"),
        "--json",
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["examples"] == 2 * BATCH * STEPS
    command[2] = "5"
    command[-2] = str(tmp_path / "other")
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode != 0
    assert "mpiexec started 5 ranks; this plan wants 3: one per worker and one for the launcher" in found.stderr

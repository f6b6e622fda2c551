"""HET-GMP's workers as processes: a process for a trainer and the sparse PS beside it, stopped and resumed, killed, and as MPI ranks."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from gmp_data import BATCH, FieldNet, Parts, drawn, examples_of, parts_of
from whole_runs import (
    ENDLESS,
    HTRAIN,
    parameters,
    start,
    start_held,
    train,
    wait_for_examples,
    wait_until_all_train,
    wait_until_held,
)

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
STEPS = 100


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Data of two workers."""
    return parts_of(tmp_path_factory.mktemp("gmp") / "data", 2, count=2 * BATCH * STEPS)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, parts: Parts) -> tuple[Path, Parts]:
    """A plan of two workers, and its data."""
    return plan_of(tmp_path_factory.mktemp("plan"), parts, staleness=3), parts


def plan_of(folder: Path, parts: Parts, staleness: int) -> Path:
    options = with_flags(
        batch_size=BATCH,
        dense_sync="allreduce",
        sparse_sync="gmp",
        partition=str(parts.partition),
        gmp_staleness=staleness,
    )
    inputs = {
        name: value for name, value in examples_of(parts.source).items() if name in ("sparse", "seen", "seen_length")
    }
    cluster = this_machine(groups=2, trainers=1, group_ps=0)
    htrain.compile(drawn(FieldNet), example_inputs=inputs, cluster=cluster, options=options).save(folder / "plan")
    return folder / "plan"


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


def test_a_late_worker_is_waited_for_and_nothing_is_applied_twice(parts: Parts, tmp_path: Path) -> None:
    """Without staleness a run is that of the joint batches, however late a worker is."""
    plan, epochs = plan_of(tmp_path, parts, staleness=0), 8
    htrain.run(plan, data=parts.packed, out=tmp_path / "undisturbed", epochs=epochs, hosting="threads")
    run = tmp_path / "run"
    process = start(plan, parts.packed, "--out", str(run), "--epochs", str(epochs))
    wait_for_examples(run, process, 1)
    late = processes_of(run)["trainer:1:0"]
    os.kill(late, signal.SIGSTOP)
    time.sleep(3)
    assert process.poll() is None
    os.kill(late, signal.SIGCONT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    wanted, found = parameters(tmp_path / "undisturbed"), parameters(run)
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)


def test_a_worker_that_stays_away_is_named(planned: tuple[Path, Parts], tmp_path: Path) -> None:
    plan, parts = planned
    process = start(plan, parts.packed, "--out", str(tmp_path / "run"), "--liveness-seconds", "4", *ENDLESS)
    wait_until_all_train(tmp_path / "run", process, "trainer:0:0", "trainer:1:0")
    os.kill(processes_of(tmp_path / "run")["trainer:1:0"], signal.SIGSTOP)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    last = errors.splitlines()[-1]
    assert re.match(r"htrain: (trainer:1:0|sparse_ps:1) has been silent for 4 s, though its process lives", last), (
        errors
    )
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
    assert train(plan, parts.packed, "--resume", str(run))["examples"] == 2 * BATCH * STEPS
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
    command[2] = "4"
    command[-2] = str(tmp_path / "other")
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode != 0
    assert "mpiexec started 4 ranks; this plan wants 3: one per worker and one for the launcher" in found.stderr

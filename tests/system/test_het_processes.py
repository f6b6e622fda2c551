"""HET's workers as processes: stopped and resumed, killed, and as MPI ranks."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from whole_runs import (
    ENDLESS,
    HTRAIN,
    WIDE_DEEP,
    kill,
    libfm,
    parameters,
    start,
    start_held,
    train,
    wait_for_examples,
    wait_until_held,
)

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

ROWS, FEW_ROWS = 20_000, 6_000
STEPS = ROWS // 64
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def plan_of(folder: Path, staleness: int, rows: int) -> tuple[Path, str]:
    """Two workers and two sparse PSs."""
    data = libfm(folder / "train.libfm", rows)
    options = with_flags(
        batch_size=32, dense_sync="allreduce", cache="het", cache_staleness=staleness, cache_capacity="50%"
    )
    cluster = this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=2)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=options).save(folder / "plan")
    return folder / "plan", data


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return plan_of(tmp_path_factory.mktemp("stale"), 100, ROWS)


@pytest.fixture(scope="module")
def in_step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return plan_of(tmp_path_factory.mktemp("in_step"), 0, FEW_ROWS)


@pytest.fixture(scope="module")
def whole(in_step: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(*in_step, "--out", str(folder))
    return folder


def assert_close(left: Path, right: Path) -> None:
    """All that two runs have trained, but for the order in which sums were taken."""
    one, other = parameters(left), parameters(right)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], rtol=1e-2, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_workers_that_are_stopped_and_resumed_train_as_if_they_had_not_been(
    in_step: tuple[Path, str], whole: Path, tmp_path: Path
) -> None:
    plan, data = in_step
    steps = str(FEW_ROWS // 64 // 2)
    process = start_held(steps, plan, data, out=tmp_path / "cut")
    wait_until_held(tmp_path / "cut", process, steps, trainers=2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    done = int(max((tmp_path / "cut" / "checkpoints").iterdir()).name.removeprefix("examples_"))
    assert 0 < done < FEW_ROWS
    assert train(plan, data, "--resume", str(tmp_path / "cut"))["examples"] == FEW_ROWS
    assert_close(whole, tmp_path / "cut")


def test_checkpoints_on_the_way_empty_the_caches_and_training_goes_on(stale: tuple[Path, str], tmp_path: Path) -> None:
    plan, data = stale
    process = start_held(
        f"{STEPS // 4},{STEPS // 2}", plan, data, "--checkpoint-seconds", "0.5", "--json", out=tmp_path / "run"
    )
    said, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    result = json.loads(said)
    assert result["examples"] == ROWS
    assert result["caches"]["hit_rate"] > 0.5
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("victim", ["trainer:1:0", "sparse_ps:1"])
def test_a_killed_worker_or_server_ends_the_run_and_is_named(
    stale: tuple[Path, str], tmp_path: Path, victim: str
) -> None:
    plan, data = stale
    process = start(plan, data, "--out", str(tmp_path / "run"), *ENDLESS)
    wait_for_examples(tmp_path / "run", process, 1)
    kill(victim, tmp_path / "run", process)


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here: pip install mpich mpi4py")
def test_workers_as_mpi_ranks_train_what_local_ones_train(
    in_step: tuple[Path, str], whole: Path, tmp_path: Path
) -> None:
    plan, data = in_step
    command = [str(MPIEXEC), "-n", "5", HTRAIN, "run", str(plan), "--data", data, "--out", str(tmp_path / "mpi")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    assert_close(whole, tmp_path / "mpi")

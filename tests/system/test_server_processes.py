"""A sparse PS of several processes over the same tables: all updates land in them, whoever dies is named, and runs go on under another number."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from forked import Started
from small_wide_deep import DATA, small_plan
from whole_runs import HTRAIN, kill, parameters, start, train, wait_for_a_checkpoint

from htrain.plan.plan import Plan
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

LONG = "synthetic:?rows=200000&table_rows=40&communities=4"
SLOW = with_flags(
    batch_size=16, dense_optimizer="sgd", dense_lr=1e-9, sparse_optimizer="sgd", sparse_lr=0.01, fc_dtype="float32", fc_gradient_dtype="float32"
)  # fmt: skip


def plan_of(folder: Path, processes: int, options: Options = SLOW) -> Plan:
    """Two trainers, a group PS and a sparse PS: with three processes, each has a net replica or two."""
    counts = {"trainers": 2, "group_ps": 1, "sparse_ps": 1, "sparse_ps_processes": processes}
    _, plan = small_plan(options, **counts)
    plan.save(folder)
    return plan


def tables(run: Path) -> dict[str, torch.Tensor]:
    """What sparse PSs have saved. With SGD they have no state."""
    return {key: value for key, value in parameters(run).items() if key.startswith("sparse_ps")}


def first_tables(folder: Path) -> dict[str, torch.Tensor]:
    """The tables before any step: those of a run of one that moves nothing."""
    data = "synthetic:?rows=16&table_rows=40&communities=4"
    plan_of(folder / "still", 1, with_flags(SLOW, sparse_lr=1e-12))
    train(folder / "still", data, "--out", str(folder / "first"))
    return tables(folder / "first")


@pytest.mark.parametrize("store", ["memory", "mapped"])
def test_all_processes_train_the_same_tables_and_count_as_their_role(tmp_path: Path, store: str) -> None:
    """With weights that hardly move, steps add up in any order: tables end where those of one process do, which no update misses."""
    runs = []
    for n in (1, 3):
        plan_of(tmp_path / str(n), n, with_flags(SLOW, table_store=store))
        runs.append(train(tmp_path / str(n), DATA, "--out", str(tmp_path / f"run{n}")))
    first, wanted, found = first_tables(tmp_path), tables(tmp_path / "run1"), tables(tmp_path / "run3")
    assert wanted.keys() == found.keys() == first.keys()
    moved = torch.cat([(wanted[name] - first[name]).flatten() for name in wanted])
    other = torch.cat([(found[name] - first[name]).flatten() for name in wanted])
    assert moved.abs().max() > 1e-4
    assert float((moved - other).norm() / moved.norm()) < 0.02
    one, three = (
        {(edge["source"], edge["target"]): edge["measured_bytes"] for edge in run["measured"]["edges"]} for run in runs
    )
    assert one.keys() == three.keys()
    for edge, num_bytes in one.items():
        assert three[edge] == pytest.approx(num_bytes, rel=0.2), edge


def family(process: Started) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Started]:
    """A long run of such a plan, which has a checkpoint."""
    plan_of(tmp_path / "plan", 3)
    process = start(
        tmp_path / "plan", LONG, "--out", str(tmp_path / "run"), "--checkpoint-seconds", "0.5", "--epochs", "50"
    )
    wait_for_a_checkpoint(tmp_path / "run", process)
    yield process
    for each in [*family(process), psutil.Process(process.pid)] if process.poll() is None else ():
        each.kill()
    process.communicate()


def test_a_process_that_dies_is_named_and_the_run_goes_on_under_another_number(
    running: Started, tmp_path: Path
) -> None:
    role = psutil.Process(pid_of("sparse_ps:0", tmp_path / "run"))
    others = family(running)
    victim = sorted(role.children(), key=lambda child: child.create_time())[1]  # any later one writes a checkpoint
    os.kill(victim.pid, signal.SIGKILL)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 1, said
    last = said.splitlines()[-1]
    assert last.startswith(f"htrain: sparse_ps:0/process2 (process {victim.pid}) was killed by signal 9"), said
    assert "Traceback" not in said
    assert not psutil.wait_procs(others, timeout=10)[1]
    plan_of(tmp_path / "two", 2)
    before = set((tmp_path / "run" / "checkpoints").iterdir())
    again = start(
        tmp_path / "two", LONG, "--resume", str(tmp_path / "run"), "--epochs", "50", "--checkpoint-seconds", "0.5"
    )
    deadline = time.monotonic() + 60
    while (
        time.monotonic() < deadline
        and again.poll() is None
        and set((tmp_path / "run" / "checkpoints").iterdir()) <= before
    ):
        time.sleep(0.05)
    again.send_signal(signal.SIGINT)
    _, said = again.communicate(timeout=60)
    assert again.returncode == 130, said


def test_the_death_of_the_role_takes_its_processes_along(running: Started, tmp_path: Path) -> None:
    children = psutil.Process(pid_of("sparse_ps:0", tmp_path / "run")).children()
    assert len(children) in (2, 3)  # a third for a moment, which writes a checkpoint
    kill("sparse_ps:0", tmp_path / "run", running)
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_an_interrupted_run_leaves_nobody_and_goes_on(running: Started, tmp_path: Path) -> None:
    others = family(running)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    assert not psutil.wait_procs(others, timeout=10)[1]


def pid_of(role: str, run: Path) -> int:

    return int(json.loads((run / "roles.json").read_text())[role]["pid"])


MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here: pip install mpich mpi4py")
def test_a_rank_has_its_processes_too(tmp_path: Path) -> None:
    assert MPIEXEC
    _, plan = small_plan(
        with_flags(SLOW, dense_sync="allreduce"), trainers=1, group_ps=0, sparse_ps=1, sparse_ps_processes=2
    )
    plan.save(tmp_path / "plan")
    ranks = str(len(plan.cluster.roles) + 1)
    command = [
        MPIEXEC,
        "-n",
        ranks,
        HTRAIN,
        "run",
        str(tmp_path / "plan"),
        "--data",
        DATA,
        "--out",
        str(tmp_path / "run"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "800 examples" in done.stdout

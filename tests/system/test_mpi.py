"""The same plan under mpiexec, a role per rank (docs/decisions/collectives.md)."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from joint import JOINT, joint_losses
from small_wide_deep import DATA, small_plan
from whole_runs import (
    ENDLESS,
    HTRAIN,
    ROOT,
    WIDE_DEEP,
    libfm,
    parameters,
    train,
    wait_for_a_checkpoint,
    wait_for_examples,
    wait_until_all_train,
)

import htrain
from htrain.errors import DataError, RunError, UsageError
from htrain.executor.record.kept import latest_checkpoint
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here: pip install mpich mpi4py")


def plan_of(folder: Path, data: str) -> Path:
    """Wide & Deep on a trainer, a group PS, a sparse PS and the dense PS."""
    return _compiled(folder, data, this_machine(group_ps=1, sparse_ps=1), Options(batch_size=16, net_replicas=1))


def small_plan_of(folder: Path, data: str) -> Path:
    """The same on a trainer and a sparse PS."""
    options = with_flags(batch_size=16, net_replicas=1, dense_sync="allreduce")
    return _compiled(folder, data, this_machine(group_ps=0, sparse_ps=1), options)


def _compiled(folder: Path, data: str, cluster: Cluster, options: Options) -> Path:
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=options).save(folder / "plan")
    return folder / "plan"


STARTED: list[subprocess.Popen[str]] = []


def start(ranks: int, plan: Path, data: str, *arguments: str) -> subprocess.Popen[str]:
    assert MPIEXEC
    command = [MPIEXEC, "-n", str(ranks), HTRAIN, "run", str(plan), "--data", data, *arguments]
    STARTED.append(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    )
    return STARTED[-1]


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test that failed has left running goes. However a run ends, no folder of sockets stays."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="mpi-") as short:
        monkeypatch.setenv("TMPDIR", short)
        yield
        end_all()
        assert not list(Path(short).glob("htrain-*"))


def end_all() -> None:
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()
            process.communicate()


def test_a_run_over_mpi_trains_what_a_local_run_trains(tmp_path: Path) -> None:
    data = libfm(tmp_path / "a.libfm", 800)
    plan = plan_of(tmp_path, data)
    process = start(5, plan, data, "--out", str(tmp_path / "mpi"), "--deterministic")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    train(plan, data, "--out", str(tmp_path / "local"), "--deterministic")
    over_mpi, local = parameters(tmp_path / "mpi"), parameters(tmp_path / "local")
    assert over_mpi.keys() == local.keys()
    assert all(torch.equal(over_mpi[name], local[name]) for name in local)


def test_trainers_over_mpi_average_their_caches_to_the_joint_batch(tmp_path: Path) -> None:
    """Gradients, windows and averages, each by a communicator of its own."""
    options = with_flags(JOINT, cache_window=4, cache_sets=3, cache_ways=4)
    model, plan = small_plan(options, groups=2, trainers=1, sparse_ps=1)
    plan.save(tmp_path / "plan")
    networks = ("--network", "127.0.0.0/8", "--trainer-network", "127.0.0.1/32")
    process = start(4, tmp_path / "plan", DATA, "--out", str(tmp_path / "run"), *networks)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    found = {name.split()[-1]: tensor for name, tensor in parameters(tmp_path / "run").items()}
    for name, wanted in joint_losses(model, DATA, options, 2)[1].named_parameters():
        torch.testing.assert_close(found[name], wanted, rtol=1e-3, atol=1e-5)


def test_a_run_over_mpi_is_validated_and_ends_early_with_status_0(tmp_path: Path) -> None:
    data = libfm(tmp_path / "a.libfm", 400)
    lines = (tmp_path / "a.libfm").read_text().splitlines()
    turned = (f"{-int(label)} {rest}" for label, _, rest in (line.partition(" ") for line in lines))
    (tmp_path / "worse.libfm").write_text("\n".join(turned) + "\n")
    plan, worse = small_plan_of(tmp_path, data), data.replace("a.libfm", "worse.libfm")
    wanted = ("--valid", worse, "--valid-every", "400", "--early-stop", "1", *ENDLESS)
    process = start(3, plan, data, "--out", str(tmp_path / "run"), *wanted)
    said, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert "; ended early: a validation without a better log loss than " in said.splitlines()[-1]
    assert (tmp_path / "run" / "validations.jsonl").read_text().count("\n") in (2, 3)


def test_a_network_that_a_host_is_not_in_is_refused_in_one_line_by_all(tmp_path: Path) -> None:
    data = libfm(tmp_path / "a.libfm", 80)
    plan = small_plan_of(tmp_path, data)
    process = start(3, plan, data, "--out", str(tmp_path / "run"), "--trainer-network", "203.0.113.0/24")
    _, said = process.communicate(timeout=120)
    assert process.returncode == RunError.exit_status
    assert said.startswith("htrain: --trainer-network 203.0.113.0/24: ")
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_rank_whose_data_is_other_data_is_named_before_anything_is_trained(tmp_path: Path) -> None:
    """As on hosts that have a copy each. A relative path means another file in another working directory, which stands for such a host."""
    assert MPIEXEC
    (tmp_path / "other").mkdir()
    plan = small_plan_of(tmp_path, libfm(tmp_path / "a.libfm", 80))
    lines = (tmp_path / "a.libfm").read_text().splitlines(keepends=True)
    (tmp_path / "other" / "a.libfm").write_text("".join(reversed(lines)))
    rank = [HTRAIN, "run", str(plan), "--data", "libfm:a.libfm?rows=50", "--out", str(tmp_path / "run")]
    words = [MPIEXEC, *("-n", "1", *rank, ":"), *("-n", "1", "env", "-C", "other", *rank, ":"), *("-n", "1", *rank)]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}  # whatever the working directory is
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, env=here)
    STARTED.append(process)
    _, said = process.communicate(timeout=120)
    assert process.returncode == DataError.exit_status
    assert re.fullmatch(
        r"htrain: trainer:0:0 \(process \d+ on .*\): libfm:a\.libfm\?rows=50: is other data here than at the launcher: "
        r"'a\.libfm' has [\d,]+ bytes as before, but others\n",
        said,
    )
    assert not list((tmp_path / "run").glob("checkpoints/*"))
    assert not list((tmp_path / "run").glob("probe-*"))


def test_what_all_ranks_were_told_wrong_is_said_once(tmp_path: Path) -> None:
    process = start(3, tmp_path, "libfm:none", "--out", str(tmp_path / "run"), "--network", "eth0")
    _, said = process.communicate(timeout=120)
    assert process.returncode == UsageError.exit_status
    assert said.startswith("htrain: --network eth0: want a network of IPv4")
    assert said.count("\n") == 1


def test_too_few_ranks_are_refused_in_one_line(tmp_path: Path) -> None:
    data = libfm(tmp_path / "a.libfm", 80)
    process = start(2, plan_of(tmp_path, data), data, "--out", str(tmp_path / "run"))
    _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said.strip() == "htrain: mpiexec started 2 ranks; this plan wants 5: one per role and one for the launcher"
    assert not (tmp_path / "run").exists()


def data_of(folder: Path) -> str:
    return libfm(folder / "a.libfm", 20_000)


def start_long(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    """A run that does not end by itself, once it has a checkpoint."""
    data = data_of(tmp_path)
    arguments = ("--out", str(tmp_path / "run"), *ENDLESS, "--checkpoint-seconds", "0.5", *more)
    process = start(3, small_plan_of(tmp_path, data), data, *arguments)
    wait_for_a_checkpoint(tmp_path / "run", process)
    return process


def ours(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks of a run and their roles, two processes each; a role may have one more for a moment, which writes a checkpoint."""
    started = {p.pid: p for p in psutil.Process(process.pid).children(recursive=True)}
    ranks = [p for p in started.values() if is_htrain(p) and not is_htrain(started.get(p.ppid()))]
    found = [*ranks, *(role for rank in ranks for role in rank.children())]
    assert len(found) == 6
    return found


def is_htrain(process: psutil.Process | None) -> bool:
    try:
        return process is not None and HTRAIN in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def none_left(processes: list[psutil.Process]) -> bool:
    psutil.wait_procs(processes, timeout=15)
    return not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("which", ["role", "rank"])
def test_a_killed_rank_ends_the_run_and_is_named(which: str, tmp_path: Path) -> None:
    process = start_long(tmp_path)
    ranks = ours(process)
    pid = json.loads((tmp_path / "run" / "roles.json").read_text())["sparse_ps:0"]["pid"]
    os.kill(pid if which == "role" else psutil.Process(pid).ppid(), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    named = {
        "role": f"htrain: sparse_ps:0 (process {pid}) was killed by signal 9; go on with --resume {tmp_path / 'run'}",
        "rank": f"htrain: sparse_ps:0 (process {pid}) ends: mpiexec's process that waits for it was killed",
    }
    assert named[which] in said.splitlines(), said
    assert none_left(ranks)


def test_a_role_that_falls_silent_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    process = start_long(tmp_path, "--liveness-seconds", "4", "--deadline-seconds", "60")
    wait_until_all_train(tmp_path / "run", process, "trainer:0:0")
    ranks = ours(process)
    os.kill(json.loads((tmp_path / "run" / "roles.json").read_text())["trainer:0:0"]["pid"], signal.SIGSTOP)
    _, said = process.communicate(timeout=90)
    assert process.returncode != 0
    assert [
        line
        for line in said.splitlines()
        if line.startswith("htrain: trainer:0:0 has been silent for 4 s (its last step: ")
    ], said
    assert none_left(ranks)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_mpiexec_writes_a_checkpoint_and_the_run_goes_on_from_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    process = start_long(tmp_path)
    ranks = ours(process)
    before = latest_checkpoint(tmp_path / "run")[1].examples
    wait_for_examples(tmp_path / "run", process, before + 1)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert [line for line in said.splitlines() if line.startswith("htrain: stopped after")], said
    assert none_left(ranks)
    stopped = latest_checkpoint(tmp_path / "run")[1].examples
    assert stopped >= before + 1
    if number == signal.SIGINT:
        again = ("--resume", str(tmp_path / "run"), "--epochs", "1")
        resumed = start(3, tmp_path / "plan", data_of(tmp_path), *again)
        _, said = resumed.communicate(timeout=120)
        assert resumed.returncode == 0, said
    else:  # where there is no MPI
        htrain.run(tmp_path / "plan", data=data_of(tmp_path), resume=tmp_path / "run", hosting="threads")
    assert latest_checkpoint(tmp_path / "run")[1].examples == max(20_000, stopped)

"""Roles on hosts of their own, which share a run folder and data and nothing else: namespaces with Debian's hosts file. Skipped without root."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from netlab import ETC, Lab
from whole_runs import HTRAIN, WIDE_DEEP, libfm

import htrain
from htrain.executor.record.measured import load_measured
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

CAN = (
    os.geteuid() == 0
    and all(shutil.which(tool) for tool in ("ip", "tc", "unshare", "mount"))
    and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
)
pytestmark = pytest.mark.skipif(not CAN, reason="wants root, ip, tc and namespaces")
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
ROLES = ("trainer:0:0", "trainer:1:0", "sparse_ps:0", "sparse_ps:1")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(5, rate="1gbit") as made:
        for host in made.hosts:
            (ETC / host / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
        yield made


def on(host: str, hidden: Path, words: list[str]) -> subprocess.Popen[str]:
    """A command on a host, which bears its name, and does not see what lies in a folder that is hidden from it."""
    script = f'hostname {host} && mount -t tmpfs none "{hidden}" && exec "$@"'
    inside = ["ip", "netns", "exec", host, "unshare", "--uts", "--mount", "sh", "-c", script, "sh", *words]
    return subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()
        process.communicate()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A plan of two trainers that step together, and two sparse PSs; and its data."""
    folder = tmp_path_factory.mktemp("hosts")
    for name in ("launcher", "nothing", "data"):
        (folder / name).mkdir()
    data = libfm(folder / "data" / "a.libfm", 320)
    options = with_flags(batch_size=16, net_replicas=1, dense_sync="allreduce")
    cluster = this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=2)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=options).save(folder / "launcher" / "plan")
    return folder / "launcher" / "plan", data


def test_hosts_that_share_no_plan_and_whose_names_are_loopbacks_train_together(
    lab: Lab, made: tuple[Path, str], tmp_path: Path
) -> None:
    plan, data = made
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    where = ["--out", str(tmp_path / "run"), "--listen", "eth0:7070", "--secret", str(secret), "--retries", "0"]
    launcher, *others = lab.hosts
    started = [on(launcher, plan.parents[1] / "nothing", [HTRAIN, "run", str(plan), "--data", data, *where])]
    for host, role in zip(others, ROLES, strict=True):
        words = [HTRAIN, "role", role, "--launcher", "10.77.0.1:7070", "--secret", str(secret)]
        started.append(on(host, plan.parent, words))
    try:
        for process in started:
            _, said = process.communicate(timeout=90)
            assert process.returncode == 0, said
            assert "Traceback" not in said
    finally:
        end(started)
    assert load_measured(tmp_path / "run").eps > 0
    assert all(carried.received > 20_000 for carried in lab.traffic().values()), "values went over the links"


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here: pip install mpich mpi4py")
def test_mpiexec_starts_the_same_plan_on_the_same_hosts(lab: Lab, made: tuple[Path, str], tmp_path: Path) -> None:
    plan, data = made
    run = [HTRAIN, "run", str(plan), "--data", data, "--out", str(tmp_path / "run"), "--network", "10.77.0.0/16"]
    process = subprocess.Popen(lab.ranks(run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate(timeout=90)
        assert process.returncode == 0, said
    finally:
        end([process])
    assert load_measured(tmp_path / "run").eps > 0

"""Roles on hosts of their own, which share a run folder and data and nothing else: namespaces with Debian's hosts file. Skipped without root."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from netlab import ETC, Lab
from whole_runs import ENDLESS, HTRAIN, WIDE_DEEP, libfm, num_trained, wait_for_examples

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
GCS = "10.77.0.1:6379"  # where nodes of Ray find their head
DOWN_SECONDS = 20.0  # for longer than 15 s the silence of a launcher was not borne, whatever it bore itself
MEMORY = 400 << 20  # bytes of a role
ROLES = ("trainer:0:0", "trainer:1:0", "sparse_ps:0", "sparse_ps:1")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(5, rate="1gbit") as made:
        for host in made.hosts:
            (ETC / host / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
        yield made


def on(host: str, hidden: Path, words: list[str], *more: Path) -> subprocess.Popen[str]:
    """A command on a host, which bears its name, and does not see what lies in folders that are hidden from it."""
    hide = " && ".join(f'mount -t tmpfs none "{folder}"' for folder in (hidden, *more))
    script = f'hostname {host} && {hide} && exec "$@"'
    inside = ["ip", "netns", "exec", host, "unshare", "--uts", "--mount", "sh", "-c", script, "sh", *words]
    return subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Nodes:
    """A cluster of Ray with a node of one core on each host of a lab; the first is its head."""

    def __init__(self, lab: Lab, plan: Path, temporary: Path) -> None:
        self._plan, self._head, self._temporary = plan, lab.hosts[0], temporary
        self.started: list[subprocess.Popen[str]] = []
        for number, host in enumerate(lab.hosts, 1):
            where = ["--address", GCS] if number > 1 else ["--head", "--port", "6379", "--include-dashboard", "false"]
            where += ["--node-ip-address", f"10.77.0.{number}", "--num-cpus", "1", "--object-store-memory", "80000000"]
            where += ["--temp-dir", str(temporary)] if number == 1 else []
            self.started.append(self.on(host, ["start", "--block", "--disable-usage-stats", *where]))
            if number == 1:
                self._wait()

    def on(self, host: str, words: list[str]) -> subprocess.Popen[str]:
        said = [sys.executable, "-m", "ray.scripts.scripts", *words]
        if host == self._head:
            return on(host, self._plan.parents[1] / "nothing", said)
        return on(host, self._plan.parent, said, self._temporary)  # whose sockets would be taken for one's own

    def _wait(self) -> None:
        deadline = time.monotonic() + 120
        while True:
            asked = self.on(self._head, ["status", "--address", GCS])
            _, said = asked.communicate(timeout=120)
            if asked.returncode == 0:
                return
            assert time.monotonic() < deadline, said
            assert self.started[0].poll() is None, said


@pytest.fixture
def nodes(lab: Lab, made: tuple[Path, str]) -> Iterator[Nodes]:
    pytest.importorskip("ray", reason="no Ray here: pip install ray")
    folder = tempfile.mkdtemp(dir="/tmp")  # Ray's sockets lie in it, whose paths must be short
    begun = Nodes(lab, made[0], Path(folder))
    yield begun
    end(begun.started)
    shutil.rmtree(folder, ignore_errors=True)


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
    cluster = this_machine(
        groups=2, trainers=1, group_ps=0, sparse_ps=2, host_cores=4, trainer_memory=MEMORY, sparse_ps_memory=MEMORY
    )
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


def test_a_link_that_is_down_for_a_while_costs_time_only(lab: Lab, made: tuple[Path, str], tmp_path: Path) -> None:
    plan, data = made
    run, (launcher, *others) = tmp_path / "run", lab.hosts
    (secret := tmp_path / "secret").write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    where = ["--out", str(run), "--listen", "eth0:7070", "--secret", str(secret), "--retries", "0", *ENDLESS]
    started = [on(launcher, plan.parents[1] / "nothing", [HTRAIN, "run", str(plan), "--data", data, *where])]
    for host, role in zip(others, ROLES, strict=True):
        words = [HTRAIN, "role", role, "--launcher", "10.77.0.1:7070", "--secret", str(secret)]
        started.append(on(host, plan.parent, words))
    try:
        wait_for_examples(run, started[0], 3_000)
        lab.set_link(4, up=False)  # of sparse_ps:1
        time.sleep(DOWN_SECONDS)
        lab.set_link(4, up=True)
        wait_for_examples(run, started[0], num_trained(run) + 3_000)
        started[0].send_signal(signal.SIGINT)
        said = [process.communicate(timeout=90)[1] for process in started]
        assert [process.returncode for process in started] == [130] * 5, said
        assert not [text for text in said if "is gone" in text or "has left" in text], said
    finally:
        end(started)


def test_ray_starts_the_same_plan_on_the_same_hosts(
    nodes: Nodes, lab: Lab, made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, data = made
    monkeypatch.setenv("RAY_ADDRESS", GCS)
    words = [HTRAIN, "run", str(plan), "--data", data, "--out", str(tmp_path / "run"), "--on", "ray"]
    process = on(lab.hosts[0], plan.parents[1] / "nothing", [*words, "--network", "10.77.0.0/16"])
    try:
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said
        assert "Traceback" not in said
    finally:
        end([process])
    assert load_measured(tmp_path / "run").eps > 0
    assert set(re.findall(r"(\S+): process \d+ on", said)) == set(ROLES)
    assert len(set(re.findall(r"process \d+ on (\S+)", said))) > 1


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

"""A plan on hosts in namespaces: values cross the links, and a lab that is ended leaves nothing behind. Skipped without root."""

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
from netlab import Lab, clean_dead_labs
from whole_runs import ENDLESS, ROOT, WIDE_DEEP, libfm, parameters, wait_for_examples

import htrain
from htrain.errors import RunError, UsageError
from htrain.executor.record.measured import load_measured
from htrain.net.names import device_of
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

NETLAB = ROOT / "tools" / "netlab.py"
CAN = (
    os.geteuid() == 0
    and all(shutil.which(tool) for tool in ("ip", "tc", "unshare"))
    and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
)
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
PROBE = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
NETEM = CAN and subprocess.run(PROBE, capture_output=True).returncode == 0
REFUSED = (
    "import socket, sys, time; began = time.monotonic(); "
    "assert socket.socket().connect_ex((sys.argv[1], 7000)); print(time.monotonic() - began)"
)
RECEIVE = (
    "import socket, time; s=socket.create_server(('0.0.0.0', 7000)); c,_=s.accept(); began=time.monotonic()\n"
    "while c.recv(1<<16): pass\nprint(time.monotonic() - began)"
)
SEND = "import socket; c=socket.create_connection(('{}', 7000)); c.sendall(bytes({})); c.shutdown(1); c.recv(1)"
namespaces_here = pytest.mark.skipif(not CAN, reason="wants root, ip, tc and namespaces")
mpi_here = pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here: pip install mpich mpi4py")


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout


def start(host: str, code: str) -> subprocess.Popen:
    return subprocess.Popen(["ip", "netns", "exec", host, sys.executable, "-c", code], stdout=subprocess.PIPE)


def dead_pid() -> int:
    """The id of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert not psutil.pid_exists(ended.pid)
    return ended.pid


def plan_of(folder: Path, **counts: int) -> Path:
    """Wide & Deep on a trainer and so many PSs."""
    cluster, options = this_machine(dense_ps=0, **counts), Options(batch_size=64, net_replicas=1)
    data = libfm(folder / "schema.libfm", 50)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=options).save(folder / "plan")
    return folder / "plan"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for two hosts: the launcher, and a trainer that needs no PS."""
    return plan_of(tmp_path_factory.mktemp("alone"), group_ps=0, sparse_ps=0)


@pytest.fixture
def leftover() -> Iterator[str]:
    """A namespace as a lab leaves it whose process was killed."""
    name = f"netlab{dead_pid()}x0h0"
    subprocess.run(["ip", "netns", "add", name], check=True)
    Path("/etc/netns", name).mkdir(parents=True)
    yield name
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)


@namespaces_here
@mpi_here
def test_every_role_has_a_host_and_its_values_cross_the_links(tmp_path: Path) -> None:
    plan, data = plan_of(tmp_path, group_ps=1, sparse_ps=1), libfm(tmp_path / "a.libfm", 4000)
    with Lab(4, rate="200mbit") as lab:
        found = lab.run_plan(plan, data, tmp_path / "run", epochs=2, timeout=100)
    told = json.loads((tmp_path / "run" / "roles.json").read_text())
    assert [carried.host for carried in found.roles.values()] == lab.hosts
    assert {role: place["host"] for role, place in told.items()} == dict(
        zip(list(found.roles)[1:], lab.hosts[1:], strict=True)
    )
    assert found.measured == load_measured(tmp_path / "run")
    assert found.measured.eps > 0
    for role in told:
        carried = found.roles[role]
        sent = sum(e.measured_bytes for e in found.measured.edges if e.source == device_of(role))
        received = sum(e.measured_bytes for e in found.measured.edges if e.target == device_of(role))
        assert carried.sent > 8000 * sent * 0.95, role
        assert carried.received > 8000 * received * 0.95, role
        assert carried.sent + carried.received < 1.5 * 8000 * (sent + received) + 1_000_000, role
    assert found.roles["trainer:0:0"].sent > 200_000


@namespaces_here
@mpi_here
def test_sums_of_trainers_cross_their_own_network_and_rows_the_other(tmp_path: Path) -> None:
    """What the two networks carry is what each was there for: gradients of the dense weights, keys and rows and their gradients."""
    data = libfm(tmp_path / "a.libfm", 4000)
    options = with_flags(batch_size=64, net_replicas=1, dense_sync="allreduce")
    cluster = this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=1)
    plan = htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=options)
    plan.save(tmp_path / "plan")
    with Lab(4, rate="400mbit", trainers_rate="1gbit") as lab:
        found = lab.run_plan(tmp_path / "plan", data, tmp_path / "run", timeout=100)
        beside = dict(zip(found.roles, lab.traffic("eth1").values(), strict=True))
    steps = 4000 // (2 * 64)
    saved = {name: value for name, value in parameters(tmp_path / "run").items() if "tables" not in name}
    dense = sum(value.nbytes for value in saved.values()) // 4  # two trainers have saved weights, and Adagrad's squares
    rows = sum(e.measured_bytes for e in found.measured.edges if e.source == "sparse_ps:0") * 4000
    for role in ("trainer:0:0", "trainer:1:0"):
        assert steps * dense < beside[role].sent < 1.3 * steps * dense + 100_000, role
    assert beside["sparse_ps:0"].sent < 10_000
    assert 0.95 * rows < found.roles["sparse_ps:0"].sent < 1.5 * rows + 500_000


@namespaces_here
@mpi_here
def test_a_lab_with_too_few_hosts_is_refused(tmp_path: Path, alone: Path) -> None:
    with Lab(1) as lab, pytest.raises(UsageError, match=r"the lab has 1 hosts; .* wants 2: one per role and one for"):
        lab.run_plan(alone, "libfm:none", tmp_path / "run")


@namespaces_here
@mpi_here
def test_what_htrain_says_of_a_failed_run_is_passed_on(tmp_path: Path, alone: Path) -> None:
    with Lab(2) as lab, pytest.raises(RunError, match=r"^htrain run: status 1: htrain: .*none.libfm"):
        lab.run_plan(alone, f"libfm:{tmp_path}/none.libfm", tmp_path / "run", timeout=60)


@namespaces_here
@mpi_here
def test_sigterm_ends_a_run_and_leaves_nothing_behind(tmp_path: Path, alone: Path) -> None:
    data = libfm(tmp_path / "a.libfm", 20_000)
    words = [sys.executable, str(NETLAB), "run", str(alone), "--data", data, "--out", str(tmp_path / "run")]
    process = subprocess.Popen([*words, *ENDLESS], stdout=-1, stderr=-1, text=True, start_new_session=True)
    wait_for_examples(tmp_path / "run", process, 100)
    inside = psutil.Process(process.pid).children(recursive=True)
    assert f"netlab{process.pid}x" in namespaces()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"netlab{process.pid}x" not in namespaces()
    assert not list(Path("/etc/netns").glob(f"netlab{process.pid}x*"))
    assert len(inside) >= 4  # mpiexec, its proxy, and two ranks
    psutil.wait_procs(inside, timeout=10)
    assert not [p for p in inside if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def seconds_of(lab: Lab, source: int, target: int, num_bytes: int) -> float:
    """What bytes take from a host to another, from the moment that it listens."""
    receiver = start(lab.hosts[target], RECEIVE)
    deadline = time.monotonic() + 20
    listening = ["ip", "netns", "exec", lab.hosts[target], "ss", "-ltn"]
    while "LISTEN" not in subprocess.run(listening, capture_output=True, text=True).stdout:
        assert time.monotonic() < deadline, "the receiver did not come up"
        time.sleep(0.05)
    start(lab.hosts[source], SEND.format(f"10.77.0.{target + 1}", num_bytes)).wait(60)
    return float(receiver.communicate(timeout=60)[0])


@namespaces_here
def test_bytes_between_hosts_take_as_long_as_the_links_rate_says() -> None:
    with Lab(2, rate="40mbit") as lab:
        seconds = seconds_of(lab, 0, 1, 10_000_000)
        moved = lab.traffic()
        assert lab.uplinks() == ()
    assert 1.7 < seconds < 6  # 10 MB at 40 Mbit/s: 2 s
    assert 10_000_000 < moved[lab.hosts[0]].sent < 11_500_000
    assert 10_000_000 < moved[lab.hosts[1]].received < 11_500_000


@namespaces_here
def test_links_are_free_until_they_are_limited_again() -> None:
    with Lab(2, rate="40mbit") as lab:
        lab.free()
        assert seconds_of(lab, 0, 1, 10_000_000) < 1.5
        lab.limit()
        assert 1.7 < seconds_of(lab, 0, 1, 10_000_000) < 6


@namespaces_here
def test_bytes_between_sites_take_as_long_as_the_uplinks_rate_says_and_no_others_are_on_it() -> None:
    with Lab(3, rate="1gbit", sites=(2, 1), between="40mbit") as lab:
        inside = seconds_of(lab, 0, 1, 10_000_000)
        before = lab.uplinks()
        across = seconds_of(lab, 1, 2, 10_000_000)
        one, other = lab.uplinks()
    assert inside < 1.5 < 1.7 < across < 6
    assert max(link.sent + link.received for link in before) < 100_000
    assert 10_000_000 < one.sent < 11_500_000
    assert 10_000_000 < other.received < 11_500_000


@pytest.mark.parametrize("sites", [(2, 2), (3, 0), (4, -1)])
def test_sites_that_are_not_of_all_hosts_are_refused(sites: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="want 3 in all, and one at least in each"):
        Lab(3, sites=sites)


@namespaces_here
def test_nothing_is_left_behind_when_the_work_inside_fails() -> None:
    lab = Lab(2, rate="100mbit")
    processes = []

    def work() -> None:
        with lab:
            processes.append(start(lab.hosts[0], "import time; time.sleep(600)"))
            assert lab.hosts[0] in namespaces()
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        work()
    assert lab.name not in namespaces()
    assert not list(Path("/etc/netns").glob(f"{lab.name}*"))
    processes[0].wait(10)


@namespaces_here
@pytest.mark.parametrize("milliseconds", [0, 1, 2, 3, 4, 5])
def test_a_process_that_is_just_entering_ends_too(milliseconds: int) -> None:
    with Lab(1) as lab:
        entering = start(lab.hosts[0], "import time; time.sleep(600)")
        time.sleep(milliseconds / 1000)
    entering.wait(10)


@namespaces_here
def test_clean_removes_what_dead_labs_left_and_spares_the_living(leftover: str) -> None:
    with Lab(1) as lab:
        removed = clean_dead_labs()
        assert leftover in removed
        assert leftover not in namespaces()
        assert not Path("/etc/netns", leftover).exists()
        assert lab.hosts[0] not in removed
        assert lab.hosts[0] in namespaces()


@namespaces_here
def test_two_labs_of_one_process_stand_side_by_side() -> None:
    with Lab(2) as one, Lab(2) as other:
        assert not {one.name, *one.hosts} & {other.name, *other.hosts}
        assert all(host in namespaces() for host in (*one.hosts, *other.hosts))
        for lab in (one, other):
            subprocess.run(["ip", "netns", "exec", lab.hosts[0], "getent", "hosts", lab.hosts[1]], check=True)


@pytest.mark.skipif(not CAN or NETEM, reason="wants root, and a kernel without netem")
def test_a_delay_is_refused_where_the_kernel_has_no_netem() -> None:
    lab = Lab(2, delay="20ms")
    with pytest.raises(RunError, match=r"netem delay 20ms.*this kernel may lack netem: leave the delay at 0ms"):
        lab.__enter__()
    assert lab.name not in namespaces()


@pytest.mark.skipif(not NETEM, reason="wants root, and netem in the kernel")
def test_a_delay_holds_packets_up_on_both_links_both_ways() -> None:
    with Lab(2, rate="1gbit", delay="20ms") as lab:
        run = ["ip", "netns", "exec", lab.hosts[0], sys.executable, "-c", REFUSED, lab.hosts[1]]
        seconds = float(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    assert seconds > 4 * 0.020


@pytest.mark.parametrize("rate", ["fast", "100", "0mbit", "-1mbit", "10mbps"])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(UsageError, match=f"rate '{rate}': want one such as 500kbit, 20mbit or 1gbit"):
        Lab(2, rate=rate)


def test_a_delay_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="delay '5': want one such as 0ms, 500us or 20ms"):
        Lab(2, delay="5")

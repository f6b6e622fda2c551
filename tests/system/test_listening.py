"""What a run on one host listens at: nothing that another user or another host could reach (docs/guarantees.md)."""

import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from forked import Started
from ledger import DATA, ledger_plan
from whole_runs import ENDLESS, start, wait_for_examples

from htrain.spec.cluster import Cluster, this_machine

MakeRun = Callable[..., Started]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[MakeRun]:
    """Starts a run that has trained something when this returns."""
    started: list[Started] = []

    def begin(cluster: Cluster, **flags: object) -> Started:
        ledger_plan(cluster, **flags).save(tmp_path / "plan")
        started.append(process := start(tmp_path / "plan", DATA, "--out", str(tmp_path / "run"), *ENDLESS))
        wait_for_examples(tmp_path / "run", process, 1)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def family_of(process: Started) -> list[psutil.Process]:
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


def listening(process: Started) -> set[str]:
    """The addresses at which any process of a run takes connections of other hosts, or of other users of this one."""
    found = [c for each in family_of(process) for c in each.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    return {c.laddr.ip.removeprefix("::ffff:") for c in found}


def test_roles_meet_in_a_folder_of_this_user_which_goes_with_the_run_however_that_ends(run: MakeRun) -> None:
    process = run(this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=1, dense_ps=1))
    assert not listening(process)
    sockets = [Path(c.laddr) for each in family_of(process) for c in each.net_connections("unix") if c.laddr]
    (folder,) = {path.parent for path in sockets if path.parent.name.startswith("htrain-")}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_trainers_that_reduce_among_each_other_listen_at_the_loopback(run: MakeRun) -> None:
    process = run(this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=1), dense_sync="allreduce", net_replicas=1)
    assert listening(process) == {"127.0.0.1"}

"""Strangers at a run: what they send is counted and dropped, and the run trains what it would have trained (docs/guarantees.md)."""

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from attacks import AT_CONNECTIONS, AT_MESSAGES, Act, addresses_of, attacking, folder_untouched, send_fuzzed
from ledger import DATA, counted, ledger_plan, owed
from whole_runs import ENDLESS, HTRAIN, Process, start, wait_for_examples

from htrain.executor.record.kept import latest_checkpoint
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
ATTACKS: dict[str, Act] = {**AT_CONNECTIONS, **AT_MESSAGES}
ALWAYS = (
    "orders to stop, pause and resume",
    "orders to save elsewhere",
    "Failed, of every role",
    "gradients that are NaN",
)
LONG = (
    "a greeting, a byte at a time",
    "messages of an earlier try, again",
)  # are left to tools/strangers.py, as most are
MESSAGES = (*ALWAYS, *random.Random(22).sample(sorted(AT_MESSAGES.keys() - {*ALWAYS, *LONG}), 4))
CONNECTIONS = random.Random(22).sample(sorted(AT_CONNECTIONS.keys() - {*LONG}), 5)


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Runs that end with the test."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                each.kill()
        process.communicate()


def stopped(process: Process, run: Path, plan: Plan) -> str:
    """What a run says that goes on behind all attacks, and stops when it is asked to, with every example trained once (tests/support/ledger.py)."""
    wait_for_examples(run, process, examples_told(run) + 1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert latest_checkpoint(run)[1].examples > 0
    assert np.array_equal(counted(run.with_name("plan"), run), owed(run))
    assert folder_untouched()
    return str(said)


def examples_told(run: Path) -> int:
    """The most that its metrics have told of."""
    lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    return max(int(line.split('"examples": ')[1].split(",")[0]) for line in lines if '"role": "run"' in line)


def test_a_run_drops_and_counts_what_strangers_send_to_its_sockets(started: list[Process], tmp_path: Path) -> None:
    plan = ledger_plan(this_machine(groups=1, trainers=1, group_ps=1, sparse_ps=1, dense_ps=1))
    plan.save(tmp_path / "plan")
    started.append(process := start(tmp_path / "plan", DATA, "--out", str(tmp_path / "run"), *ENDLESS))
    wait_for_examples(tmp_path / "run", process, 1)
    addresses = addresses_of(psutil.Process(process.pid))
    assert len(addresses) > 12, "three of each role, and the launcher's"
    for name in MESSAGES:
        with attacking(ATTACKS[name], addresses, plan):
            assert process.poll() is None, name
    send_fuzzed(addresses, plan, 2000)
    said = stopped(process, tmp_path / "run", plan)
    (line,) = [line for line in said.splitlines() if " messages of strangers were dropped: " in line]
    assert int(line.split(" messages of strangers ")[0].split()[-1].replace(",", "")) > 2000, line
    assert all(f"{role} " in line.partition("dropped: ")[2] for role in ("launcher", *plan.cluster.roles)), line


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here: pip install mpich mpi4py")
def test_between_hosts_whoever_has_not_the_keys_is_not_even_heard(started: list[Process], tmp_path: Path) -> None:
    plan = ledger_plan(
        this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=1), dense_sync="allreduce", net_replicas=1
    )
    plan.save(tmp_path / "plan")
    assert MPIEXEC
    own = [HTRAIN, "run", str(tmp_path / "plan"), "--data", DATA, "--out", str(tmp_path / "run"), *ENDLESS]
    command = [MPIEXEC, "-n", "3", *own, "--network", "127.0.0.1/32"]
    started.append(process := subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    wait_for_examples(tmp_path / "run", process, 1)
    addresses = [each for each in addresses_of(psutil.Process(process.pid)) if each.startswith("tcp://127.0.0.1:")]
    assert len(addresses) >= 7
    for name in (*CONNECTIONS, ALWAYS[0]):
        with attacking(ATTACKS[name], addresses, plan):
            assert process.poll() is None, name
    assert "strangers" not in stopped(process, tmp_path / "run", plan)

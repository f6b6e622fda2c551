"""What htrain shares a process with: the caller's other threads, and its own as the process ends."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

import pytest
import torch
from whole_runs import ENDLESS, WIDE_DEEP, libfm, start, wait_for_a_checkpoint

import htrain
from htrain.executor.host.threads import callers_settings_kept
from htrain.executor.loops import saver
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

LEAVES = """
import atexit, sys, threading
import click, torch
from htrain.cli.door import open_door

def compute():
    x = torch.ones(1000)
    while True:
        x.sum()

@click.command()
def command():
    atexit.register(lambda: print("tidied up", file=sys.stderr))
    for _ in range(8):
        threading.Thread(target=compute, daemon=True).start()
    click.echo("a document")
    sys.exit(7)

open_door(command)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("shared")
    data = libfm(folder / "train.libfm", 400)
    htrain.compile(WIDE_DEEP, data=data, cluster=this_machine(trainers=2), options=Options(batch_size=32)).save(
        folder / "plan"
    )
    return folder / "plan", data


def test_a_command_leaves_with_its_status_though_threads_of_its_process_compute() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (7, "a document\n")
    assert done.stderr.splitlines() == ["tidied up"]


def test_roles_that_are_threads_end_with_a_second_signal(small: tuple[Path, str], tmp_path: Path) -> None:
    process = start(*small, "--out", str(tmp_path / "run"), "--threads", *ENDLESS, "--checkpoint-seconds", "0.2")
    wait_for_a_checkpoint(tmp_path / "run", process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said


def test_a_process_that_is_the_callers_is_not_forked(
    small: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other libraries do around a fork may wait for the caller's threads."""

    def fork(*_: object) -> None:
        raise AssertionError("forked")

    monkeypatch.setattr(saver, "Apart", fork)
    plan, data = small
    done = htrain.run(plan, data=data, out=tmp_path / "run", hosting="threads", checkpoint_seconds=0.1, epochs=20)
    assert done.totals.examples == 8000


def test_the_callers_settings_are_those_before_the_first_of_several(tmp_path: Path) -> None:
    threads, turn = torch.get_num_threads(), sys.getswitchinterval()
    first, second = callers_settings_kept(), callers_settings_kept()
    none: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] = (None, None, None)
    try:
        first.__enter__()
        sys.setswitchinterval(1e-5)
        torch.set_num_threads(threads + 1)
        second.__enter__()
        first.__exit__(*none)
        assert sys.getswitchinterval() == pytest.approx(1e-5)  # the other computes
        second.__exit__(*none)
        assert (torch.get_num_threads(), sys.getswitchinterval()) == (threads, pytest.approx(turn))
    finally:
        torch.set_num_threads(threads)
        sys.setswitchinterval(turn)


def test_models_are_compiled_by_several_threads_at_once() -> None:
    alone = htrain.compile(WIDE_DEEP, cluster=this_machine(), self_check=False).digest
    found: list[object] = []

    def work() -> None:
        try:
            found.append(htrain.compile(WIDE_DEEP, cluster=this_machine(), self_check=False).digest)
        except htrain.Error as error:
            found.append(error)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    end = time.monotonic() + 200
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    assert found == [alone] * 3

"""Runs that go on by themselves when a role dies, and what they have trained then (docs/guarantees.md)."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from forked import Started
from ledger import DATA, counted, ledger_plan, owed
from whole_runs import (
    ENDLESS,
    another_checkpoint,
    start,
    wait_for_a_checkpoint,
    wait_for_examples,
    wait_until,
)

from htrain.spec.cluster import this_machine

OFTEN = ("--checkpoint-seconds", "0.7")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each table is stepped by one thread: several that step one row at once may lose a step of it (Hogwild)."""
    folder = tmp_path_factory.mktemp("recovery") / "plan"
    cluster = this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=2, dense_ps=1)
    ledger_plan(cluster).save(folder)
    return folder


@pytest.fixture
def divided(tmp_path: Path) -> Path:
    """A plan of a sparse PS of two processes."""
    ledger_plan(this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=1, sparse_ps_processes=2, dense_ps=1)).save(
        tmp_path / "divided"
    )
    return tmp_path / "divided"


@pytest.fixture
def run(plan: Path, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def begin(*arguments: str, plan: Path = plan) -> Started:
        started.append(process := start(plan, DATA, "--out", str(tmp_path / "run"), *arguments))
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def pid_of(role: str, folder: Path) -> int:
    pids = {name: place["pid"] for name, place in json.loads((folder / "roles.json").read_text()).items()}
    if role == "supervisor":
        return psutil.Process(pids["sparse_ps:0"]).ppid()
    name, _, further = role.partition("/")
    return psutil.Process(pids[name]).children()[0].pid if further else pids[name]


def kill_and_wait(victim: str, folder: Path, process: Started) -> None:
    """Until the roles of the next try are up: a checkpoint of this one may yet be made valid."""
    roles = (folder / "roles.json").read_text()
    os.kill(pid_of(victim, folder), signal.SIGKILL)
    wait_until(lambda: (folder / "roles.json").read_text() != roles, process, "another try")


def test_whoever_is_killed_the_run_goes_on_and_trains_every_example_once(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(*ENDLESS, *OFTEN, "--retries", "auto", "--retry", "whole")
    wait_for_a_checkpoint(folder, process)
    victims = ("sparse_ps:1", "trainer:1:0", "supervisor", "group_ps:0:0", "dense_ps:0")
    for victim in victims:
        another_checkpoint(folder, process)
        time.sleep(0.3)  # into the time between two
        kill_and_wait(victim, folder, process)
    another_checkpoint(folder, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    told = [line for line in said.splitlines() if "the run goes on" in line]
    assert len(told) == len(victims)
    assert all(victim in line for victim, line in zip(victims, told, strict=True))
    assert all("(retry 1 of 3)" in line for line in told), "each got further than the one before"
    assert (counted(plan, folder) == owed(folder)).all()


def test_where_a_further_process_of_a_ps_is_killed_nothing_is_trained_twice(
    run: Callable[..., Started], divided: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(*ENDLESS, *OFTEN, "--retries", "auto", plan=divided)
    wait_for_a_checkpoint(folder, process)
    for _ in range(2):
        another_checkpoint(folder, process)
        time.sleep(0.3)
        kill_and_wait("sparse_ps:0/process1", folder, process)
    another_checkpoint(folder, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert len([line for line in said.splitlines() if "sparse_ps:0/process1" in line and "goes on" in line]) == 2
    trained, wanted = counted(divided, folder), owed(folder)
    assert (trained <= wanted).all()
    assert trained.sum() >= 0.99 * wanted.sum(), "two processes that stepped a row at once lost a step, now and then"


def test_a_role_that_dies_again_and_again_ends_the_run_with_its_cause(
    run: Callable[..., Started], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(*ENDLESS, "--retries", "1", "--checkpoint-seconds", "end")
    for _ in range(2):
        was = (folder / "roles.json").stat().st_mtime_ns if (folder / "roles.json").exists() else 0
        wait_until(
            lambda was=was: (folder / "roles.json").exists() and (folder / "roles.json").stat().st_mtime_ns > was,
            process,
            "roles that are up",
        )
        time.sleep(0.5)
        killed = pid_of("sparse_ps:0", folder)
        os.kill(killed, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    *told, last = said.splitlines()
    assert any("the run goes on from its beginning" in line for line in told)
    assert last.startswith(f"htrain: sparse_ps:0 (process {killed}) was killed by signal 9")
    assert last.endswith("; 1 more try without a checkpoint between them failed, too")


@pytest.mark.parametrize("victim", ["trainer:0:0", "sparse_ps:0"])
def test_a_plan_that_is_compiled_anew_beside_its_run_is_taken_by_no_role(
    run: Callable[..., Started], plan: Path, tmp_path: Path, victim: str
) -> None:
    folder, own = tmp_path / "run", tmp_path / "plan"
    shutil.copytree(plan, own)
    process = run(*ENDLESS, *OFTEN, "--retries", "3", plan=own)
    wait_for_a_checkpoint(folder, process)
    cluster = this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=2, dense_ps=1)
    ledger_plan(cluster, batch_size=3).save(own)
    os.kill(pid_of(victim, folder), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "is begun again, and the others go on" not in said
    last = f"htrain: {own}: is another plan than the one that the run began with: put that one back, and go on with --resume {folder}"
    assert said.splitlines()[-1] == last
    assert (counted(plan, folder) == owed(folder)).all()


def test_a_run_that_was_asked_to_stop_does_not_go_on_where_a_role_dies_before_it_is_saved(
    run: Callable[..., Started], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(*ENDLESS, "--retries", "3", "--checkpoint-seconds", "end")
    wait_for_examples(folder, process, 1)
    killed = pid_of("sparse_ps:0", folder)
    os.kill(killed, signal.SIGSTOP)  # it will not answer the order to pause
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    os.kill(killed, signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "goes on" not in said
    last = rf"htrain: sparse_ps:0 \(process {killed}\) was killed by signal 9 \(its last step: \d+\)"
    assert re.match(last, said.splitlines()[-1]), said


@pytest.mark.parametrize("seconds", [0, 0.01, 0.1])
def test_a_run_that_is_asked_to_stop_between_two_tries_says_so_and_what_it_has_saved_is_there(
    run: Callable[..., Started], plan: Path, tmp_path: Path, seconds: float
) -> None:
    folder = tmp_path / "run"
    process = run(*ENDLESS, *OFTEN, "--retries", "3")
    wait_for_a_checkpoint(folder, process)
    os.kill(pid_of("sparse_ps:0", folder), signal.SIGKILL)
    assert process.stderr
    lines = []
    while "the run goes on" not in (lines or [""])[-1]:
        lines.append(process.stderr.readline())
    time.sleep(seconds)  # wherever the launcher is by then
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert re.match(rf"htrain: stopped .*; go on with --resume {folder}$", said.splitlines()[-1]), said
    assert (counted(plan, folder) == owed(folder)).all()


def test_the_same_command_begins_a_run_and_goes_on_with_it_whatever_has_ended_the_launcher(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    for ended in ("before a checkpoint", "behind one", "as asked"):
        seconds = "end" if ended == "before a checkpoint" else "0.7"
        process = run("--or-resume", *ENDLESS, "--checkpoint-seconds", seconds)
        if ended == "before a checkpoint":
            wait_for_examples(folder, process, 1)
        else:
            another_checkpoint(folder, process)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT if ended == "as asked" else signal.SIGKILL)
        process.communicate(timeout=60)
        assert not psutil.wait_procs(family, timeout=20)[1]
    assert (counted(plan, folder) == owed(folder)).all()


def test_a_run_to_the_end_of_its_data_is_at_its_end_when_the_same_command_comes_again(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    found = []
    for _ in range(2):
        said, told = run("--or-resume", "--json").communicate(timeout=60)
        found.append(json.loads(said))
        assert "Traceback" not in told
    assert [each["train_examples"] for each in found] == [3000, 0]
    assert (counted(plan, tmp_path / "run") == owed(tmp_path / "run")).all()


def test_a_storage_of_versions_that_is_away_when_a_role_dies_may_be_back_for_a_later_try(
    run: Callable[..., Started], tmp_path: Path
) -> None:
    folder, address = tmp_path / "run", tmp_path / "versions"
    process = run(*ENDLESS, *OFTEN, "--retries", "8", "--publish", str(address))
    wait_for_a_checkpoint(folder, process)
    shutil.rmtree(address)
    address.write_text("no folder")
    os.kill(pid_of("sparse_ps:0", folder), signal.SIGKILL)
    time.sleep(1.5)
    assert process.poll() is None
    address.unlink()
    another_checkpoint(folder, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert len([line for line in said.splitlines() if "the run goes on" in line and str(address) in line]) >= 1, said

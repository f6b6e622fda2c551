"""Trainers that die, and are begun again while all others go on; what has been trained then (docs/decisions/recovery.md)."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from forked import Started
from ledger import DATA, counted, ledger_plan, owed
from whole_runs import (
    ENDLESS,
    another_checkpoint,
    follow,
    places,
    runs,
    start,
    stopped,
    wait_for_a_checkpoint,
    wait_for_examples,
    wait_until,
    wait_until_all_train,
)

from htrain.spec.cluster import this_machine

IDS_OF_A_BATCH = 32 * 26
LAST = re.compile(r"(\S+) goes on after [\d.]+ s; batches that it had begun, and trains again: (\d+)")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Group PSs bound the staleness of weights: a step that is never ended would hold up all others."""
    folder = tmp_path_factory.mktemp("alone") / "plan"
    cluster = this_machine(groups=2, trainers=2, group_ps=1, sparse_ps=2, dense_ps=1)
    ledger_plan(cluster).save(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    with runs("--out", str(tmp_path / "run"), "--retries", "3") as begin:
        yield lambda plan, *arguments, data=DATA: begin(plan, data, *arguments)


def require_no_more_than_told(trained: np.ndarray, wanted: np.ndarray, said: str, *, kills: int) -> None:
    """No example was passed over, and none was trained again but those of batches that had been begun, at most two of each of two net replicas."""
    batches = [int(count) for _, count in LAST.findall(said)]
    assert len(batches) == kills
    assert max(batches) <= 4
    assert (trained >= wanted).all()
    assert (trained - wanted).sum() <= sum(batches) * IDS_OF_A_BATCH


def test_whichever_trainer_is_killed_the_others_go_on_and_only_what_it_had_begun_is_trained_again(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(
        plan, *ENDLESS, "--checkpoint-seconds", "3"
    )  # else most are killed while a checkpoint is begun, which takes all
    wait_for_a_checkpoint(folder, process)
    victims = ("trainer:0:0", "trainer:1:1", "trainer:0:0", "trainer:0:1")
    for victim in victims:
        another_checkpoint(folder, process)
        time.sleep(0.3)
        follow(victim, folder, process, along="")
    another_checkpoint(folder, process)
    said = stopped(process)
    assert [role for role, _ in LAST.findall(said)] == list(victims)
    assert "the run goes on" not in said
    require_no_more_than_told(counted(plan, folder), owed(folder), said, kills=len(victims))


def test_two_trainers_that_are_killed_at_once_are_both_begun_again(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(plan, *ENDLESS, "--checkpoint-seconds", "2")
    wait_for_a_checkpoint(folder, process)
    before = places(folder)
    for victim in ("trainer:0:0", "trainer:1:0"):
        os.kill(before[victim], signal.SIGKILL)
    wait_until(lambda: sum(pid != before[role] for role, pid in places(folder).items()) == 2, process, "two others")
    another_checkpoint(folder, process)
    said = stopped(process)
    require_no_more_than_told(counted(plan, folder), owed(folder), said, kills=2)


def test_a_trainer_that_is_silent_for_too_long_is_ended_and_begun_again(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(plan, *ENDLESS, "--checkpoint-seconds", "30", "--liveness-seconds", "4", "--deadline-seconds", "60")
    wait_until_all_train(folder, process, "trainer:0:0", "trainer:0:1", "trainer:1:0", "trainer:1:1")
    before = places(folder)
    os.kill(before["trainer:1:0"], signal.SIGSTOP)
    wait_until(lambda: places(folder).get("trainer:1:0") not in (None, before["trainer:1:0"]), process, "another")
    assert not psutil.pid_exists(before["trainer:1:0"])
    wait_until_all_train(folder, process, "trainer:1:0")
    time.sleep(1)
    said = stopped(process)
    assert re.search(
        r"^trainer:1:0 has been silent for 4 s, though its process lives .*; it is begun again", said, re.MULTILINE
    )
    assert "the run goes on" not in said
    require_no_more_than_told(counted(plan, folder), owed(folder), said, kills=1)


def test_a_run_whose_trainer_was_killed_comes_to_the_end_of_its_data(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    """A trainer may be killed that has finished, too."""
    folder = tmp_path / "run"
    process = run(plan, "--epochs", "12", "--json")
    wait_for_examples(folder, process, 3000)
    follow("trainer:1:0", folder, process, along="")
    document, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    found = json.loads(document)
    assert (found["begun_again"], found["retries"], found["examples"]) == (1, 0, 12 * 3000)
    assert (owed(folder).sum(), owed(folder).min() > 0) == (12 * 3000 * 26, True)
    require_no_more_than_told(counted(plan, folder), owed(folder), said, kills=1)


def test_a_run_that_goes_on_behind_trains_what_is_left_once(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    """The checkpoint at which it goes on knows nothing of incarnations."""
    folder = tmp_path / "run"
    process = run(plan, *ENDLESS, "--checkpoint-seconds", "3")
    wait_for_a_checkpoint(folder, process)
    time.sleep(0.5)
    follow("trainer:0:1", folder, process, along="")
    said = stopped(process)
    off = (counted(plan, folder) - owed(folder)).sum()
    again = start(plan, DATA, "--resume", str(folder), *ENDLESS, "--workers", "1", "--checkpoint-seconds", "0.7")
    try:
        another_checkpoint(folder, again)
        stopped(again)
    finally:
        again.kill()
        again.communicate()
    require_no_more_than_told(counted(plan, folder), owed(folder), said, kills=1)
    assert (counted(plan, folder) - owed(folder)).sum() == off


def test_a_trainer_that_dies_again_and_again_is_begun_again_with_all_others(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(plan, *ENDLESS, "--checkpoint-seconds", "15", "--retries", "1")
    wait_for_examples(folder, process, 1)
    follow("trainer:0:0", folder, process, along="")
    before = places(folder)
    os.kill(before["trainer:0:0"], signal.SIGKILL)
    wait_until(lambda: not set(places(folder).values()) & set(before.values()), process, "another try")
    wait_for_a_checkpoint(folder, process)
    said = stopped(process)
    assert "the run goes on from its beginning" in said
    assert (counted(plan, folder) == owed(folder)).all()


@pytest.mark.parametrize("case", ["whole", "weights", "lockstep"])
def test_a_trainer_that_others_need_or_that_is_not_to_be_is_not_begun_again_alone(
    run: Callable[..., Started], plan: Path, tmp_path: Path, case: str
) -> None:
    folder, own = tmp_path / "run", tmp_path / "plan"
    if case == "weights":
        ledger_plan(this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=1, dense_ps=1)).save(own)
    elif case == "lockstep":
        cluster = this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=1)
        ledger_plan(cluster, dense_sync="allreduce").save(own)
    process = run(
        plan if case == "whole" else own, *ENDLESS, "--checkpoint-seconds", "0.7", "--retry", "whole" if case == "whole" else "alone"
    )  # fmt: skip
    wait_for_a_checkpoint(folder, process)
    before = places(folder)
    os.kill(before["trainer:1:0"], signal.SIGKILL)
    wait_until(lambda: not set(places(folder).values()) & set(before.values()), process, "another try")
    another_checkpoint(folder, process)
    said = stopped(process)
    assert "the run goes on from checkpoint" in said
    each, off = (2, 1) if case == "lockstep" else (1, 0)  # their gradients are averaged, and halves rounded
    assert (abs(each * counted(plan if case == "whole" else own, folder) - owed(folder)) <= off).all()

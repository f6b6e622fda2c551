"""Sparse PSs that die, and are begun again with the rows of the last checkpoint while all others keep theirs (docs/decisions/recovery.md)."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from forked import Started
from ledger import DATA, ROWS, counted, ledger_plan, owed
from whole_runs import (
    ENDLESS,
    another_checkpoint,
    follow_alone,
    places,
    runs,
    stopped,
    wait_for_a_checkpoint,
    wait_for_examples,
    wait_until,
)

from htrain.plan.plan import load_plan
from htrain.spec.cluster import this_machine

IDS_OF_A_BATCH = 32 * 26
AGAIN = re.compile(r"batches that it had begun, and trains again: (\d+)")
LOST = re.compile(r"its rows are those of (\S+), without what they had learnt of about ([\d,]+) examples")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("partial") / "plan"
    ledger_plan(this_machine(groups=2, trainers=2, group_ps=1, sparse_ps=2, dense_ps=1)).save(folder)
    return folder


@pytest.fixture
def run(plan: Path, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    with runs("--out", str(tmp_path / "run"), "--retries", "3", "--retry", "partial") as begin:
        yield partial(begin, plan, DATA)


def rows_of(plan: Path, server: str) -> np.ndarray:
    """Which rows of the table a sparse PS has, [ROWS] bool."""
    has = np.zeros(ROWS, bool)
    for parameter in load_plan(plan).net_of(server).parameters.values():
        if parameter.whole == "rows.weight":
            has[parameter.first_row : parameter.first_row + parameter.shape[0]] = True
    assert 0 < has.sum() < ROWS
    return has


def go_back(victim: str, folder: Path, process: Started) -> int:
    """Kill a sparse PS between two checkpoints, so that it goes back alone; how often it took all back before, as where one was written already."""

    def just_saved() -> None:
        another_checkpoint(folder, process)
        time.sleep(0.3)  # it learns something that is lost then

    return follow_alone(victim, folder, process, along="trainer", at=just_saved)


def test_a_sparse_ps_that_is_killed_goes_back_to_its_last_rows_and_nobody_else_does(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(*ENDLESS, "--checkpoint-seconds", "3")
    wait_for_a_checkpoint(folder, process)
    taken_back = go_back("sparse_ps:1", folder, process)
    another_checkpoint(folder, process)
    said = stopped(process)
    assert said.count("the run goes on") == taken_back
    ((checkpoint, examples),) = LOST.findall(said)
    before, _, _ = said.partition("its rows are those of")
    assert re.findall(r"checkpoint \S+/(\S+) \(training stood still", before)[-1] == checkpoint, "the newest there was"
    begun = sum(int(count) for count in AGAIN.findall(said))
    assert len(AGAIN.findall(said)) == 4
    assert begun <= 4 * 4
    off, own = counted(plan, folder) - owed(folder), rows_of(plan, "sparse_ps:1")
    assert (off[~own] >= 0).all(), "of the rows of others nothing is lost"
    assert off[~own].sum() <= begun * IDS_OF_A_BATCH
    lost = -off[own].sum()
    about = int(examples.replace(",", "")) * 26 * own.mean()
    assert 0 < lost < 2 * about + 40 * IDS_OF_A_BATCH, "trainers report twice a second"


def test_a_run_whose_sparse_ps_was_killed_comes_to_the_end_of_its_data(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    folder, epochs = tmp_path / "run", 25
    process = run("--epochs", str(epochs), "--json", "--checkpoint-seconds", "2")
    wait_for_a_checkpoint(folder, process)
    taken_back = go_back("sparse_ps:0", folder, process)
    document, said = process.communicate(timeout=180)
    assert process.returncode == 0, said
    found = json.loads(document)
    assert (found["begun_again"], found["retries"], found["examples"]) == (1, taken_back, epochs * 3000), said
    assert [f"{found['set_back']:,}"] == [examples for _, examples in LOST.findall(said)]
    assert (owed(folder).sum(), owed(folder).min() > 0) == (epochs * 3000 * 26, True)


def test_without_a_checkpoint_to_take_rows_from_all_begin_again(
    run: Callable[..., Started], plan: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = run(*ENDLESS, "--checkpoint-seconds", "6")
    wait_for_examples(folder, process, 1)
    before = places(folder)
    os.kill(before["sparse_ps:0"], signal.SIGKILL)
    wait_until(lambda: not set(places(folder).values()) & set(before.values()), process, "another try")
    wait_for_a_checkpoint(folder, process)
    said = stopped(process)
    assert "the run goes on from its beginning" in said
    assert (counted(plan, folder) == owed(folder)).all()


@pytest.mark.parametrize("victim", ["dense_ps:0"])
def test_other_servers_take_all_back(run: Callable[..., Started], plan: Path, tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "run"
    process = run(*ENDLESS, "--checkpoint-seconds", "0.7")
    wait_for_a_checkpoint(folder, process)
    before = places(folder)
    os.kill(before[victim], signal.SIGKILL)
    wait_until(lambda: not set(places(folder).values()) & set(before.values()), process, "another try")
    another_checkpoint(folder, process)
    assert "the run goes on from checkpoint" in stopped(process)
    assert (counted(plan, folder) == owed(folder)).all()


def test_a_trainer_that_is_killed_is_begun_again_alone(run: Callable[..., Started], plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = run(*ENDLESS, "--checkpoint-seconds", "3")
    wait_for_a_checkpoint(folder, process)
    another_checkpoint(folder, process)
    time.sleep(0.3)
    before = places(folder)
    os.kill(before["trainer:0:1"], signal.SIGKILL)
    wait_until(lambda: places(folder).get("trainer:0:1") not in (None, before["trainer:0:1"]), process, "another")
    another_checkpoint(folder, process)
    said = stopped(process)
    after = places(folder)
    assert [role for role in before if before[role] != after[role]] == ["trainer:0:1"]
    assert not LOST.findall(said)
    assert (counted(plan, folder) >= owed(folder)).all()

"""What a launcher does about its checkpoints: those that a disk refuses are told of and tried again."""

import os
from pathlib import Path

import pytest
import torch

import htrain.executor.record.saves as module
from htrain.data.identity import DataIdentity
from htrain.errors import CheckpointError
from htrain.executor.record.checkpoint import latest_checkpoint, save_role
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.saves import Saves
from htrain.executor.settings import RunSettings
from htrain.spec.settings import CheckpointSeconds

TRAINERS = {
    "trainer:0:0": {
        "position": {"epoch": 0, "chunk": 0, "row": 7},
        "totals": {"examples": 7, "steps": 1, "log_loss": 0.5, "positives": 0.5},
    }
}
IDENTITY = Identity(PlanIdentity("abc", {}, {}), DataIdentity(1, "criteo", {}, ()))


class Clock:
    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
    return clock


def saves_in(folder: Path, told: list[str], *, every_seconds: CheckpointSeconds = 300.0, restore: str = "") -> Saves:
    return Saves(
        RunSettings(Path("plan"), "synthetic:", folder, checkpoint_seconds=every_seconds, restore=restore),
        IDENTITY,
        told.append,
    )


def make(saves: Saves) -> Path:
    folder = saves.open(TRAINERS)
    saved = save_role(folder, "trainer:0:0", {"w": torch.ones(3)})
    saves.close(
        TRAINERS,
        {"trainer:0:0": {"file": [saved.name, saved.num_bytes, saved.digest]}, "sparse_ps:0": {}},
        finished=False,
    )
    return folder


def test_a_checkpoint_is_due_when_its_time_has_come_and_valid_when_it_is_closed(tmp_path: Path, clock: Clock) -> None:
    told: list[str] = []
    saves = saves_in(tmp_path, told)
    saves.begin()
    clock.now = 299
    assert not saves.is_due
    clock.now = 301
    assert saves.is_due
    assert saves.advice == f"it has no checkpoint to go on from: remove {tmp_path} and start again"
    folder = make(saves)
    assert (saves.last, latest_checkpoint(tmp_path)[0]) == (folder, folder)
    assert not saves.is_due
    assert saves.advice == f"go on with --resume {tmp_path}"
    assert told == [f"checkpoint {folder}"]


def test_only_the_last_is_due_where_none_are_wanted_on_the_way(tmp_path: Path, clock: Clock) -> None:
    saves = saves_in(tmp_path, [], every_seconds="end")
    saves.begin()
    clock.now = 1e9
    assert not saves.is_due


def test_a_refused_checkpoint_leaves_nothing_keeps_the_one_before_and_is_tried_again(
    tmp_path: Path, clock: Clock
) -> None:
    told: list[str] = []
    saves = saves_in(tmp_path, told)
    saves.begin()
    first = make(saves)
    folder = saves.open(TRAINERS)
    (folder / "trainer_0_0.partial").write_text("half")
    with pytest.raises(CheckpointError) as refusal:
        saves.close(TRAINERS, {"trainer:0:0": {"error": "the disk is full"}}, finished=False)
    saves.refused(refusal.value)
    assert not folder.exists()
    assert latest_checkpoint(tmp_path)[0] == saves.last == first
    assert told[1:] == ["no checkpoint: trainer:0:0: the disk is full; training goes on, it is tried again in 30 s"]
    clock.now += 29
    assert not saves.is_due
    clock.now += 2
    assert saves.is_due
    make(saves)
    assert saves.error == ""


def test_a_resumed_run_can_go_on_from_where_it_came(tmp_path: Path) -> None:
    saves = saves_in(tmp_path, [], restore=str(tmp_path / "checkpoints" / "examples_000000000007"))
    assert saves.advice == f"go on with --resume {tmp_path}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_not_writable_is_told_of(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="Permission denied"):
        saves_in(tmp_path, []).open(TRAINERS)


def test_what_a_run_can_do_without_is_told_of_and_left_out(tmp_path: Path) -> None:
    told: list[str] = []
    with saves_in(tmp_path, told).unless_refused("where roles run"):
        (tmp_path / "gone" / "roles.json").write_text("x")
    assert told == [f"{tmp_path}: where roles run could not be written: No such file or directory"]

"""When checkpoints are due, and what is told of those that a disk refuses."""

import math
from pathlib import Path

from htrain.executor.roles.saving import SaveSchedule
from htrain.executor.settings import RunSettings
from htrain.spec.settings import CheckpointSeconds

FOLDER, FIRST, SECOND = Path("runs/a"), Path("runs/a/checkpoints/1"), Path("runs/a/checkpoints/2")


def schedule(*, every_seconds: CheckpointSeconds = 300.0, restore: str = "") -> SaveSchedule:
    made = SaveSchedule(RunSettings(Path("plan"), "data", FOLDER, checkpoint_seconds=every_seconds, restore=restore))
    made.begin(1000.0)
    return made


def test_a_checkpoint_is_due_when_its_time_has_come_after_the_begin_and_after_the_one_before() -> None:
    saves = schedule()
    assert (saves.due, saves.last) == (1300.0, None)
    assert saves.advice == "it has no checkpoint to go on from: remove runs/a and start again"
    assert saves.made(FIRST, 1310.0) == "checkpoint runs/a/checkpoints/1"
    assert (saves.due, saves.last) == (1610.0, FIRST)
    assert saves.advice == "go on with --resume runs/a"


def test_only_the_last_is_due_where_none_are_wanted_on_the_way() -> None:
    saves = schedule(every_seconds="end")
    assert saves.due == math.inf
    assert saves.refused("the disk is full", 1000.0) == "no checkpoint: the disk is full; training goes on"
    assert saves.due == math.inf


def test_one_that_the_disk_refuses_keeps_the_one_before_and_is_due_again_soon() -> None:
    saves = schedule()
    saves.made(FIRST, 1300.0)
    told = saves.refused("the disk is full", 1600.0)
    assert told == "no checkpoint: the disk is full; training goes on, it is tried again in 30 s"
    assert (saves.due, saves.last, saves.error) == (1630.0, FIRST, "the disk is full")
    saves.made(SECOND, 1640.0)
    assert (saves.due, saves.last, saves.error) == (1940.0, SECOND, "")


def test_one_that_is_due_sooner_is_not_put_off() -> None:
    saves = schedule(every_seconds=7.0)
    assert saves.refused("the disk is full", 1000.0).endswith("in 7 s")
    assert saves.due == 1007.0


def test_a_resumed_run_can_go_on_from_where_it_came() -> None:
    assert schedule(restore=str(FIRST)).advice == "go on with --resume runs/a"

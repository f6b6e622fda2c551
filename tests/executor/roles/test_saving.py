"""When checkpoints are due, and what is told of those that a disk refuses."""

import math
from pathlib import Path

from htrain.executor.roles.coordination import States
from htrain.executor.roles.saving import SaveSchedule, Writing, without_advice
from htrain.executor.settings import RunSettings
from htrain.spec.settings import CheckpointSeconds

FOLDER, FIRST, SECOND = Path("runs/a"), Path("runs/a/checkpoints/1"), Path("runs/a/checkpoints/2")


def schedule(*, every_seconds: CheckpointSeconds = 300.0, restore: str = "") -> SaveSchedule:
    made = SaveSchedule(RunSettings(Path("plan"), "data", FOLDER, checkpoint_seconds=every_seconds, restore=restore))
    made.begin(1000.0)
    return made


def written(saves: SaveSchedule, folder: Path, *, began: float, made: float) -> str:
    saves.begun(Writing(folder, {}, began, stood_still=0.25), began + 0.25)
    return saves.made({}, made)


def test_advice_can_be_pasted_whatever_the_folder_is_called() -> None:
    for restore, advice in (
        ("", "it has no checkpoint to go on from: remove 'runs/a b' and start again"),
        ("runs/a b/checkpoints/1", "go on with --resume 'runs/a b'"),
    ):
        saves = SaveSchedule(RunSettings(Path("plan"), "data", Path("runs/a b"), restore=restore))
        assert saves.advice == advice
        assert without_advice(f"trainer:0:0 died; {saves.advice}") == "trainer:0:0 died"


def test_a_checkpoint_is_due_when_its_time_has_come_after_the_begin_and_after_the_begin_of_the_one_before() -> None:
    saves = schedule()
    assert (saves.due, saves.last) == (1300.0, None)
    assert saves.advice == "it has no checkpoint to go on from: remove runs/a and start again"
    told = written(saves, FIRST, began=1300.0, made=1310.0)
    assert told == "checkpoint runs/a/checkpoints/1 (training stood still for 0.25 s, written after 10.0 s)"
    assert (saves.due, saves.last) == (1600.0, FIRST)
    assert saves.advice == "go on with --resume runs/a"


def test_while_one_is_written_none_is_due_and_one_that_takes_long_is_told_of_once() -> None:
    saves = schedule()
    saves.begun(Writing(FIRST, {}, 1300.0, stood_still=0.5), 1300.5)
    assert (saves.due, saves.slow, saves.last) == (math.inf, 1360.5, None)
    assert saves.told_slow() == "a checkpoint is still being written after 60 s; training goes on"
    assert saves.slow == math.inf
    saves.made({}, 1700.0)
    assert (saves.due, saves.last, saves.writing) == (1700.0, FIRST, None), "the next is overdue"


def test_only_the_last_is_due_where_none_are_wanted_on_the_way() -> None:
    saves = schedule(every_seconds="end")
    assert saves.due == math.inf
    assert saves.refused("the disk is full", 1000.0) == "no checkpoint: the disk is full; training goes on"
    assert saves.due == math.inf


def test_one_that_the_disk_refuses_keeps_the_one_before_and_is_due_again_soon() -> None:
    saves = schedule()
    written(saves, FIRST, began=1300.0, made=1301.0)
    saves.begun(Writing(SECOND, {}, 1600.0, stood_still=0.0), 1600.0)
    told = saves.refused("the disk is full", 1600.0)
    assert told == "no checkpoint: the disk is full; training goes on, it is tried again in 30 s"
    assert (saves.due, saves.last, saves.error, saves.writing) == (1630.0, FIRST, "the disk is full", None)
    written(saves, SECOND, began=1630.0, made=1640.0)
    assert (saves.due, saves.last, saves.error) == (1930.0, SECOND, "")


def test_one_that_is_due_sooner_is_not_put_off() -> None:
    saves = schedule(every_seconds=7.0)
    assert saves.refused("the disk is full", 1000.0).endswith("in 7 s")
    assert saves.due == 1007.0


def test_behind_the_end_of_training_nobody_says_that_it_goes_on() -> None:
    told = schedule().refused("the disk is full", 1000.0, is_last=True)
    assert told == "no checkpoint: the disk is full; training is over, it is tried again"


def test_a_resumed_run_can_go_on_from_where_it_came() -> None:
    assert schedule(restore=str(FIRST)).advice == "go on with --resume runs/a"


def test_the_first_is_whole_and_others_may_build_on_it_until_the_disk_refuses_one() -> None:
    saves = schedule(restore=str(FIRST))
    assert saves.base == ""
    whole, changed = (
        {"sparse_ps:0": {"file": ["f", size, 0], **more}, "trainer:0:0": {}}
        for size, more in ((100, {}), (30, {"base": ["1", 100, 0]}))
    )

    def made(folder: Path, saved: States) -> None:
        saves.begun(Writing(folder, {}, 1300.0, stood_still=0.0), 1300.0)
        saves.made(saved, 1301.0)

    made(FIRST, whole)
    assert saves.base == "1"
    made(SECOND, changed)
    assert saves.base == "2"
    saves.refused("the disk is full", 1302.0)
    assert saves.base == ""
    made(FIRST, whole)
    assert saves.base == "1"

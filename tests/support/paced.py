"""Trainers that take their time, for runs that a test ends: at full speed they would take all cores from other tests for as long as this one waits.

They rest within a step, whose batch is then on its way: that is where whoever is killed, or asked to leave, is met. No arithmetic and no order is changed.
"""

import time
from typing import Any

from htrain.executor.launch.role import RunningRole
from htrain.executor.loops.feed import Feed
from htrain.executor.loops.trainer import Trainer
from htrain.executor.roles.replica import Instruction, StepBegins

ENDLESS_EPOCHS = 1_000_000_000
_SECONDS = 0.015  # of each step, for each trainer of the run: all of them together make some 130 steps a second


def pace_trainers(*, endless_alone: bool = True) -> None:
    """Let the trainers of this process, and of those that it forks, rest in each step: those of runs of ENDLESS_EPOCHS, or of all.

    Requires: no role runs yet.
    """
    open_feed, carry_out = RunningRole._open_feed, Trainer._carry_out
    seconds: dict[Trainer, float] = {}

    def open_paced(role: RunningRole) -> Feed:
        if role.trainer and (role.settings.epochs == ENDLESS_EPOCHS or not endless_alone):
            seconds[role.trainer] = _SECONDS * role.plan.cluster.groups * role.plan.cluster.trainers
        return open_feed(role)

    def carry_out_paced(trainer: Trainer, replica: int, instruction: Instruction) -> Any:
        came = carry_out(trainer, replica, instruction)
        if isinstance(instruction, StepBegins) and trainer in seconds:
            time.sleep(seconds[trainer])
        return came

    RunningRole._open_feed = open_paced  # type: ignore[method-assign]
    Trainer._carry_out = carry_out_paced  # type: ignore[method-assign]

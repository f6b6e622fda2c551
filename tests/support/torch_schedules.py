"""Schedules of learning rates as torch.optim.lr_scheduler has them: written from its own classes, not from htrain's formulas."""

import torch
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    SequentialLR,
)

from htrain.spec.schedules import CosineDecay, LinearDecay, Schedule, StepDecay


def scheduler(optimizer: torch.optim.Optimizer, schedule: Schedule) -> LRScheduler:
    """A warm-up, where there is one, and the schedule behind it."""
    warmup = schedule.warmup
    warming = [LambdaLR(optimizer, lambda update: (update + 1) / warmup)] if warmup else []
    behind, ends = _behind(optimizer, schedule)
    starts = [warmup] * bool(warmup) + [warmup + end for end in ends]
    return SequentialLR(optimizer, [*warming, *behind], starts) if starts else behind[0]


def _behind(optimizer: torch.optim.Optimizer, schedule: Schedule) -> tuple[list[LRScheduler], list[int]]:
    """Schedulers, and where all but the last end."""
    if isinstance(schedule, LinearDecay):
        return [LinearLR(optimizer, start_factor=1.0, end_factor=schedule.share, total_iters=schedule.decay)], []
    if isinstance(schedule, CosineDecay):
        bottom = schedule.share * float(optimizer.param_groups[0]["initial_lr" if schedule.warmup else "lr"])
        falling = CosineAnnealingLR(optimizer, T_max=schedule.decay, eta_min=bottom)
        # torch's goes up again behind T_max
        return [falling, LambdaLR(optimizer, lambda update: schedule.share)], [schedule.decay]
    if isinstance(schedule, StepDecay):
        return [MultiStepLR(optimizer, [int(m) for m in schedule.milestones.split(",")], gamma=schedule.gamma)], []
    return [ConstantLR(optimizer, factor=1.0)], []

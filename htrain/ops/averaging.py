"""What a dense PS does with the snapshots of all groups: it adds them up, and steps its centre by their mean once all have come.

The centre is where groups began their block of steps; of the mean of where they have come to, G = mean - centre is what the block has learned:

    AverageSnapshots   centre = mean                                          model averaging
    BlockStep          momentum = decay * momentum + lr * G                   blockwise model-update filtering (Chen and Huo 2016), its W being
                       centre += momentum                                     classical block momentum
                       centre += momentum + decay * (momentum - its last)     Nesterov block momentum: the centre is W + decay * momentum
"""

import torch

from htrain.ops.base import OpDef, no_outputs, same_as_input


def _mean_of_all(
    total: torch.Tensor, arrived: torch.Tensor, snapshot: torch.Tensor, groups: int
) -> torch.Tensor | None:
    """The mean of the snapshots, if this is the last; the next round then begins with none."""
    total.add_(snapshot)
    arrived.add_(1)
    if int(arrived) < groups:
        return None
    mean = total / groups
    total.zero_()
    arrived.zero_()
    return mean


def _average(
    centre: torch.Tensor, total: torch.Tensor, arrived: torch.Tensor, snapshot: torch.Tensor, *, groups: int
) -> None:
    mean = _mean_of_all(total, arrived, snapshot, groups)
    if mean is not None:
        centre.copy_(mean)


def _block_step(
    centre: torch.Tensor, momentum: torch.Tensor, total: torch.Tensor, arrived: torch.Tensor, snapshot: torch.Tensor,
    *, groups: int, decay: float, lr: float, nesterov: bool,
) -> None:  # fmt: skip
    mean = _mean_of_all(total, arrived, snapshot, groups)
    if mean is None:
        return
    learned = mean.sub_(centre)
    if nesterov:
        centre.sub_(momentum, alpha=decay)
    momentum.mul_(decay).add_(learned, alpha=lr)
    centre.add_(momentum, alpha=1 + decay if nesterov else 1)


def _off_centre(centre: torch.Tensor, snapshot: torch.Tensor, *, alpha: float, barrier: bool) -> torch.Tensor:
    return (snapshot - centre).mul_(alpha)


DEFINITIONS = (
    OpDef("AverageSnapshots", _average, no_outputs, gradient=None, effects=True, writes=(0, 1, 2)),
    OpDef("BlockStep", _block_step, no_outputs, gradient=None, effects=True, writes=(0, 1, 2, 3)),
    # With `barrier`, it waits until the snapshots of all groups have come.
    OpDef("OffCentre", _off_centre, same_as_input(1), gradient=None, effects=True),
)

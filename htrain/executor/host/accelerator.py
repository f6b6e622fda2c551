"""Which of a role's nets compute on an accelerator, and on which one (cDLRM 5)."""

from collections.abc import Collection

import torch

from htrain.errors import RunError
from htrain.net.names import TRAINER, Role, role_of
from htrain.net.net import Net
from htrain.ops.accelerated import use
from htrain.transform.accelerate import accelerate, accelerated_parameters


class Host:
    """No accelerator: nets as they are."""

    def net_of(self, step: Net) -> Net:
        """The net of a step, as it is run: on a CPU, without a change."""
        return step

    def parameters_of(self, net: Net) -> Collection[str]:
        """The names of those of its parameters that are on an accelerator: none."""
        return ()


class Accelerator(Host):
    """A trainer's accelerator, which all its steps use. `device` is this process's from now on."""

    def __init__(self, device: torch.device) -> None:
        use(device)

    def net_of(self, step: Net) -> Net:
        """The net of a step, as it runs there."""
        return accelerate(step)

    def parameters_of(self, net: Net) -> Collection[str]:
        """Those of its parameters that are there."""
        return accelerated_parameters(net)


def accelerator_of(role: str, device: str) -> Host:
    """What a role computes on, where a trainer's device is `device`; trainers of one machine take its devices in turn.

    Raises RunError where there is none.
    """
    if role_of(role) != TRAINER or device == "cpu":
        return Host()
    return Accelerator(cuda_device(Role.parse(role).group or 0))


def cuda_device(turn: int) -> torch.device:
    """A CUDA device of this machine. Raises RunError."""
    if not torch.cuda.is_available():
        raise RunError(
            f"the plan has its trainers compute on CUDA devices, and torch {torch.__version__} finds none here: compile it with --cache-device cpu"
        )
    return torch.device("cuda", turn % torch.cuda.device_count())

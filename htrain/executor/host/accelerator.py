"""Which of a role's nets compute on an accelerator, and on which one (cDLRM 5)."""

from collections.abc import Mapping

import torch

from htrain.errors import RunError
from htrain.net.names import TRAINER, Role, role_of
from htrain.net.net import Net
from htrain.transform.accelerate import accelerate, accelerated_parameters


class Host:
    """No accelerator: nets as they are."""

    def net_of(self, step: Net) -> Net:
        """The net of a step, as it is run: on a CPU, without a change."""
        return step

    def places_of(self, net: Net) -> Mapping[str, torch.device]:
        """Where those of its parameters are that are not in host memory: none."""
        return {}


class Accelerator(Host):
    """A trainer's accelerator, which all its steps use."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def net_of(self, step: Net) -> Net:
        """The net of a step, as it runs there."""
        return accelerate(step, str(self._device))

    def places_of(self, net: Net) -> Mapping[str, torch.device]:
        """Those of its parameters that are there."""
        return dict.fromkeys(accelerated_parameters(net), self._device)


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

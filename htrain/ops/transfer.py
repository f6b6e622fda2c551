"""The way of values to an accelerator and back (cDLRM 5.2.2)."""

import torch

from htrain.ops.accelerated import device
from htrain.ops.base import OpDef, same_as_input


def _to_accelerator(x: torch.Tensor) -> torch.Tensor:
    return x.to(device(), non_blocking=True)


def _to_host(x: torch.Tensor) -> torch.Tensor:
    return x.cpu()


DEFINITIONS = (
    OpDef("ToAccelerator", _to_accelerator, same_as_input(0), gradient=None, work="message"),
    OpDef("ToHost", _to_host, same_as_input(0), gradient=None, work="message"),
)

"""What a role holds: the parameters of its nets, filled by its init nets."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from htrain.errors import PlanError
from htrain.net import Net, Op, Parameter
from htrain.ops import OPS
from htrain.ops.base import dtype_of
from htrain.plan import VALUES_FILE

Store = dict[str, torch.Tensor]


def allocate(net: Net) -> Store:
    """Uninitialised memory for every parameter of `net`; pages are taken from the machine when they are first written."""
    return {name: torch.empty(p.shape, dtype=dtype_of(p.dtype)) for name, p in net.parameters.items()}


def fill(store: Store, init_net: Net, folder: Path) -> None:
    """Give parameters their first values, as `init_net` says; files come from the plan's `folder`. Raises PlanError."""
    for op in init_net.ops:
        if op.type == "FileFill":
            _load(store[op.inputs[0]], init_net.parameters[op.inputs[0]], op, folder / "params" / VALUES_FILE)
        else:
            OPS[op.type].kernel(store[op.inputs[0]], **op.attrs)


def _load(target: torch.Tensor, parameter: Parameter, op: Op, path: Path) -> None:
    try:
        with safe_open(path, "pt") as file:
            value = (
                _part(file.get_slice(parameter.whole), parameter) if target.dim() else file.get_tensor(parameter.whole)
            )
        target.copy_(value)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise PlanError(f"{path}: no usable value of '{parameter.name}': {' '.join(str(error).split())}") from error


def _part(whole: Any, parameter: Parameter) -> torch.Tensor:
    """The rows and columns of `whole`, a slice of a file, that the parameter holds."""
    rows = slice(parameter.first_row, parameter.first_row + parameter.shape[0])
    if len(parameter.shape) < 2 or (not parameter.first_column and whole.get_shape()[1] == parameter.shape[1]):
        return whole[rows]
    return whole[rows, parameter.first_column : parameter.first_column + parameter.shape[1]]

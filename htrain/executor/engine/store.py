"""What a role holds: the parameters of its nets, filled by its init nets."""

import math
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from htrain.errors import PlanError, RunError
from htrain.executor.host.memory import empty
from htrain.executor.host.parameter_memory import ParameterMemory
from htrain.net.net import Net, Op, Parameter
from htrain.ops import OPS
from htrain.ops.base import dtype_of
from htrain.ops.init import fill_rows
from htrain.plan.plan import values_file

Store = dict[str, torch.Tensor]
_ROWS_AT_ONCE = 1 << 18


def allocate(
    net: Net,
    mapped: Path | None = None,
    places: Mapping[str, torch.device] = MappingProxyType({}),
    joined: Iterable[Sequence[str]] = (),
    *,
    shared: bool = False,
    kept: ParameterMemory | None = None,
) -> Store:
    """Uninitialised memory for every parameter of `net` but caches, on an accelerator where `places` say so, or `shared` with the
    processes that this one forks, or `kept` for the next process of the role; pages are taken from the machine when they are first written.

    Tables that are `joined` lie in one piece of memory, one behind the other. With a folder `mapped`, tables and their states lie in files there,
    which are gone when the process is. Raises RunError when the disk, or memory, has no room.
    """
    store: Store = {}
    for names in joined:
        store.update(_in_one_piece([net.parameters[name] for name in names], mapped, shared=shared))
    for name, parameter in net.parameters.items():
        if kept and parameter.kind != "cache":
            store[name] = kept.piece(parameter.shape, dtype_of(parameter.dtype))
        elif name in places and parameter.kind != "cache":
            store[name] = torch.empty(parameter.shape, dtype=dtype_of(parameter.dtype), device=places[name])
        elif name not in store and parameter.kind != "cache":
            place = mapped if net.holds_rows(parameter) else None
            store[name] = _piece(parameter.shape, parameter.dtype, place, shared=shared)
    return store


def _piece(shape: tuple[int, ...], dtype: str, mapped: Path | None, *, shared: bool = False) -> torch.Tensor:
    count = math.prod(shape)
    num_bytes = count * dtype_of(dtype).itemsize
    if mapped is None or not count:
        try:
            return empty(shape, dtype_of(dtype), shared=shared)
        except (OSError, RuntimeError) as error:
            raise RunError(
                f"no memory for a parameter of {num_bytes:,} bytes: give it a larger host, more PSs, or --table-store mapped"
            ) from error
    mapped.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.NamedTemporaryFile(
            dir=mapped, suffix=".table"
        ) as file:  # the mapping keeps it when its name is gone
            os.posix_fallocate(
                file.fileno(), 0, num_bytes
            )  # now: a page that finds no room later would kill the process
            return torch.from_file(file.name, shared=True, size=count, dtype=dtype_of(dtype)).reshape(shape)
    except (OSError, RuntimeError) as error:
        raise RunError(
            f"{mapped}: no room for a table of {num_bytes:,} bytes: {' '.join(str(error).split())}"
        ) from error


def _in_one_piece(parameters: Sequence[Parameter], mapped: Path | None, *, shared: bool = False) -> Store:
    if not parameters:
        return {}
    rows = [p.shape[0] for p in parameters]
    whole = _piece((sum(rows), *parameters[0].shape[1:]), parameters[0].dtype, mapped, shared=shared)
    return dict(zip((p.name for p in parameters), whole.split(rows), strict=True))


def whole_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The piece of memory that consecutive parts were cut from."""
    rows = sum(len(part) for part in parts)
    return parts[0].as_strided((rows, *parts[0].shape[1:]), parts[0].stride(), parts[0].storage_offset())


Originals = Callable[[Parameter], NDArray[np.int64] | None]


def fill(store: Store, init_net: Net, folder: Path, originals: Originals = lambda parameter: None) -> None:
    """Give parameters their first values, as `init_net` says; files come from the plan's `folder`. Raises PlanError.

    Row r of a parameter is row `originals`(parameter)[r] of its whole, where these are numbered anew.
    """
    values = values_file(folder) if any(op.type == "FileFill" for op in init_net.ops) else folder
    for op in init_net.ops:
        target = store[op.inputs[0]]
        rows = originals(init_net.parameters[op.inputs[0]])
        if rows is not None:
            if op.type == "FileFill":
                _load_rows(target, init_net.parameters[op.inputs[0]], rows, values)
            else:
                fill_rows(op, target, rows)
        elif op.type == "FileFill":
            _load(target, init_net.parameters[op.inputs[0]], op, values)
        elif target.device.type == "cpu":
            OPS[op.type].kernel(target, **op.attrs)
        else:
            made = torch.empty_like(target, device="cpu")
            OPS[op.type].kernel(made, **op.attrs)
            target.copy_(made)


def _load(target: torch.Tensor, parameter: Parameter, op: Op, path: Path) -> None:
    try:
        with safe_open(path, "pt") as file:
            value = (
                _part(file.get_slice(parameter.whole), parameter) if target.dim() else file.get_tensor(parameter.whole)
            )
        target.copy_(value)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise PlanError(f"{path}: no usable value of '{parameter.name}': {' '.join(str(error).split())}") from error


def _load_rows(target: torch.Tensor, parameter: Parameter, rows: NDArray[np.int64], path: Path) -> None:
    """Rows of a table from anywhere in its file, which is read once, a part after another."""
    order = np.argsort(rows, kind="stable")
    try:
        with safe_open(path, "pt") as file:
            whole = file.get_slice(parameter.whole)
            for first in range(0, whole.get_shape()[0], _ROWS_AT_ONCE):
                begin, end = np.searchsorted(rows, (first, first + _ROWS_AT_ONCE), sorter=order)
                if begin < end:
                    here = torch.from_numpy(order[begin:end])
                    target[here] = whole[first : first + _ROWS_AT_ONCE][torch.from_numpy(rows)[here] - first]
    except (SafetensorError, OSError, RuntimeError, IndexError) as error:
        raise PlanError(f"{path}: no usable value of '{parameter.name}': {' '.join(str(error).split())}") from error


def _part(whole: Any, parameter: Parameter) -> torch.Tensor:
    """The rows and columns of `whole`, a slice of a file, that the parameter holds."""
    rows = slice(parameter.first_row, parameter.first_row + parameter.shape[0])
    if len(parameter.shape) < 2 or (not parameter.first_column and whole.get_shape()[1] == parameter.shape[1]):
        return whole[rows]
    return whole[rows, parameter.first_column : parameter.first_column + parameter.shape[1]]

"""What a model's own code fills its parameters with, recorded as it runs: a tensor need not have memory for it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from htrain.net.net import Init


class Recorder(TorchDispatchMode):
    """The last fill of every storage, as an Init. Arithmetic with numbers on a whole fill is one: `torch.randn(n, d) * 0.02`."""

    def __init__(self) -> None:
        super().__init__()
        self._inits: dict[int, Init] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        before = self._inits.get(_storage(args[0])) if args and isinstance(args[0], torch.Tensor) else None
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _FILLS:
            self._filled(args[0], _FILLS[name](args, kwargs or {}))
        elif name.removesuffix("_") in _CHANGED and before is not None:
            self._keep(result, _changed(name.removesuffix("_"), before, args, result))
        elif isinstance(result, torch.Tensor) and name in _MADE:
            self._keep(result, _MADE[name](args))
        elif (
            name.endswith("_")
            and not name.endswith("__")
            and args
            and isinstance(args[0], torch.Tensor)
            and name not in _HARMLESS
        ):
            self._inits.pop(_storage(args[0]), None)
        else:
            self._forget(result, args)
        return result

    def _keep(self, tensor: torch.Tensor, init: Init | None) -> None:
        self._inits.pop(_storage(tensor), None)
        if init is not None and tensor.layout == torch.strided:
            self._inits[_storage(tensor)] = init

    def _forget(self, result: Any, args: tuple) -> None:
        """What is known of memory that somebody else had before."""
        given = {_storage(a) for a in args if isinstance(a, torch.Tensor)}
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor) and _storage(made) not in given:
                self._inits.pop(_storage(made), None)

    def _filled(self, tensor: torch.Tensor, init: Init) -> None:
        if tensor.layout != torch.strided:
            return
        key = _storage(tensor)
        whole = self._inits.get(key)
        size = tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
        if tensor.numel() == size:
            self._inits[key] = init
        elif whole and init == Init("constant", (0.0,)) and tensor.dim() == 1 and size % tensor.numel() == 0:
            self._inits[key] = replace(whole, zero_rows=(*whole.zero_rows, tensor.storage_offset() // tensor.numel()))
        else:
            self._inits.pop(key, None)

    def init_of(self, parameter: nn.Parameter) -> Init | None:
        """How a parameter was filled last; None when that was not seen."""
        return self._inits.get(_storage(parameter))


def _storage(tensor: torch.Tensor) -> int:
    """A number that is the same for tensors in one piece of memory; -1, of which nothing is kept, for a sparse one."""
    return -1 if tensor.layout != torch.strided else int(tensor.untyped_storage()._cdata)


def _number(args: tuple, kwargs: dict, position: int, name: str, default: float) -> float:
    return float(args[position] if len(args) > position else kwargs.get(name, default))


_FILLS: dict[str, Callable[[tuple, dict], Init]] = {
    "uniform_": lambda a, k: Init("uniform", (_number(a, k, 1, "from", 0.0), _number(a, k, 2, "to", 1.0))),
    "normal_": lambda a, k: Init("normal", (_number(a, k, 1, "mean", 0.0), _number(a, k, 2, "std", 1.0))),
    "fill_": lambda a, k: Init("constant", (float(a[1]),)),
    "zero_": lambda a, k: Init("constant", (0.0,)),
}
_MADE: dict[str, Callable[[tuple], Init | None]] = {
    "empty": lambda a: None,
    "empty_strided": lambda a: None,
    "zeros": lambda a: Init("constant", (0.0,)),
    "ones": lambda a: Init("constant", (1.0,)),
    "full": lambda a: Init("constant", (float(a[1]),)),
    "rand": lambda a: Init("uniform", (0.0, 1.0)),
    "randn": lambda a: Init("normal", (0.0, 1.0)),
}
_CHANGED: dict[str, Callable[[float, float], float]] = {
    "mul": lambda x, c: x * c,
    "div": lambda x, c: x / c,
    "add": lambda x, c: x + c,
    "sub": lambda x, c: x - c,
}


def _changed(name: str, before: Init, args: tuple, result: torch.Tensor) -> Init | None:
    """The init of what arithmetic with a number makes of a whole fill; None for other arithmetic."""
    source, number = args[0], args[1] if len(args) == 2 else None
    whole = source.numel() * source.element_size() == source.untyped_storage().nbytes()
    shifts = name in ("add", "sub")
    usual = isinstance(number, int | float) and source.dtype == result.dtype and bool(number or name != "div")
    if not (usual and whole and result.is_contiguous()) or (before.zero_rows and shifts):
        return None
    first, second = before.arguments[0], before.arguments[-1]
    low = _CHANGED[name](first, number)  # type: ignore[arg-type]
    if before.kind == "constant":
        return replace(before, arguments=(low,))
    if before.kind == "normal":
        return replace(before, arguments=(low, second if shifts else abs(_CHANGED[name](second, number))))  # type: ignore[arg-type]
    high = _CHANGED[name](second, number)  # type: ignore[arg-type]
    return replace(before, arguments=(min(low, high), max(low, high)))


_HARMLESS = frozenset({"requires_grad_", "detach_", "resize_", "set_"})

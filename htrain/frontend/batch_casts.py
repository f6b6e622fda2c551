"""float(), int() and some functions of math and numpy of the size of a batch while a model is captured: their own fix the batch, or know no symbols."""

import builtins
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

_SYMBOLS = (torch.SymInt, torch.SymFloat)


class _Kind(type):
    """A class whose instances are those of Python's own."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.__mro__[1])

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.__mro__[1])


class _Float(float, metaclass=_Kind):
    def __new__(cls, *given: Any) -> Any:
        return torch.sym_float(given[0]) if given and isinstance(given[0], _SYMBOLS) else builtins.float(*given)


class _Int(int, metaclass=_Kind):
    def __new__(cls, *given: Any, **named: Any) -> Any:
        return torch.sym_int(given[0]) if given and isinstance(given[0], _SYMBOLS) else builtins.int(*given, **named)


def _root(x: Any, /) -> Any:
    return x**0.5 if isinstance(x, _SYMBOLS) else math.sqrt(x)


def _log(x: Any, /, *base: Any) -> Any:
    """Of a symbol a tensor without dimensions: a graph has no such function of numbers."""
    if not isinstance(x, _SYMBOLS):
        return math.log(x, *base)
    natural = torch.scalar_tensor(torch.sym_float(x), dtype=torch.float64).log()
    return natural / math.log(*base) if base else natural


def _log2(x: Any, /) -> Any:
    return _log(x, 2) if isinstance(x, _SYMBOLS) else math.log2(x)


def _of_symbols(original: Any, of_symbol: Callable[..., Any]) -> Any:
    """A function of numpy, but of symbols, which numpy takes for objects that it knows nothing of."""

    def function(*given: Any, **named: Any) -> Any:
        symbols = not named and any(isinstance(value, _SYMBOLS) for value in given)
        return of_symbol(*given) if symbols else original(*given, **named)

    return function


class _Module:
    """A module, of which functions that are not told here are its own."""

    def __init__(self, module: Any, told: dict[str, Any]) -> None:
        self._module = module
        self.__dict__.update(told)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


_MODULES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (math, {"sqrt": _root, "log": _log, "log2": _log2}),
    (
        np,
        {
            "sqrt": _of_symbols(np.sqrt, _root),
            "log": _of_symbols(np.log, _log),
            "log2": _of_symbols(np.log2, _log2),
            "log10": _of_symbols(np.log10, lambda x: _log(x, 10)),
        },
    ),
)
_FUNCTIONS = tuple((getattr(module, name), ours) for module, told in _MODULES for name, ours in told.items())
_IN_PLACE_OF: dict[str, Any] = {"float": _Float, "int": _Int}


@contextmanager
def symbolic_casts(model: nn.Module) -> Iterator[None]:
    """Within, the code of the model's own modules gets a symbol from float(), int(), and sqrt(), log() and log2() of math and numpy of one.

    Names are put into the globals of its files alone: what asks there whether a type is float gets another answer, so that it is only for a model that
    cannot be captured without.
    """
    undone: list[Callable[[], object]] = []
    try:
        for names in _globals_of(model):
            for name, value in _replaced(names):
                undone.append(
                    partial(names.__setitem__, name, names[name]) if name in names else partial(names.pop, name)
                )
                names[name] = value
        yield
    finally:
        for undo in reversed(undone):
            undo()


def _replaced(names: dict[str, Any]) -> list[tuple[str, Any]]:
    """What stands in for which global name of a file."""
    found = [(name, value) for name, value in _IN_PLACE_OF.items() if name not in names]
    found += [(name, ours) for name, value in names.items() for theirs, ours in _FUNCTIONS if value is theirs]
    return found + [
        (name, _Module(module, told)) for name, value in names.items() for module, told in _MODULES if value is module
    ]


def _globals_of(model: nn.Module) -> list[dict[str, Any]]:
    """The globals of the files that the classes of the model's modules are from, and of their packages."""
    classes = {kind for module in model.modules() for kind in type(module).__mro__ if _is_users(kind.__module__)}
    found = {
        id(names): names
        for kind in classes
        for function in vars(kind).values()
        if isinstance(names := getattr(function, "__globals__", None), dict) and _is_users(str(names.get("__name__")))
    }
    packages = {kind.__module__.partition(".")[0] for kind in classes}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in packages and hasattr(module, "__dict__"):
            found[id(vars(module))] = vars(module)
    return list(found.values())


def _is_users(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in ("torch", "htrain", "numpy") and (top == "__main__" or top not in sys.stdlib_module_names)

"""len(), max() and min() while a model is captured: of a tensor, or of an object that holds a batch, a symbol where that is the batch."""

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from types import FunctionType
from typing import Any

import torch

_SYMBOLS = (torch.SymInt, torch.SymFloat)
_PLAIN = frozenset({tuple, list, dict, str, set, frozenset, bytes, range})


@contextmanager
def symbolic_lengths() -> Iterator[None]:
    """Within, len(x) of a tensor is x.shape[0], and of an object what its __len__() returns; Python's own makes a number of what it is given, which would
    fix the batch to that of the example.

    max() and min() of numbers among which one is a symbol are symbols: Python's own compares them by an `if`, and torch has the like for two whole numbers.

    It holds for all code that asks while this lasts, as these are names of `builtins`; what they give for anything else is the same.
    """
    original, largest, smallest = builtins.len, builtins.max, builtins.min

    def length(x: Any, /) -> Any:
        if type(x) in _PLAIN:  # as torch's own code asks a hundred thousand times
            return original(x)
        if isinstance(x, torch.Tensor) and x.dim() and isinstance(x.shape[0], torch.SymInt):
            return x.shape[0]
        own = getattr(type(x), "__len__", None)
        if isinstance(own, FunctionType) and isinstance(count := own(x), int | torch.SymInt):  # written in Python
            return count if isinstance(count, torch.SymInt) or count >= 0 else original(x)
        return original(x)

    builtins.len, builtins.max, builtins.min = (
        length,
        _extreme(largest, torch.sym_max),
        _extreme(smallest, torch.sym_min),
    )
    try:
        yield
    finally:
        builtins.len, builtins.max, builtins.min = original, largest, smallest


def _extreme(original: Any, of_two: Any) -> Any:
    def extreme(*values: Any, **given: Any) -> Any:
        symbols = any(type(value) in _SYMBOLS for value in values)
        if len(values) < 2 or given or not symbols or not all(map(_is_number, values)):
            return original(*values, **given)
        return reduce(of_two, values)

    return extreme


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | torch.SymInt | torch.SymFloat)

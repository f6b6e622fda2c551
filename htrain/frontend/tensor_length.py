"""len() of a tensor, or of an object that holds a batch, while a model is captured: a symbol where that is the batch."""

import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch


@contextmanager
def symbolic_lengths() -> Iterator[None]:
    """Within, len(x) of a tensor is x.shape[0], and of an object what its __len__() returns; Python's own makes a number of what it is given, which would
    fix the batch to that of the example.

    It holds for all code that asks while this lasts, as `len` is a name of `builtins`; what it gives for anything but such a tensor is the same.
    """
    original = builtins.len

    def length(x: Any, /) -> Any:
        if isinstance(x, torch.Tensor) and x.dim() and isinstance(x.shape[0], torch.SymInt):
            return x.shape[0]
        own = getattr(type(x), "__len__", None)
        if isinstance(own, FunctionType) and isinstance(count := own(x), int | torch.SymInt):  # written in Python
            return count if isinstance(count, torch.SymInt) or count >= 0 else original(x)
        return original(x)

    builtins.len = length
    try:
        yield
    finally:
        builtins.len = original

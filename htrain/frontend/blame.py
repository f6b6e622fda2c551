"""Where in the user's model an error of torch came up."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_PYTHON = os.path.dirname(os.__file__) + os.sep
_CAPTURE = os.path.join(os.path.dirname(__file__), "torch_export.py")
_OTHERS = tuple(os.path.dirname(path) + os.sep for path in (torch.__file__, np.__file__, __file__))


def place_of(model: nn.Module, error: BaseException) -> str:
    """Where in the model `error` came up, by its traceback: ` (in module 'top.0', model.py:31)`, or "" where it does
    not say.

    It is the innermost op or module that ran, and the innermost line that is neither torch's, NumPy's nor htrain's.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    place = line = ""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        path, node = paths.get(id(_first_argument(frame))), frame.f_locals.get("n")
        if isinstance(node, fx.Node):  # torch runs the graph again
            modules = list((node.meta.get("nn_module_stack") or {}).values())
            place = f"{node.target} of {_named(str(modules[-1][0]) if modules else '')}"
        elif path is not None:
            place = _named(path)
        if place and not frame.f_code.co_filename.startswith(_OTHERS):
            line = f", {frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f" (in {place}{line})" if place else ""


@contextmanager
def noted_guards() -> Iterator[list[str]]:
    """Within, a list fills with the lines of a model, ` (model.py:31)`, that asked for a size in a way that holds for some batches only.

    torch says at the end of a capture that a size was fixed, and not where. The first line that left one size alone comes first.
    """
    places: list[str] = []
    fixing = 0
    patched: Any = ShapeEnv
    original = patched.evaluate_expr

    def evaluate(self: Any, *args: Any, **given: Any) -> Any:
        nonlocal fixing
        guards, known = len(self.guards), set(self.replacements)
        value = original(self, *args, **given)
        fixes = any(self.replacements[symbol].is_number for symbol in set(self.replacements) - known)
        if (fixes or len(self.guards) > guards) and (line := _users_line(sys._getframe(1))):
            places.insert(fixing if fixes else len(places), line)
            fixing += fixes
        return value

    patched.evaluate_expr = evaluate
    try:
        yield places
    finally:
        patched.evaluate_expr = original


def _users_line(frame: FrameType | None) -> str:
    """The innermost line that is neither torch's, NumPy's, htrain's nor Python's own; "" where there is none within a capture."""
    while frame is not None and not frame.f_code.co_filename.endswith(_CAPTURE):
        name = frame.f_code.co_filename
        if not name.startswith(_OTHERS) and (not name.startswith(_PYTHON) or "site-packages" in name):
            return f" ({name}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


def _first_argument(frame: FrameType) -> object:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return frame.f_locals.get(names[0]) if names else None


def _named(path: str) -> str:
    return f"module '{path}'" if path else "its forward()"

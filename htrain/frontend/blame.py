"""Where in the user's model an error of torch came up."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

_PYTHON = os.path.dirname(os.__file__) + os.sep
_CAPTURE = os.path.join(os.path.dirname(__file__), "torch_export.py")
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_OTHERS = (_TORCH, _HERE, os.path.dirname(np.__file__) + os.sep)
# Of torch's own code: its symbols, and what stands in for max(), min() and torch's functions while a model is captured. They ask what their caller asks.
_BETWEEN = (
    _HERE,
    os.path.join(_TORCH, "fx", "experimental") + os.sep,
    os.path.join(_TORCH, "__init__.py"),
    os.path.join(_TORCH, "_export", "non_strict_utils.py"),
)
_OF_PYTHON = ("__bool__", "__int__", "__index__", "__float__")


@dataclass(frozen=True)
class Guards:
    """Lines of a model, ` (model.py:31)`, that asked for a number."""

    fixing: list[str] = field(default_factory=list)  # in a way that holds for some sizes of a batch only
    by_values: list[str] = field(default_factory=list)  # that depends on the values of a batch, and got an error


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
def noted_guards() -> Iterator[Guards]:
    """Within, lines of a model are noted that ask for a size in a way that holds for some batches only, or for what the values of a batch say.

    torch says at the end of a capture that a size was fixed, and not where. The first line that left one size alone comes first. And the model's code may
    catch the error that torch raises where the values of a batch decide: what it does then is not what it does with values.
    """
    noted = Guards()
    fixing = 0
    patched: Any = ShapeEnv
    original = patched.evaluate_expr

    def evaluate(self: Any, *args: Any, **given: Any) -> Any:
        nonlocal fixing
        guards, known = len(self.guards), set(self.replacements)
        try:
            value = original(self, *args, **given)
        except GuardOnDataDependentSymNode:
            if asked_by_model():
                noted.by_values.append(users_line(sys._getframe(1)))
            raise
        fixes = any(self.replacements[symbol].is_number for symbol in set(self.replacements) - known)
        if (fixes or len(self.guards) > guards) and (line := users_line(sys._getframe(1))):
            noted.fixing.insert(fixing if fixes else len(noted.fixing), line)
            fixing += fixes
        return value

    patched.evaluate_expr = evaluate
    try:
        yield noted
    finally:
        patched.evaluate_expr = original


def asked_by_model() -> bool:
    """Whether an `if` of code that is not torch's, or another use of a number by Python, is what asks torch for one."""
    frame, by_python = asking()
    return by_python and (frame is None or not frame.f_code.co_filename.startswith(_TORCH))


def asking() -> tuple[FrameType | None, bool]:
    """The innermost code that asks torch for a number, and not for its caller; and whether it uses it as a number of Python's."""
    frame: FrameType | None = sys._getframe(1)
    by_python = False
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        name = frame.f_code.co_name  # of a tensor, it is a function of torch's that a mode is given
        name = getattr(frame.f_locals.get("func"), "__name__", "") if name == "__torch_function__" else name
        by_python = by_python or name in _OF_PYTHON
        frame = frame.f_back
    return frame, by_python


def users_line(frame: FrameType | None) -> str:
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

"""Where in the user's model an error of torch came up."""

import os
from types import FrameType

import torch
from torch import fx, nn

_OTHERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


def place_of(model: nn.Module, error: BaseException) -> str:
    """Where in the model `error` came up, by its traceback: ` (in module 'top.0', model.py:31)`, or "" where it does
    not say.

    It is the innermost op or module that ran, and the innermost line that is neither torch's nor htrain's.
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


def _first_argument(frame: FrameType) -> object:
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return frame.f_locals.get(names[0]) if names else None


def _named(path: str) -> str:
    return f"module '{path}'" if path else "its forward()"

"""A model of models/ is captured once by a process of tests: torch.export was a third of their time.

What is remembered is torch's program, which nobody changes; all that htrain makes of it is made anew. Other models, and those with values, are captured
each time: their code may be another under the same name.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from htrain.frontend import torch_model
from htrain.frontend.torch_export import export

ZOO = Path(__file__).parents[2] / "models"
_PLAIN = (int, float, bool, str, type(None))
_PROGRAMS: dict[object, ExportedProgram] = {}


def remember_captures() -> None:
    torch_model.export = _remembered


def _remembered(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> ExportedProgram:
    key = _key(model, example_inputs)
    if key is None:
        return export(model, example_inputs)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = export(model, example_inputs)
    return _PROGRAMS[key]


def _key(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> object:
    """All that a program depends on, or None where that is not known."""
    parts = [_module_key(name, module) for name, module in model.named_modules(remove_duplicate=False)]
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    if None in parts or not all(tensor.is_meta for _, tensor in tensors):
        return None
    first = {id(tensor): name for name, tensor in reversed(tensors)}
    shapes = [(name, first[id(t)], tuple(t.shape), t.dtype, t.requires_grad) for name, t in tensors]
    inputs = [(name, tuple(t.shape), t.dtype) for name, t in example_inputs.items()]
    return (tuple(parts), tuple(shapes), tuple(inputs))


def _module_key(name: str, module: nn.Module) -> object:
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return None
    if (
        not kind.__module__.startswith("torch.nn.")
        and Path(inspect.unwrap(kind.forward).__code__.co_filename).parent != ZOO
    ):
        return None
    own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    if not all(_is_plain(value) for value in own.values()):
        return None
    hooks = [key for key, value in vars(module).items() if key.endswith("_hooks") and value]
    return None if hooks else (name, kind.__module__, kind.__qualname__, repr(sorted(own.items())))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)

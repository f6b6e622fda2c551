"""Parameters that a forward() has hold of otherwise than as attributes of modules: in a list for a penalty, say, or a closure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode

from htrain.frontend.shared_memory import memory_of

_NOTHING: Mapping[str, Any] = {}


class ListedParameters(TorchFunctionMode):
    """Within, they are what the modules have in their places, which a capture follows: it would take what a list has for a constant."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._places = {
            id(parameter): (module._parameters, name, parameter)
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        }

    def are_constants_of(self, program: ExportedProgram) -> bool:
        """Whether some of them are constants of a program that was captured without this."""
        held = {memory_of(parameter) for _, _, parameter in self._places.values() if _has_memory(parameter)}
        return any(_has_memory(each) and memory_of(each) in held for each in program.constants.values())

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call `function` with what stands for each parameter among its arguments."""
        named = {name: self._in_place(value) for name, value in (kwargs or _NOTHING).items()}
        return function(*map(self._in_place, args), **named)

    def _in_place(self, value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in value):
            return type(value)(map(self._in_place, value)) if type(value) in (list, tuple) else value
        if not isinstance(value, nn.Parameter) or id(value) not in self._places:
            return value
        space, name, parameter = self._places[id(value)]
        return space.get(name, value) if value is parameter else value


def _has_memory(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and value.numel() > 0

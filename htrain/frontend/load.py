"""A model from its name: built on the meta device, with the first values of its parameters read off its own init code.

A model with 10^12 parameters is built without memory: while the factory runs, every in-place fill (uniform_, normal_, fill_, zero_)
is recorded instead of carried out, and becomes the parameter's `Init` in the plan.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from htrain.data.schema import Schema
from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.net.net import Init
from htrain.own.code import attribute_of, import_place, user_code

_EXAMPLE_BATCH = 6  # torch.export takes sizes of 0 and 1 for constants
_SMALL_BYTES = 1 << 30  # a larger model is not built with values
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class LoadedModel:
    """A module, example inputs for its forward(), and the inits of its parameters by name (none for a module with values)."""

    module: nn.Module
    example_inputs: Mapping[str, torch.Tensor]
    inits: Mapping[str, Init]

    def initialised(self, captured: Captured) -> Captured:
        """`captured` with the recorded inits on its parameters."""
        parameters = {
            name: replace(p, init=self.inits.get(name, p.init)) for name, p in captured.net.parameters.items()
        }
        return replace(captured, net=replace(captured.net, parameters=parameters))


def load_model(spec: str, schema: Schema) -> LoadedModel:
    """The model of `path/model.py[:factory]` or `package.module:factory`; the factory's name is `build` where none is given.

    The factory is called with `schema` if it takes it. Example inputs come from the file's `example_inputs(batch_size)`, or from
    `schema` by the names of forward()'s arguments. Raises ModelError in one line for whatever is missing or fails.
    """
    place, _, name = spec.partition(":")
    module = import_place(place)
    factory = attribute_of(module, name or "build", spec)
    if not callable(factory):
        raise ModelError(
            f"{place}: has no function '{name or 'build'}': give one that returns the model, as {place}:FACTORY"
        )
    recorder = _Recorder()
    with torch.device("meta"), recorder:
        model = _call(spec, factory, schema)
    missing = [n for n, p in model.named_parameters() if recorder.init_of(p) is None]
    if missing:
        model = _on_cpu(spec, factory, schema, model, missing[0])
        return LoadedModel(model, _example_inputs(module, model, schema), {})
    inits = {n: init for n, p in model.named_parameters() if (init := recorder.init_of(p)) is not None}
    return LoadedModel(_with_constants(spec, factory, schema, model), _example_inputs(module, model, schema), inits)


def _call(spec: str, factory: Callable[..., Any], schema: Schema) -> nn.Module:
    with user_code(f"{spec}: building the model failed", ModelError):
        wanted = inspect.signature(factory).parameters
    asked = [p.name for p in wanted.values() if p.default is p.empty and p.kind not in _COLLECTING]
    others = [f"'{name}'" for name in asked if name != "schema"]
    if others:
        raise ModelError(
            f"{spec}: the factory wants {', '.join(others)}, but is called with `schema` or with nothing: give the others a default"
        )
    with user_code(f"{spec}: building the model failed", ModelError):
        model = factory(schema=schema) if "schema" in wanted else factory()
    if not isinstance(model, nn.Module):
        raise ModelError(f"{spec}: the factory returned a {type(model).__name__}, want a torch.nn.Module")
    return model


def _on_cpu(spec: str, factory: Callable[..., Any], schema: Schema, model: nn.Module, name: str) -> nn.Module:
    """The model with real values, where a parameter is set in a way that cannot be recorded and the model is small."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    if size > _SMALL_BYTES:
        raise ModelError(
            f"{spec}: parameter '{name}' is not set by uniform_, normal_, fill_ or zero_, and a model of {size / 1e9:.1f} GB is not built in memory: "
            f"set it with torch.nn.init"
        )
    return _call(spec, factory, schema)


def _with_constants(spec: str, factory: Callable[..., Any], schema: Schema, model: nn.Module) -> nn.Module:
    """`model` with real buffers and tensors of attributes, taken from a second build in which only parameters are on the meta device."""
    valueless = {path: names for path, module in model.named_modules() if (names := _valueless(module))}
    if not valueless:
        return model
    with _OnlyParametersOnMeta():
        built = _call(spec, factory, schema)
    for path, names in valueless.items():
        module, made = model.get_submodule(path), built.get_submodule(path)
        for name in names:
            module.__dict__[name] = made.__dict__[name]
    return model


def _valueless(module: nn.Module) -> list[str]:
    """The attributes of one module that hold tensors on the meta device: buffers, which count as one, tensors, and
    lists and dicts of tensors.
    """
    return [
        name for name, held in module.__dict__.items() if name not in ("_parameters", "_modules") and _has_meta(held)
    ]


def _has_meta(held: object) -> bool:
    if isinstance(held, dict):
        return any(map(_has_meta, held.values()))
    if isinstance(held, list | tuple):
        return any(map(_has_meta, held))
    return isinstance(held, torch.Tensor) and not isinstance(held, nn.Parameter) and held.is_meta


class _OnlyParametersOnMeta:
    """Within it, `nn.Module.register_parameter` and Embedding weights move to the meta device as soon as they are set."""

    def __enter__(self) -> None:
        self._original = nn.Module.register_parameter
        original = self._original

        def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
            small = param is None or param.is_meta or param.numel() * param.element_size() <= 1 << 20
            original(module, name, param if small else nn.Parameter(param.detach().to("meta"), param.requires_grad))  # type: ignore[union-attr]

        nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]

    def __exit__(self, *error: object) -> None:
        nn.Module.register_parameter = self._original  # type: ignore[method-assign]


class _Recorder(TorchDispatchMode):
    """The last fill of every storage, as an Init."""

    def __init__(self) -> None:
        super().__init__()
        self._inits: dict[int, Init] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in _FILLS:
            self._filled(args[0], _FILLS[name](args, kwargs or {}))
        elif isinstance(result, torch.Tensor) and name in _MADE:
            made = _MADE[name](args)
            key = _storage(result)
            self._inits.pop(key, None)
            if made is not None:
                self._inits[key] = made
        elif (
            name.endswith("_")
            and not name.endswith("__")
            and args
            and isinstance(args[0], torch.Tensor)
            and name not in _HARMLESS
        ):
            self._inits.pop(_storage(args[0]), None)
        return result

    def _filled(self, tensor: torch.Tensor, init: Init) -> None:
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
    return int(tensor.untyped_storage()._cdata)


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
_HARMLESS = frozenset({"requires_grad_", "detach_", "resize_", "set_"})


def _example_inputs(module: ModuleType, model: nn.Module, schema: Schema) -> dict[str, torch.Tensor]:
    """A small batch for forward(), from the model's file or from the schema."""
    own = attribute_of(module, "example_inputs", str(module.__file__))
    if callable(own):
        return _own_inputs(own, str(module.__file__))
    batch = example_batch(schema, _EXAMPLE_BATCH)
    wanted = [p.name for p in inspect.signature(model.forward).parameters.values()]
    missing = [name for name in wanted if name not in batch]
    if missing:
        raise ModelError(
            f"forward() of {type(model).__name__} takes '{missing[0]}', the data gives {', '.join(batch)}: rename it, choose other --data, "
            f"or put example_inputs(batch_size) into the model's file"
        )
    return {name: batch[name] for name in wanted}


def _own_inputs(own: Callable[[int], Any], file: str) -> dict[str, torch.Tensor]:
    with user_code(f"{file}: example_inputs({_EXAMPLE_BATCH}) failed", ModelError):
        inputs = dict(own(_EXAMPLE_BATCH))
    for name, value in inputs.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ModelError(f"{file}: example_inputs gave {name!r}: a {type(value).__name__}; want tensors by name")
    return inputs


def example_batch(schema: Schema, batch_size: int) -> dict[str, torch.Tensor]:
    """Tensors in the shape of a batch of `schema`, all zeros."""
    batch: dict[str, torch.Tensor] = {}
    for item in schema.inputs:
        if item.kind == "dense":
            batch[item.name] = torch.zeros(batch_size, item.width)
        elif item.kind == "bag":
            batch[item.name] = torch.zeros(batch_size * item.width, dtype=torch.int64)
            batch[f"{item.name}_offsets"] = torch.arange(batch_size) * item.width
        else:
            batch[item.name] = torch.zeros(batch_size, item.width, dtype=torch.int64)
            if item.kind == "padded":
                batch[f"{item.name}_length"] = torch.full((batch_size,), item.width)
    return batch

"""A model from its name: built without memory, with the first values of its parameters read off its own init code.

While the factory runs, every in-place fill (uniform_, normal_, fill_, zero_) is recorded instead of carried out, and becomes the
parameter's `Init` in the plan: a model with 10^12 parameters is built. What is set in another way has its value where it is small.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from htrain.data.schema import Schema
from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.frontend.keyed_features import inits_on_meta, keyed
from htrain.frontend.module_checks import check_shapes
from htrain.frontend.recorded_inits import Recorder
from htrain.net.net import Init
from htrain.own.code import attribute_of, import_place, user_code

_EXAMPLE_BATCH = 6  # torch.export takes sizes of 0 and 1 for constants
_SMALL_BYTES = 1 << 26  # a larger tensor is not built with values
_MOST_BYTES, _TINY_BYTES = 1 << 30, 1 << 20  # of all tensors with values; what may come beyond
_MAKERS = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.randint})
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class LoadedModel:
    """A module, example inputs for its forward(), and the inits of those parameters by name whose values were drawn by one."""

    module: nn.Module
    example_inputs: Mapping[str, torch.Tensor]
    inits: Mapping[str, Init]

    def initialised(self, captured: Captured) -> Captured:
        """`captured` with the recorded inits on its parameters: what a value was drawn by goes before the value."""
        values = {name: value for name, value in captured.values.items() if name not in self.inits}
        parameters = {
            name: replace(p, init=self.inits.get(name, p.init)) for name, p in captured.net.parameters.items()
        }
        return replace(captured, net=replace(captured.net, parameters=parameters), values=values)


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
    model, inits = _built(spec, factory, schema)
    model, inputs = _with_inputs(module, model, schema)
    return LoadedModel(model, inputs, inits)


def _built(spec: str, factory: Callable[..., Any], schema: Schema) -> tuple[nn.Module, dict[str, Init]]:
    """The model, and the inits of those parameters whose fill was seen; the others have values.

    It is built without any memory first. Where its code does not run so, or leaves a tensor whose values matter and are unknown, it is built with what
    is small in memory, from the same random numbers each time.
    """
    recorder = Recorder()
    try:
        with torch.device("meta"), inits_on_meta(), recorder:
            model = _call(spec, factory, schema)
    except ModelError:
        model = None
    if model is None or _unknown(model, recorder) or any(map(_valueless, model.modules())):
        recorder = Recorder()
        with torch.random.fork_rng(devices=[]), LargeOnMeta(), inits_on_meta(), recorder:
            torch.manual_seed(0)
            model = _call(spec, factory, schema)
        unknown = _unknown(model, recorder)
        if unknown:
            raise ModelError(
                f"{spec}: parameter '{unknown[0]}' is too large to be built in memory ({_bytes_of(model, unknown[0]) / 1e6:,.0f} MB), and is not set by "
                f"uniform_, normal_, fill_ or zero_: set it with torch.nn.init"
            )
    return model, {n: init for n, p in model.named_parameters() if (init := recorder.init_of(p)) is not None}


def _unknown(model: nn.Module, recorder: Recorder) -> list[str]:
    """The parameters that neither have values nor an init that was seen."""
    return [name for name, p in model.named_parameters() if p.is_meta and recorder.init_of(p) is None]


def _bytes_of(model: nn.Module, name: str) -> int:
    parameter = model.get_parameter(name)
    return parameter.numel() * parameter.element_size()


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
    check_shapes(model)
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


class LargeOnMeta(TorchFunctionMode):
    """Within, large new tensors have no memory, nor has what comes when small ones have taken much."""

    def __init__(self) -> None:
        super().__init__()
        self._taken = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _MAKERS and given.get("device") is None:
            sized = func(*args, **{**given, "device": "meta"})
            size = sized.numel() * sized.element_size()
            if size > (_SMALL_BYTES if self._taken < _MOST_BYTES else _TINY_BYTES):
                return sized
            self._taken += size
        return func(*args, **given)


def _with_inputs(module: ModuleType, model: nn.Module, schema: Schema) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The model, with arguments that data can give, and a small batch of them from the model's file or from the schema."""
    own = attribute_of(module, "example_inputs", str(module.__file__))
    if callable(own):
        model, given = keyed(model, _own_inputs(own, str(module.__file__)), schema)
        return model, _tensors(given, str(module.__file__))
    batch = {**example_batch(schema, _EXAMPLE_BATCH), "label": torch.zeros(_EXAMPLE_BATCH)}
    model, batch = keyed(model, batch, schema)
    wanted = [p.name for p in inspect.signature(model.forward).parameters.values()]
    missing = [name for name in wanted if name not in batch]
    if missing:
        raise ModelError(
            f"forward() of {type(model).__name__} takes '{missing[0]}', the data gives {', '.join(batch)}: rename it, choose other --data, "
            f"or put example_inputs(batch_size) into the model's file"
        )
    return model, {name: batch[name] for name in wanted}


def _own_inputs(own: Callable[[int], Any], file: str) -> dict[str, Any]:
    with user_code(f"{file}: example_inputs({_EXAMPLE_BATCH}) failed", ModelError):
        return dict(own(_EXAMPLE_BATCH))


def _tensors(inputs: Mapping[str, Any], file: str) -> dict[str, torch.Tensor]:
    for name, value in inputs.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ModelError(f"{file}: example_inputs gave {name!r}: a {type(value).__name__}; want tensors by name")
    return dict(inputs)


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

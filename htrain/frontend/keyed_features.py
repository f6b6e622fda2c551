"""TorchRec's collections of embeddings over a KeyedJaggedTensor: a model that takes one is given the inputs of its data (docs/how-to/your-own-model.md).

A model has features by name, and data has inputs: a feature is an input of that name, or a column of one. PyTorch gets a real KeyedJaggedTensor of them. While
a model is captured a stand-in takes its place, as lists of all lengths are in no exported graph, and collections look up the inputs. TorchRec is never imported
here: who uses it has done so.
"""

import copy
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from htrain.data.schema import Schema
from htrain.errors import ModelError
from htrain.frontend.keyed_lookups import CapturedFeatures, Jagged, collection_classes, tensor_classes

_CAPTURING: ContextVar[bool] = ContextVar("capturing", default=False)
_SHARDED = ("torchrec.distributed.", "torchrec.modules.fused_embedding_modules")


@dataclass(frozen=True)
class Feature:
    """Where the ids of the feature `name` are: in all columns of `input`, or in one, from 0 on."""

    name: str
    input: str
    kind: Literal["ids", "padded", "bag"]
    column: int | None = None


def keyed(model: nn.Module, available: Mapping[str, Any], schema: Schema) -> tuple[nn.Module, dict[str, Any]]:
    """`model` with tensors as arguments where it takes KeyedJaggedTensors, and those of `available` that it takes then.

    `available` are example inputs by name: tensors, as `schema` has them, or KeyedJaggedTensors by the names of arguments, which stand for a bag input of each
    feature. Its keys are in the order of the example, or, without one, in that in which the collections name them. Another model is returned as it is.
    Raises ModelError for a feature that is no input, for a module that TorchRec has sharded, and for a model that takes a KeyedJaggedTensor and has no
    collection.
    """
    given = _as_bags(available)
    arguments = _keyed_arguments(model, available)
    if not arguments:
        return model, dict(available)
    sharded = [path for path, part in model.named_modules() if type(part).__module__.startswith(_SHARDED)]
    if sharded:
        raise ModelError(
            f"module '{sharded[0]}' holds tables that TorchRec has sharded: give the model as it was before"
        )
    if not _feature_names(model):
        raise ModelError(
            f"forward() of {type(model).__name__} takes a KeyedJaggedTensor, '{arguments[0]}', but no EmbeddingBagCollection and no "
            f"EmbeddingCollection of the model reads one: look up its features in one of these"
        )
    keys = [key for value in available.values() if is_keyed(value) for key in value.keys()]  # noqa: SIM118  no mapping
    features = [_found(name, given, schema) for name in dict.fromkeys((*keys, *_feature_names(model)))]
    return _taking_tensors(model, arguments, features, given)


def _as_bags(available: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Every KeyedJaggedTensor as a list of ids and one of starts for each of its features."""
    given: dict[str, torch.Tensor] = {}
    for name, value in available.items():
        if not is_keyed(value):
            given[name] = value
            continue
        for key, jagged in value.to_dict().items():
            lengths = jagged.lengths().to(torch.int64)
            given[key], given[f"{key}_offsets"] = jagged.values().to(torch.int64), lengths.cumsum(0) - lengths
    return given


def is_keyed(value: object) -> bool:
    """Whether a value is TorchRec's KeyedJaggedTensor."""
    classes = tensor_classes()
    return classes is not None and isinstance(value, classes.KeyedJaggedTensor)


def _keyed_arguments(model: nn.Module, available: Mapping[str, Any]) -> list[str]:
    """The arguments of forward() that are KeyedJaggedTensors: they say so, are given as one, or are no input of a model with collections."""
    if tensor_classes() is None:
        return []
    unsaid = bool(_feature_names(model))
    return [
        name
        for name, p in inspect.signature(model.forward).parameters.items()
        if "KeyedJaggedTensor" in str(p.annotation)
        or is_keyed(available.get(name))
        or (unsaid and p.annotation is p.empty and p.default is p.empty and name not in available)
    ]


def _feature_names(model: nn.Module) -> list[str]:
    """The features of all collections, each once, in their order."""
    collections: list[Any] = [part for part in model.modules() if isinstance(part, collection_classes())]
    of_tables = [part._feature_names for part in collections]
    return list(dict.fromkeys(name for tables in of_tables for names in tables for name in names))


def _found(name: str, given: Mapping[str, torch.Tensor], schema: Schema) -> Feature:
    if f"{name}_offsets" in given:
        return Feature(name, name, "bag")
    if name in given and given[name].dim() == 2:
        return Feature(name, name, "padded" if f"{name}_length" in given else "ids")
    for item in schema.inputs:
        if item.kind == "ids" and name in item.columns and item.name in given:
            return Feature(name, item.name, "ids", item.columns.index(name))
    columns = [c for item in schema.inputs if item.kind == "ids" and item.name in given for c in item.columns]
    inputs = [*(n for n in given if not n.endswith(("_offsets", "_length"))), *columns]
    raise ModelError(
        f"a collection of embeddings reads the feature '{name}', the data gives {', '.join(inputs)}: name the feature as one of these"
    )


def _taking_tensors(
    model: nn.Module, arguments: Sequence[str], features: Sequence[Feature], given: Mapping[str, torch.Tensor]
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A view of `model`, with the same parameters and modules, that makes the KeyedJaggedTensors itself."""
    if model._forward_pre_hooks:
        raise ModelError(
            f"the model {type(model).__name__} takes a KeyedJaggedTensor and has a hook on its inputs: remove it, and do what it does in forward()"
        )
    kind = type(model)
    parameters = inspect.signature(model.forward).parameters
    plain = [name for name in parameters if name not in arguments and name in given]
    beside = [n for f in features for n in (f.input, f"{f.input}_offsets", f"{f.input}_length") if n in given]
    names = list(dict.fromkeys((*plain, *beside)))

    def forward(self: nn.Module, **inputs: torch.Tensor) -> Any:
        made = _captured(features, inputs) if _CAPTURING.get() else _real(features, inputs)
        return kind.forward(self, **{n: inputs[n] for n in plain}, **dict.fromkeys(arguments, made))

    takes = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    forward.__signature__ = inspect.Signature(takes)  # type: ignore[attr-defined]
    view = copy.copy(model)
    view.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return view, {name: given[name] for name in names}


def _columns(feature: Feature, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """ids[B,W], or ids[n] of a bag."""
    ids = inputs[feature.input]
    return ids if feature.column is None else ids[:, feature.column : feature.column + 1]


def _captured(features: Sequence[Feature], inputs: Mapping[str, torch.Tensor]) -> CapturedFeatures:
    """What stands for a KeyedJaggedTensor while a model is captured."""
    return CapturedFeatures(
        {
            f.name: Jagged(
                _columns(f, inputs), f.kind, inputs.get(f"{f.input}_length"), inputs.get(f"{f.input}_offsets")
            )
            for f in features
        }
    )


def _real(features: Sequence[Feature], inputs: Mapping[str, torch.Tensor]) -> Any:
    """A KeyedJaggedTensor of a batch."""
    values, lengths = zip(*(_lists(f, _columns(f, inputs), inputs) for f in features), strict=True)
    classes = tensor_classes()
    assert classes is not None
    return classes.KeyedJaggedTensor(
        keys=[f.name for f in features], values=torch.cat(values), lengths=torch.cat(lengths)
    )


def _lists(
    feature: Feature, ids: torch.Tensor, inputs: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids[n] of all examples, and how many each[B] has."""
    if feature.kind == "bag":
        starts = inputs[f"{feature.input}_offsets"]
        return ids, torch.diff(starts, append=starts.new_tensor([len(ids)]))
    if feature.kind == "padded":
        lengths = inputs[f"{feature.input}_length"]
        return ids[torch.arange(ids.shape[1]) < lengths[:, None]], lengths
    return ids.reshape(-1), torch.full((len(ids),), ids.shape[1], dtype=torch.int64)


@contextmanager
def captured_features() -> Iterator[None]:
    """Within, models get stand-ins for KeyedJaggedTensors."""
    token = _CAPTURING.set(True)
    try:
        yield
    finally:
        _CAPTURING.reset(token)


@contextmanager
def inits_on_meta() -> Iterator[None]:
    """Within, collections without memory fill their tables by `init_fn`, as those with memory do: TorchRec leaves that to whoever shards them."""
    module = sys.modules.get("torchrec.modules.embedding_modules")
    if module is None:
        yield
        return
    kind = module.EmbeddingBagCollection
    original = kind.reset_parameters

    def reset_parameters(self: Any) -> None:
        for config in self.embedding_bag_configs():
            if config.init_fn is not None:
                config.init_fn(self.embedding_bags[config.name].weight)

    kind.reset_parameters = reset_parameters
    try:
        yield
    finally:
        kind.reset_parameters = original

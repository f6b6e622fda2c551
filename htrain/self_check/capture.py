"""A model in whatever form it is given (a module, the name of a factory, an ONNX file) to its net, and the check of that net against the model."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from htrain.data import Schema
from htrain.errors import ModelError, UsageError
from htrain.frontend.captured import Captured, check_finite
from htrain.frontend.data_inputs import taking_data
from htrain.frontend.keyed_features import is_keyed, keyed
from htrain.frontend.load import LoadedModel, load_model
from htrain.frontend.torch_model import capture, capture_evaluation
from htrain.net.net import Net
from htrain.self_check.check import Found, check
from htrain.self_check.torch_reference import TorchReference
from htrain.spec.cluster import Cluster
from htrain.spec.effects import OF_TABLES, OF_WEIGHTS
from htrain.spec.options import Options
from htrain.spec.tree import dashed, flag_text, flat, given

NO_INPUTS: Mapping[str, torch.Tensor] = {}
_FEWEST = 2  # examples: torch.export takes 1 for a constant
_MANY_ROWS = 10_000  # of an embedding of which nobody would think that it is held whole
_WRAPPED = ("_orig_mod", "module")  # where torch.compile and data parallelism keep the module


@dataclass(frozen=True)
class Model:
    """A captured model. `compare` runs the self-check (`htrain.self_check.check.check`)."""

    name: str
    captured: Captured
    compare: Callable[[Options], Found]

    def checked(self, options: Options) -> Captured:
        """What was captured, with the notes of the self-check, and what that has found of evaluation. Raises ModelError where it finds a difference."""
        found = self.compare(options)
        captured = taking_data(found.captured)
        return replace(captured, notes=(*captured.notes, *found.notes))


def capture_model(
    model: str | Path | nn.Module,
    *,
    schema: Schema,
    example_inputs: Mapping[str, torch.Tensor],
    logit: str | int,
    label: str,
    loss: str = "bce",
) -> Model:
    """Raises UsageError for arguments that have no effect on such a model, and ModelError for a model that cannot be captured. With the loss `own`, forward()
    returns it."""
    model = str(model) if isinstance(model, Path) else model
    from_onnx = isinstance(model, str) and model.lower().endswith(".onnx")
    if label and not from_onnx:
        raise UsageError(f"--label {label} has no effect: it names the label among the inputs of an ONNX model")
    if example_inputs and not isinstance(model, nn.Module):
        raise UsageError(
            "compile: example_inputs has no effect beside a model's name: give it with an nn.Module, or in the model's file"
        )
    if isinstance(model, nn.Module):
        _check_given(model, example_inputs)
        model, inputs = keyed(model, example_inputs, schema)
        _check_arguments(model, inputs)
        return _from_module(type(model).__name__, LoadedModel(model, inputs, {}), logit, loss)
    if from_onnx and loss == "own":
        raise UsageError(
            "--loss own has no effect on an ONNX model, which returns no loss: say which loss its output has"
        )
    if from_onnx:
        return _from_onnx(Path(model), str(logit), label)
    return _from_module(Path(model.split(":")[0]).stem, load_model(model, schema), logit, loss)


def require_parameters(net: Net, options: Options, cluster: Cluster, splits: Mapping[str, int]) -> None:
    """Raises UsageError for options about tables or dense weights of a captured model that has none, and for splits of no table of its;
    ModelError for a parameter without a number in it."""
    for parameter in net.parameters.values():
        if 0 in parameter.shape:
            kind = "table" if parameter.kind == "table" else "weight"
            raise ModelError(
                f"{kind} '{parameter.name}' has the shape {list(parameter.shape)}: there is nothing in it to train"
            )
    tables = {name: p for name, p in net.parameters.items() if p.kind == "table"}
    said, values = given(options), flat(options)
    for kind, names in (
        ("embedding table", () if tables else OF_TABLES),
        ("dense weight", () if len(tables) < len(net.parameters) else OF_WEIGHTS),
    ):
        for name in names:
            if name in said:
                raise UsageError(f"{dashed(name)} {flag_text(values[name])} has no effect: the model has no {kind}")
    for table, count in splits.items():
        if table not in tables:
            close = get_close_matches(table, tables, 3) or list(tables)[:10]
            raise UsageError(
                f"--split-table {table}={count}: the model has no table '{table}'; there are {', '.join(close) or 'none'}"
            )
        if not cluster.sparse_ps or not options.sparse_sync.served:
            raise UsageError(
                f"--split-table {table}={count} has no effect: without sparse PSs, tables are whole on every trainer"
            )
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= tables[table].shape[0]:
            raise UsageError(
                f"--split-table {table}={count}: it has {tables[table].shape[0]:,} rows, so that 1 to as many shards can be"
            )


def _check_given(model: nn.Module, example_inputs: Mapping[str, torch.Tensor]) -> None:
    if not example_inputs:
        raise UsageError(
            "compile: an nn.Module needs example_inputs: a tensor for each argument of forward(), the batch first"
        )
    _check_examples(example_inputs)
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(f"the model is of torch.jit ({type(model).__name__}): give the nn.Module that it was made of")
    valueless = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if valueless:
        raise ModelError(
            f"parameter '{valueless[0]}' is on the meta device and has no value: name the model's factory instead "
            f"(file.py:build), whose inits are recorded, or give the module values"
        )


def _check_examples(example_inputs: Mapping[str, torch.Tensor]) -> None:
    """Raises UsageError naming the example that is no tensor, has no batch of two or more, or has another one than those before."""
    first, size = "", 0
    for name, value in example_inputs.items():
        told = f"compile: example_inputs: {name!r}"
        if not isinstance(name, str) or is_keyed(value):
            if not isinstance(name, str):
                raise UsageError(f"{told}: want the names of forward()'s arguments")
            continue
        if seen := _unusable(value):
            raise UsageError(f"{told} {seen}, want a tensor of the CPU, such as torch.from_numpy makes of an array")
        if not value.dim() or len(value) < _FEWEST:
            seen = f"has {len(value)} of it" if value.dim() else "has no dimension"
            raise UsageError(f"{told}: the first dimension is the batch, of at least {_FEWEST} examples; this {seen}")
        if f"{name}_offsets" in example_inputs:
            continue
        first, size = first or name, size or len(value)
        if len(value) != size:
            raise UsageError(f"{told} has {len(value)} examples and '{first}' {size}: the first dimension is the batch")


def _unusable(value: object) -> str:
    """Why an example is no tensor that a batch has, in words; "" where it is one."""
    if not isinstance(value, torch.Tensor):
        return f"is a {type(value).__name__}"
    if value.is_meta:
        return "is on the meta device"
    return "is a nested tensor" if value.is_nested else "" if value.layout == torch.strided else "is a sparse tensor"


def _check_arguments(model: nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
    """Raises UsageError for examples that are not the arguments of forward(), and ModelError for a forward() that does not name its own."""
    kind, parameters = type(model).__name__, inspect.signature(model.forward).parameters
    named = [name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = [name for name in inputs if name not in named]
    if unknown and len(named) < len(parameters):
        wrapped = [name for name in _WRAPPED if isinstance(getattr(model, name, None), nn.Module)]
        cure = f"give the module that it wraps, its .{wrapped[0]}" if wrapped else "give it arguments of these names"
        raise ModelError(f"forward() of {kind} takes {', '.join(map(str, parameters.values()))}: {cure}")
    missing = [name for name in named if name not in inputs and parameters[name].default is inspect.Parameter.empty]
    if unknown or missing:
        raise UsageError(
            f"compile: example_inputs are {', '.join(inputs)}, and forward() of {kind} takes {', '.join(named)}: give a tensor for each by its name"
        )


def _from_module(name: str, loaded: LoadedModel, logit: str | int, loss: str) -> Model:
    found = capture(loaded.module, loaded.example_inputs, logit=logit, own_loss=loss == "own")
    captured = check_finite(loaded.initialised(found))
    captured = replace(
        captured, notes=(*captured.notes, *_tied(loaded.module, captured.net), *_whole(loaded.module, captured.net))
    )
    reference = TorchReference(loaded.module, captured, logit)
    evaluation = partial(
        capture_evaluation, loaded.module, loaded.example_inputs, captured, logit=logit, own_loss=loss == "own"
    )
    compare = partial(check, captured, reference, loaded.example_inputs, evaluation=evaluation)
    return Model(name, taking_data(captured), compare)


def _tied(module: nn.Module, net: Net) -> Iterator[str]:
    """A sentence for each parameter that the module has under several names."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for alike in names.values():
        kept = [name for name in alike if name in net.parameters]
        others = [name for name in alike if name not in kept]
        if kept and others:
            under = "that name" if len(others) == 1 else "those names"
            yield f"{kept[0]} is {', '.join(others)}, too: not in the plan under {under}"


def _whole(module: nn.Module, net: Net) -> Iterator[str]:
    """A sentence for each large embedding that is no table."""
    for path, each in module.named_modules():
        parameter = net.parameters.get(f"{path}.weight" if path else "weight")
        if not isinstance(each, nn.Embedding | nn.EmbeddingBag) or not parameter or parameter.kind != "weight":
            continue
        if parameter.trained and parameter.shape[0] >= _MANY_ROWS:
            yield (
                f"{parameter.name} is a weight, not a table: forward() reads all of its {parameter.shape[0]:,} rows, or some by ids that are of no one example "
                "(negatives that a batch shares, a norm of all parameters, scores of all items); it is held whole, and stepped by the dense optimizer"
            )


def _from_onnx(path: Path, logit: str, label: str) -> Model:
    """An ONNX file; an input that carries the label is the reader's `label`, which the net must not have of its own."""
    # most models are of PyTorch: they do not wait for onnx to be imported
    captured: Captured = import_module("htrain.frontend.onnx_model").capture_onnx(path, logit=logit)
    if label and label not in captured.net.inputs:
        raise UsageError(f"--label {label}: {path} has no such input; it has {', '.join(captured.net.inputs)}")
    label = label or "label"
    if label in captured.net.inputs:
        read = {name for op in captured.net.ops for name in op.inputs}
        if label in read:
            raise ModelError(f"{path}: the logit depends on '{label}', which --label names as the label")
        inputs = tuple(name for name in captured.net.inputs if name != label)
        blobs = {name: blob for name, blob in captured.net.blobs.items() if name != label}
        captured = replace(captured, net=replace(captured.net, inputs=inputs, blobs=blobs))
    captured = _finite(path, captured)
    return Model(
        path.stem,
        taking_data(captured),
        lambda options: import_module("htrain.self_check.onnx_reference").check_file(captured, path, logit, options),
    )


def _finite(path: Path, captured: Captured) -> Captured:
    try:
        return check_finite(captured)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error

"""ATen ops that are ops of the net as they are (htrain.ops.torch_ops): operands and attributes by the schema, whatever it is."""

from typing import Any

import torch
from torch import fx

from htrain.frontend.aten_forms import Call, Handler, mixes_batch, refuse
from htrain.frontend.translation import Translation
from htrain.net.net import Attr
from htrain.ops.torch_ops import RECURRENT, TORCH_OPS, arguments_of, is_list, is_tensor, kind_of


def _as_it_is(type: str) -> Handler:
    """The op of the net that has the schema of the call."""

    def handle(t: Translation, call: Call) -> None:
        attrs = _attributes(t, call, type)
        _check(t, call, type, attrs)
        outputs = t.builder.add(type, _operands(t, call, type), attrs=attrs, module=t.module_of(call.node))
        t.parts[call.node] = outputs
        if isinstance(call.meta["val"], torch.Tensor):
            t.names[call.node] = outputs[0]

    return handle


def _operands(t: Translation, call: Call, type: str) -> list[str]:
    """The tensors of a call. Raises ModelError where one is missing before another that is given."""
    found: list[str] = []
    missing = False
    for place, argument in enumerate(arguments_of(type)):
        if not is_tensor(argument):
            continue
        value = call.args[place] if place < len(call.args) else call.kwargs.get(argument.name)
        given: list[Any] = [] if value is None else list(value) if is_list(argument) else [value]
        if given and missing:
            raise refuse(t, call, f"'{argument.name}' is given, and what comes before it is not")
        missing |= not given
        found += [t.blob(tensor, like=_first(call)) for tensor in given]
    return found


def _first(call: Call) -> torch.Tensor | None:
    """The first tensor of a call: a number in the place of another takes its dtype."""
    tensors = (a.meta["val"] for a in call.node.all_input_nodes)
    return next((value for value in tensors if isinstance(value, torch.Tensor)), None)


def _attributes(t: Translation, call: Call, type: str) -> dict[str, Attr]:
    """What is no tensor, by name; what is None is left out. Raises ModelError for a number that depends on the batch."""
    found: dict[str, Attr] = {}
    for argument in arguments_of(type):
        kind = kind_of(argument)
        if is_tensor(argument) or kind is None:
            continue
        value: Any = call.argument(argument.name)
        if value is None:
            continue
        if kind is tuple:
            value = tuple(value) if isinstance(value, list | tuple) else (value,)
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, fx.Node) for number in numbers):
            raise refuse(t, call, f"its argument {argument.name} depends on the batch")
        found[argument.name] = kind(value)
    return found


def _check(t: Translation, call: Call, type: str, attrs: dict[str, Attr]) -> None:
    """Raises ModelError for what the op would do otherwise than torch; notes where it is over the batch."""
    if type == "InstanceNorm" and attrs["use_input_stats"] and call.argument("running_mean") is not None:
        raise refuse(t, call, "its running statistics, which it moves: build it with track_running_stats=False")
    if type == "BinaryCrossEntropy" and attrs.get("reduction", 1) != 0:
        raise refuse(
            t, call, "the mean or sum of it in one: call F.binary_cross_entropy, or take the mean of reduction='none'"
        )
    dims = attrs.get("dim", attrs.get("dims", ())) if type != "RepeatInterleave" else ()
    mixes_batch(t, call, dims if isinstance(dims, tuple) else (dims,) if isinstance(dims, int) else ())


TORCH: dict[str, Handler] = {name: _as_it_is(type) for type, name in TORCH_OPS.items()}
WHOLE: dict[str, Handler] = {  # what stands for them while a model is captured (htrain.frontend.whole_layers)
    f"htrain.{TORCH_OPS[type].removesuffix('.input')}.default": _as_it_is(type) for type in RECURRENT
}

"""What a frontend gives: the forward net, and the values that the model came with."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from htrain.errors import ModelError
from htrain.net.net import Net, Parameter


@dataclass(frozen=True)
class Origin:
    """The tensor of an ONNX file that a parameter holds; `transposed`, where the file has w[K,N] for w[N,K]."""

    name: str
    transposed: bool


@dataclass(frozen=True)
class Captured:
    """A forward net with one output, the logit; of a model with a loss of its own two, the loss before what is scored. Behind these come its
    `heads`, of that name each: a number or a vector for each example.

    `values` are the tensors of parameters whose init is `file`. `notes` say, a sentence each, what the frontend decided that the user may want to know.
    `origins` are those of an ONNX file's parameters: several tensors where the file stores one weight more than once, and none for what it left out, as it
    started as zeros. `supposed` are the lines (`model.py:31`) that ask whether a mask picks anything: the net is that of batches in which it does.
    `of_lengths` are those that pad packed sequences to the longest of a batch, or take them apart: the net is that of sequences of full length.
    `mixing` are the ops by which examples of a batch are seen to depend on each other, as notes name them.
    `scored` is the key or position of the output that is, where a module returns it. `evaluation` is what the model does in evaluation, where that is
    something else than its net with nothing dropped: of parameters that `net` has, with heads of its own, and perhaps without a loss.
    """

    net: Net
    values: Mapping[str, torch.Tensor]
    notes: tuple[str, ...] = ()
    origins: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    supposed: tuple[str, ...] = ()
    of_lengths: tuple[str, ...] = ()
    mixing: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    scored: str = ""
    evaluation: "Captured | None" = None

    def with_evaluation(self, evaluation: "Captured") -> "Captured":
        """This one with what its model does in evaluation, and a sentence that tells of it."""
        told = "forward() does something else in evaluation (model.eval()): htrain eval, predict and export do that, by a net of its own"
        beside = (note for note in evaluation.notes if note not in self.notes)
        return replace(
            self, evaluation=evaluation, notes=(*self.notes, told, *(f"in evaluation: {note}" for note in beside))
        )

    @property
    def trained_outputs(self) -> tuple[str, ...]:
        """The loss, where it is the model's own, and what is scored: without heads."""
        return self.net.outputs[: len(self.net.outputs) - len(self.heads)]

    @property
    def has_own_loss(self) -> bool:
        """Whether the model returns its loss."""
        return len(self.trained_outputs) > 1


def without_gradients(net: Net) -> tuple[Net, list[str]]:
    """`net` with those trained parameters frozen that its first output reads and no gradient reaches, as PyTorch leaves them;
    and their names.
    """
    reached = set(net.outputs[:1])
    for op in reversed(net.ops):
        if reached.intersection(op.outputs) and op.type != "Detach":
            reached.update(name for name in op.inputs if net.blob(name).dtype.startswith(("float", "bfloat")))
    left = [name for name, parameter in net.parameters.items() if parameter.trained and name not in reached]
    frozen = {name: replace(net.parameters[name], trained=False) for name in left}
    return replace(net, parameters={**net.parameters, **frozen}), left


def check_finite(captured: Captured) -> Captured:
    """`captured` itself. Raises ModelError for a weight or table that starts from nan or infinity, by value or by its init.

    What is not trained may hold infinities (a mask), but no nan.
    """
    for parameter in captured.net.parameters.values():
        found = _not_finite(parameter, captured.values.get(parameter.name))
        if found:
            raise ModelError(f"parameter '{parameter.name}' {found}: give it finite values before compiling")
    return captured


def _not_finite(parameter: Parameter, value: torch.Tensor | None) -> str:
    """Why the first values of a parameter cannot be trained from; "" where they can."""
    if value is None:
        return "" if all(map(math.isfinite, parameter.init.arguments)) else f"starts from {parameter.init}"
    if not value.is_floating_point() or not value.numel():
        return ""
    extremes = torch.aminmax(value)  # nan where there is one: no copy of a large table is made to find out
    low, high = float(extremes.min), float(extremes.max)
    if math.isfinite(low) and math.isfinite(high):
        return ""
    if math.isnan(low) or math.isnan(high):
        return "holds nan"
    return "holds an infinity" if parameter.trained else ""

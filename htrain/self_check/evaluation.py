"""What a captured model gives in evaluation beside what its reference does there: htrain evaluates and predicts with the net that it trains."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from htrain.errors import ModelError
from htrain.ops.draw import is_draw, is_noise
from htrain.self_check.ours import Ours
from htrain.self_check.values import Values

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)  # tensors have no equality that is true or false
class Evaluated:
    """What is scored in evaluation, and behind it heads, in one vector; `drops`: a dropout is on there, too, which was left out."""

    scores: torch.Tensor
    drops: bool = False


class Evaluating(Protocol):
    """A reference that can be put in evaluation."""

    def evaluated(self, values: Values, inputs: Tensors) -> Evaluated:
        """What is scored there. Raises whatever the model raises."""


def notes_of_evaluation(
    ours: Ours, reference: Evaluating, values: Values, inputs: Tensors, label: torch.Tensor
) -> Iterator[str]:
    """A sentence where the reference does something else in evaluation than the net, or cannot be asked.

    Raises ModelError for noise that is added in training alone, where evaluation does something else besides leaving it out. With what evaluation draws it
    cannot be told. Batch norms read the statistics that the model has.
    """
    if any(is_draw(op) and not is_noise(op) for op in ours.ops):
        return
    try:
        theirs = reference.evaluated(values, inputs)
    except Exception as error:  # the user's forward() may raise anything
        yield f"not compared in evaluation (model.eval()): it raises {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return
    if theirs.drops:
        yield "forward() drops values in evaluation, too, as F.dropout does without training=self.training: htrain eval and predict drop none"
    found = ours.evaluated(values, inputs, label)
    if found.shape == theirs.scores.shape and torch.allclose(
        found, theirs.scores, rtol=1e-3, atol=1e-4, equal_nan=True
    ):
        return
    if any(map(is_noise, ours.ops)):
        raise ModelError(
            "forward() draws random numbers in training alone, and in evaluation (model.eval()) gives something else than without them: draw them in "
            "both, or as noise around a mean that evaluation takes; --no-self-check compiles it all the same"
        )
    yield (
        "forward() gives something else in evaluation (model.eval()) than in training, beside dropouts: htrain eval and predict give what is trained"
    )

"""What a captured model gives in evaluation beside what its reference does there: htrain evaluates and predicts with the net that it trains, or with one of
evaluation where the model does something else there."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.ops.draw import is_noise
from htrain.self_check.ours import Ours
from htrain.self_check.values import Values
from htrain.spec.options import Options

Tensors = Mapping[str, torch.Tensor]


_DROPS = "forward() drops values in evaluation, too, as F.dropout does without training=self.training: htrain eval and predict drop none"
_BLANKS = (
    "nn.TransformerEncoder makes zeros of padded places in evaluation without gradients, where PyTorch takes its fast path: htrain eval and predict give "
    "what is trained, as PyTorch does behind torch.backends.mha.set_fastpath_enabled(False)"
)


@dataclass(frozen=True, eq=False)  # tensors have no equality that is true or false
class Evaluated:
    """What is scored in evaluation, and behind it heads, in one vector; `drops`: a dropout is on there, too, which was left out; `blanks`: PyTorch may take a
    way there by which padded places are zeros, which was not taken."""

    scores: torch.Tensor
    drops: bool = False
    blanks: bool = False


class Evaluating(Protocol):
    """A reference that can be put in evaluation."""

    def evaluated(self, values: Values, inputs: Tensors, captured: Captured) -> Evaluated:
        """What is scored there, as captured, and those heads that it gives there. Raises whatever the model raises."""


@dataclass(frozen=True)
class Batch:
    """What both are evaluated on; `others` are more values to see scores by."""

    values: Values
    inputs: Tensors
    label: torch.Tensor
    others: Iterable[Values] = ()


class EvaluationCheck:
    """`capture` captures the model in evaluation, where that can be had; raises ModelError for what cannot be compiled."""

    def __init__(
        self, captured: Captured, reference: Evaluating, options: Options, capture: Callable[[], Captured] | None
    ) -> None:
        self._captured, self._reference, self._options, self._capture = captured, reference, options, capture
        self.notes: list[str] = []

    def run(self, ours: Ours, batch: Batch) -> Captured:
        """The captured model, with what it does in evaluation where that is something else. Where that cannot be had, or the reference cannot be asked, `notes`
        say so in a sentence.

        Raises ModelError for noise that is added in training alone, where evaluation does something else besides leaving it out, and has no net of its own;
        and for a net of evaluation that gives something else. Batch norms read the statistics that the model has.
        """
        captured = self._captured
        try:
            if self._is_equal(captured, ours, batch):
                return captured
            if captured.evaluation:
                raise ModelError(
                    "in evaluation (model.eval()) the net gives other scores than forward(): --no-self-check compiles it all the same"
                )
            return self._with_evaluation(ours, batch)
        except _CannotBeAskedError as error:
            self.notes.append(f"not compared in evaluation (model.eval()): {error}")
            return captured

    def _with_evaluation(self, ours: Ours, batch: Batch) -> Captured:
        why = ""
        try:
            captured = self._captured.with_evaluation(self._capture()) if self._capture else self._captured
            if captured.evaluation and self._is_equal(captured, Ours(captured, self._options), batch):
                return captured
        except ModelError as error:
            why = f" ({error})"
        if any(map(is_noise, ours.ops)):
            raise ModelError(
                "forward() draws random numbers in training alone, and in evaluation (model.eval()) gives something else than without them: draw them in "
                f"both, or as noise around a mean that evaluation takes{why}; --no-self-check compiles it all the same"
            )
        self.notes.append(
            f"forward() gives something else in evaluation (model.eval()) than in training, beside dropouts: htrain eval and predict give what is trained{why}"
        )
        return self._captured

    def _is_equal(self, captured: Captured, ours: Ours, batch: Batch) -> bool:
        """Whether both give the same. Raises ModelError for what is no score of the loss."""
        try:
            theirs = self._reference.evaluated(batch.values, batch.inputs, captured.evaluation or captured)
        except Exception as error:  # the user's forward() may raise anything
            reason = f"it raises {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            raise _CannotBeAskedError(reason) from error
        for is_so, told in ((theirs.drops, _DROPS), (theirs.blanks, _BLANKS)):
            if is_so and told not in self.notes:
                self.notes.append(told)
        found = ours.evaluated(batch.values, batch.inputs, batch.label)
        is_equal = found.shape == theirs.scores.shape and torch.allclose(
            found, theirs.scores, rtol=1e-3, atol=1e-4, equal_nan=True
        )
        if is_equal and captured.evaluation:
            self._require_scores(captured.evaluation, ours, batch)
        return is_equal

    def _require_scores(self, evaluation: Captured, ours: Ours, batch: Batch) -> None:
        """Raises ModelError where a model gives logits in training, and in evaluation probabilities which are no sigmoid that we can see, or the other way."""
        count = len(batch.label)
        seen = (
            self._reference.evaluated(values, batch.inputs, evaluation).scores[:count]
            for values in (batch.values, *batch.others)
        )
        if self._options.loss == "bce" and not ours.evaluates_probability and all(map(_are_probabilities, seen)):
            raise ModelError(
                "forward() gives a logit in training, and in evaluation probabilities that are no torch.sigmoid of one: return that"
            )
        if self._options.loss == "bce_probability" and not all(map(_are_probabilities, seen)):
            raise ModelError("forward() gives a probability in training, and in evaluation something else")


class _CannotBeAskedError(Exception):
    """The reference raises something in evaluation."""


def _are_probabilities(scores: torch.Tensor) -> bool:
    return bool(((scores >= 0) & (scores <= 1)).all())

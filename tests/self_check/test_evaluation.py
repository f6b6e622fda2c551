"""What a model does in evaluation alone is captured, and compared; what cannot be captured is said."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import Model, capture_model
from htrain.self_check.check import check
from htrain.self_check.torch_reference import TorchReference
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

Forward = Callable[[Any, torch.Tensor, torch.Tensor], Any]
EXAMPLE = {"x": torch.zeros(4, 4), "ids": torch.zeros(4, 2, dtype=torch.int64)}
TOLD = "forward() does something else in evaluation"


class Normed(nn.Module):
    """With batch norms that have been trained, one of them in evaluation alone."""

    def __init__(self, then: Forward) -> None:
        super().__init__()
        self.then, self.first, self.second, self.spare = then, nn.BatchNorm1d(4), nn.BatchNorm1d(1), nn.BatchNorm1d(4)
        self.top, self.table, self.other, self.alone = (
            nn.Linear(4, 1),
            nn.Embedding(30, 4),
            nn.Linear(4, 4),
            nn.Linear(4, 4),
        )
        for norm in (self.first, self.second, self.spare):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> Any:
        """x[B,4], ids[B,2]."""
        return self.then(self, self.first(x), ids)

    def score(self, y: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.second(self.top(y + self.other(self.table(ids).sum(1)))).squeeze(1)


def otherwise(change: Callable[[Any, torch.Tensor], torch.Tensor]) -> Forward:
    """Something is done to a value in training alone."""
    return lambda m, y, ids: m.score(change(m, y) if m.training else y, ids)


def scores_and_vectors(m: Any, y: torch.Tensor, ids: torch.Tensor) -> Any:
    if m.training:
        return m.score(2 * y, ids)
    return {"vector": m.table(ids[:, 0]), "all": m.score(y, ids)}


APART: Mapping[str, Forward] = {
    "twice as much": otherwise(lambda m, y: 2 * y),
    "noise": otherwise(lambda m, y: y + 0.1 * torch.randn_like(y)),
    "a mask": otherwise(lambda m, y: y * (torch.rand_like(y) > 0.5).float() / 0.5),
    "the other mask": otherwise(lambda m, y: y * (torch.rand_like(y) < 0.5).float() / 0.5),
    "a path": otherwise(lambda m, y: y + torch.tanh(y) * y.new_empty(len(y), 1).bernoulli_(0.8) / 0.8),
    "gates": otherwise(lambda m, y: y * F.gumbel_softmax(m.other(y), 0.5)),
    "another norm": lambda m, y, ids: m.score(m.spare(y) if m.training else m.first(y), ids),
    "no layer": lambda m, y, ids: m.score(m.other(y) if m.training else y, ids),
    "fewer ids": lambda m, y, ids: m.score(y, ids if m.training else ids[:, :1]),
    "a probability": lambda m, y, ids: m.score(y, ids) if m.training else torch.sigmoid(m.score(y, ids)),
    "a column": lambda m, y, ids: m.score(y, ids) if m.training else m.score(2 * y, ids)[:, None],
    "more outputs": scores_and_vectors,
}


def captured(then: Forward, loss: str = "bce") -> Model:
    return capture_model(Normed(then), schema=CRITEO, example_inputs=EXAMPLE, logit="", label="", loss=loss)


@pytest.mark.parametrize("name", [*APART])
def test_what_is_done_in_evaluation_alone_is_captured_and_equal(name: str) -> None:
    found = captured(APART[name]).checked(Options())
    assert found.evaluation is not None
    assert [note.startswith(TOLD) for note in found.notes if "depend on" not in note] == [True]
    assert found.evaluation.net.parameters.items() <= found.net.parameters.items()
    assert found.evaluation.heads == (("vector",) if name == "more outputs" else ())


NOT: Mapping[str, tuple[Forward, str]] = {
    "all rows": (
        lambda m, y, ids: m.score(y if m.training else y + m.table.weight.mean(0), ids),
        r"give what is trained \(forward\(\) takes all rows of table 'table.weight' in evaluation",
    ),
    "a layer alone": (
        lambda m, y, ids: m.score(y if m.training else m.alone(y), ids),
        r"\(forward\(\) takes alone.(weight|bias) in evaluation alone, where nothing trains it\)",
    ),
    "a norm alone": (
        lambda m, y, ids: m.score(y if m.training else m.spare(y), ids),
        r"\(forward\(\) takes spare.(weight|bias) in evaluation alone, where nothing trains it\)",
    ),
    "probabilities": (
        lambda m, y, ids: m.score(y, ids) if m.training else 1 / (1 + torch.exp(-m.score(y, ids))),
        r"\(forward\(\) gives a logit in training, and in evaluation probabilities that are no torch.sigmoid of one: return that\)",
    ),
    "scores": (
        lambda m, y, ids: m.score(y, ids) if m.training else (m.score(3 * y, ids), m.score(2 * y, ids)),
        r"\(forward\(\) returns 0, 1 in evaluation, and it is not clear which is a number for each example, to be scored\)",
    ),
    "scores of all": (
        lambda m, y, ids: m.score(y, ids) if m.training else y @ m.table.weight.T,
        r"\(what forward\(\) returns in evaluation \(0\) is not a number for each example",
    ),
    "by values": (
        lambda m, y, ids: m.score(2 * y if m.training or y.sum() > 100 else y, ids),
        r"give what is trained \(.*an if, bool\(\)",
    ),
    "an error": (
        lambda m, y, ids: m.score(y if m.training else y[:, :3], ids),
        r"^not compared in evaluation \(model.eval\(\)\): it raises RuntimeError",
    ),
}


@pytest.mark.parametrize("name", [*NOT])
def test_what_cannot_be_had_of_evaluation_is_said(name: str) -> None:
    then, said = NOT[name]
    found = captured(then).checked(Options())
    assert found.evaluation is None
    assert len([note for note in found.notes if re.search(said, note)]) == 1, found.notes


def test_draws_of_training_whose_evaluation_cannot_be_had_are_refused() -> None:
    """Of the mean of a mask nothing is left."""
    with pytest.raises(ModelError, match=r"gives something else than without them.*takes all rows of table"):
        captured(lambda m, y, ids: m.score(y * (torch.rand_like(y) > 0.5) if m.training else y + m.table.weight.mean(0), ids)).checked(Options())  # fmt: skip
    with pytest.raises(ModelError, match=r"drawn in training alone.*; as for evaluation .* takes all rows of table"):
        captured(lambda m, y, ids: m.score(y * torch.rand_like(y) if m.training else y + m.table.weight.mean(0), ids))


def test_a_net_of_evaluation_that_is_another_is_found() -> None:
    model = Normed(otherwise(lambda m, y: 2 * y))
    trained = capture(model, EXAMPLE)
    wrong: Captured = trained.with_evaluation(trained)
    with pytest.raises(ModelError, match="the net gives other scores than"):
        check(wrong, TorchReference(model, wrong, ""), EXAMPLE, Options())


class Encoder(nn.Module):
    """A variational autoencoder with a loss of its own."""

    def __init__(self, scale: float, *, tells: bool) -> None:
        super().__init__()
        self.mean, self.spread, self.scale, self.tells = nn.Linear(4, 4), nn.Linear(4, 4), scale, tells

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> Any:
        mean = self.mean(x)
        if self.training:
            mean = mean + torch.randn_like(mean) * torch.exp(self.spread(x))
        score = mean.sum(1) * (1 if self.training else self.scale)
        return (F.mse_loss(score, label), score) if self.training or self.tells else score


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_noise_of_training_beside_a_loss_of_the_models_own_is_compared_by_the_score(scale: float, tells: bool) -> None:
    example = {"x": EXAMPLE["x"], "label": torch.zeros(4)}
    model = capture_model(
        Encoder(scale, tells=tells), schema=CRITEO, example_inputs=example, logit="", label="", loss="own"
    )
    found = model.checked(with_flags(loss="own"))
    assert found.evaluation is not None
    assert found.evaluation.has_own_loss == tells

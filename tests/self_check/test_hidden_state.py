"""What a model keeps from batch to batch, or does in evaluation alone, is found: a net does neither."""

import random
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.self_check.capture import Model, capture_model
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

Forward = Callable[["Layered", torch.Tensor], torch.Tensor]
X = {"x": torch.zeros(4, 3)}


class Layered(nn.Module):
    def __init__(self, then: Forward) -> None:
        super().__init__()
        self.first, self.top, self.then = nn.Linear(3, 4), nn.Linear(4, 1), then
        self.first.step, self.rate, self.seen = 0, 0.5, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.then(self, self.first(x))).squeeze(1)


def captured(then: Forward) -> Model:
    return capture_model(Layered(then), schema=CRITEO, example_inputs=X, logit="", label="")


def warmed_up(model: Layered, x: torch.Tensor) -> torch.Tensor:
    model.first.step += 1
    return x if model.first.step > 1000 else 2 * x


def scheduled(model: Layered, x: torch.Tensor) -> torch.Tensor:
    """A schedule that ends."""
    model.seen += 1
    return x * [1.0, *[1.0] * 50][model.seen]


def decayed(model: Layered, x: torch.Tensor) -> torch.Tensor:
    model.rate = model.rate * (1 - 1e-12)
    return x * model.rate


def logged(model: Layered, x: torch.Tensor) -> torch.Tensor:
    model.seen += 1
    model.first.step += 1
    return x


@pytest.mark.parametrize(("then", "name"), [(warmed_up, "first.step"), (scheduled, "seen"), (decayed, "rate")])
def test_a_number_that_a_later_batch_would_be_trained_by_is_refused(then: Forward, name: str) -> None:
    with pytest.raises(
        ModelError, match=rf"^forward\(\) counts in '{name}', and gives another result .* when it has counted far"
    ):
        captured(then).compare(Options())


def test_a_number_that_is_only_counted_is_the_users_own() -> None:
    model = captured(logged)
    assert model.compare(Options()) == ()


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_what_is_seldom_drawn_unseen_is_refused(draw: Callable[[], float]) -> None:
    with pytest.raises(
        ModelError, match=r"^forward\(\) of Layered draws by Python's random or by numpy, .*: draw by torch.rand"
    ):
        captured(lambda m, x: x if draw() < 0.999999 else 2 * x).compare(Options())


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (lambda m, x: 2 * x if m.training else x, "gives something else in evaluation"),
        (lambda m, x: F.dropout(x, 0.2), "drops values in evaluation, too"),
        (lambda m, x: F.scaled_dot_product_attention(*[x[:, None]] * 3, dropout_p=0.1)[:, 0], "drops values in evaluation, too"),
        (lambda m, x: x if m.training else x[:, :, None], "not compared in evaluation .*: it raises RuntimeError"),
    ],
)  # fmt: skip
def test_what_evaluation_does_otherwise_is_said(then: Forward, said: str) -> None:
    (note,) = captured(then).compare(Options())
    assert re.search(said, note)


def test_dropouts_that_evaluation_leaves_out_are_no_difference() -> None:
    assert captured(lambda m, x: F.dropout(x, 0.2, m.training)).compare(Options()) == ()


class Encoder(nn.Module):
    """A variational autoencoder with a loss of its own."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.mean, self.spread, self.scale = nn.Linear(3, 4), nn.Linear(3, 4), scale

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = self.mean(x)
        if self.training:
            mean = mean + torch.randn_like(mean) * torch.exp(self.spread(x))
        score = mean.sum(1) * (1 if self.training else self.scale)
        return F.mse_loss(score, label), score


def test_noise_of_training_beside_a_loss_of_the_models_own_is_compared_by_the_score() -> None:
    example = {**X, "label": torch.zeros(4)}
    for scale in (1.0, 3.0):
        model = capture_model(Encoder(scale), schema=CRITEO, example_inputs=example, logit="", label="", loss="own")
        if scale == 1:
            assert model.compare(with_flags(loss="own")) == ()
        else:
            with pytest.raises(ModelError, match="gives something else than without them"):
                model.compare(with_flags(loss="own"))

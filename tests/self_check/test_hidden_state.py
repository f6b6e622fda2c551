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
    assert model.compare(Options()).notes == ()


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_what_is_seldom_drawn_unseen_is_refused(draw: Callable[[], float]) -> None:
    with pytest.raises(
        ModelError, match=r"^forward\(\) of Layered draws by Python's random or by numpy, .*: draw by torch.rand"
    ):
        captured(lambda m, x: x if draw() < 0.999999 else 2 * x).compare(Options())


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (lambda m, x: F.dropout(x, 0.2), "drops values in evaluation, too"),
        (lambda m, x: F.scaled_dot_product_attention(*[x[:, None]] * 3, dropout_p=0.1)[:, 0], "drops values in evaluation, too"),
        (lambda m, x: x if m.training else x[:, :, None], "not compared in evaluation .*: it raises RuntimeError"),
    ],
)  # fmt: skip
def test_what_evaluation_does_otherwise_is_said(then: Forward, said: str) -> None:
    (note,) = captured(then).compare(Options()).notes
    assert re.search(said, note)


def test_dropouts_that_evaluation_leaves_out_are_no_difference() -> None:
    assert captured(lambda m, x: F.dropout(x, 0.2, m.training)).compare(Options()).notes == ()

"""Errors that a model raises by what values are: no net does, and it compiles without them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.self_check.capture import Model, capture_model
from htrain.spec.options import Options

Check = Callable[[nn.Module, torch.Tensor], object]
X = {"x": torch.zeros(4, 3)}
# Of a file that pytest does not read: it has other code for an assert.
CHECKS = """
def of_a_batch(model, x):
    assert (x > -1e6).all() and x.max() < 1e6, f"{x.min()} is too small"
    assert not torch.isnan(x).any()

def of_a_parameter(model, x):
    assert -1e6 <= model.scale <= 1e6
    assert (model.scale > -1e6).all().item(), "too small"

def raised(model, x):
    if x.max() > 1e6:
        print(x)
        raise ValueError("large")
    if not torch.isfinite(x).all() or model.scale.isnan():
        raise ValueError

def known(model, x):
    assert torch.ones(3).sum() > 5, "too few"

def both_ways(model, x):
    return x if x.max() > 1 else -x

def or_an_error(model, x):
    if x.max() > 1:
        return x
    if model.training:
        raise ValueError
"""


class Checking(nn.Module):
    def __init__(self, check: Check) -> None:
        super().__init__()
        self.top, self.scale = nn.Linear(3, 1), nn.Parameter(torch.tensor(1.5))
        self.check = check

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.check(self, x)
        return self.top(x * self.scale).squeeze(1)


def captured(check: str) -> Model:
    names: dict[str, Any] = {"torch": torch}
    exec(compile(CHECKS, "checks.py", "exec"), names)
    return capture_model(Checking(names[check]), schema=CRITEO, example_inputs=X, logit="", label="")


@pytest.mark.parametrize(("check", "lines"), [("of_a_batch", (3, 4)), ("of_a_parameter", (7, 8)), ("raised", (11, 14))])
def test_errors_that_values_raise_are_left_out_and_it_is_said(check: str, lines: tuple[int, int]) -> None:
    model = captured(check)
    assert model.compare(Options()).notes == ()
    told = ", ".join(f"checks.py:{line}" for line in lines)
    assert model.captured.notes == (
        f"forward() raises errors by what values are ({told}): no net does; check the data before",
    )


def test_what_is_known_raises_its_error() -> None:
    with pytest.raises(ModelError, match="AssertionError: too few"):
        captured("known")


@pytest.mark.parametrize("check", ["both_ways", "or_an_error"])
def test_an_if_that_goes_another_way_is_refused(check: str) -> None:
    with pytest.raises(ModelError, match="goes another way by the values of a batch"):
        captured(check)

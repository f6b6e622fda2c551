"""Tensors that torch.empty begins and assignments fill are trained as by PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.check import check
from htrain.self_check.torch_reference import TorchReference
from htrain.spec.options import Options

X = {"x": torch.zeros(4, 3, 5)}


class Model(nn.Module):
    """A layer, what a test makes of its output[B,3,4], and another layer."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.hidden, self.top = nn.Linear(5, 4), nn.Linear(4, 1)
        self._then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self._then(self.hidden(x))).squeeze(1)


def by_halves(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(x.shape[0], 4)
    y[:, :2] = x[:, 0, 2:]
    y[:, 2:] = 2 * x[:, 1, :2]
    return y


def by_steps(x: torch.Tensor) -> torch.Tensor:
    """A recurrence that keeps all of its states."""
    states = torch.empty_like(x)
    states[:, 0] = x[:, 0]
    for step in range(1, 3):
        states[:, step] = torch.tanh(states[:, step - 1]) + x[:, step]
    return states.sum(1)


def by_mask(x: torch.Tensor) -> torch.Tensor:
    y = x.new_empty(x.shape)
    y[x > 0] = 1.0
    y[x <= 0] = -1.0
    return x[:, 0] * y.sum(1)


def by_places(x: torch.Tensor) -> torch.Tensor:
    order = torch.empty(len(x), 4, dtype=torch.int64)
    order[:, 0::2] = torch.tensor([3, 2])
    order[:, 1::2] = torch.tensor([1, 0])
    return x[:, 2].gather(1, order)


def of_nothing(x: torch.Tensor) -> torch.Tensor:
    """No further steps, as of a memory that is empty."""
    return torch.cat([x, torch.empty(len(x), 0, 4), x.new_empty(1, 0, 4).expand(len(x), -1, -1)], 1).sum(1)


FILLED = {
    "of nothing": of_nothing,
    "by halves": by_halves,
    "by steps": by_steps,
    "by mask": by_mask,
    "by places": by_places,
    "circular padding": lambda x: F.pad(x, (1, 2), mode="circular").unfold(2, 4, 1).sum((1, 2)),
}


@pytest.mark.parametrize("name", FILLED)
def test_what_is_assigned_to_is_trained_as_by_pytorch(name: str) -> None:
    model = Model(FILLED[name])
    found = capture(model, X)
    assert check(found, TorchReference(model, found, ""), X, Options()).notes == ()


def left(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(x.shape[0], 4)
    y[:, :2] = x[:, 0, 2:]
    return y


def test_a_part_that_nobody_has_set_is_found_by_the_self_check() -> None:
    model = Model(left)
    found = capture(model, X)
    with pytest.raises(ModelError, match=r"would not be trained as by PyTorch|another result for the same batch"):
        check(found, TorchReference(model, found, ""), X, Options())


def test_memory_that_is_read_as_it_is_is_refused_by_name() -> None:
    with pytest.raises(
        ModelError,
        match=r"'empty' in forward.. of Model is not a tensor that the net computes: nobody has set its memory",
    ):
        capture(Model(lambda x: x[:, 0] + torch.empty(4)), X)

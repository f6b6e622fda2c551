"""Examples that depend on each other by ops which name none of them, or on their place in a batch, are found by numbers, and it is said."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from htrain.data import CRITEO
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.self_check.check import check
from htrain.self_check.other_examples import DEPENDS
from htrain.self_check.torch_reference import TorchReference
from htrain.spec.options import Options

Forward = Callable[[torch.Tensor], torch.Tensor]
MATRIX = {"x": torch.zeros(4, 3)}


def of_all(x: torch.Tensor) -> torch.Tensor:
    return x.new_ones(x.shape[0], x.shape[0])


OF_OTHERS: dict[str, Forward] = {
    "the other way round": lambda x: x.sum(1) * x.flip(0).mean(1),
    "summed up": lambda x: x.cumsum(0).sum(1),
    "those before": lambda x: (of_all(x).tril() @ x).sum(1),
    "all": lambda x: (of_all(x) @ x).sum(1),
    "repeated": lambda x: x.repeat(2, 1).view(x.shape[0], -1).sum(1),
    "its place": lambda x: x.sum(1) + torch.arange(x.shape[0]),
}
OF_ONE: dict[str, Forward] = {
    "a sum": lambda x: x.sum(1).relu(),
    "kinks": lambda x: x.argmax(1) * x.sum(1).round() + x.sort(1)[0][:, 0].sign(),
    "over features": lambda x: (x - x.mean(1, keepdim=True)).flip(1).cumsum(1).sum(1),
}


class Layer(nn.Module):
    def __init__(self, then: Forward) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(3, 3), then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x[B,3]."""
        return self.then(self.layer(x))


class Bags(nn.Module):
    def __init__(self, then: Forward) -> None:
        super().__init__()
        self.bag, self.then = nn.EmbeddingBag(20, 3, mode="sum"), then

    def forward(self, ids: torch.Tensor, ids_offsets: torch.Tensor) -> torch.Tensor:
        return self.then(self.bag(ids, ids_offsets))


def notes(model: nn.Module) -> tuple[str, ...]:
    captured = capture(model, MATRIX)
    return (*captured.notes, *check(captured, TorchReference(model, captured, ""), MATRIX, Options()).notes)


@pytest.mark.parametrize("name", OF_OTHERS)
def test_examples_that_depend_on_each_other_are_found(name: str) -> None:
    assert notes(Layer(OF_OTHERS[name])) == (DEPENDS,)


@pytest.mark.parametrize("name", OF_ONE)
def test_examples_of_their_own_are_not(name: str) -> None:
    assert notes(Layer(OF_ONE[name])) == ()


@pytest.mark.parametrize(("name", "found"), [("all", True), ("those before", True), ("a sum", False)])
def test_lists_of_other_examples_are_found(name: str, found: bool) -> None:
    inputs = {"ids": torch.tensor([1, 2, 3, 4, 5]), "ids_offsets": torch.tensor([0, 2, 3])}
    model = capture_model(Bags({**OF_OTHERS, **OF_ONE}[name]), schema=CRITEO, example_inputs=inputs, logit="", label="")
    assert (DEPENDS in model.compare(Options()).notes) == found


@pytest.mark.parametrize("name", ["summed up", "a sum"])
def test_a_file_tells_of_them_too(name: str, tmp_path: Path) -> None:
    axes = {"x": {0: "batch"}}
    path = tmp_path / "model.onnx"
    torch.onnx.export(
        Layer({**OF_OTHERS, **OF_ONE}[name]).eval(),
        (MATRIX["x"],),
        path,
        input_names=["x"],
        dynamic_axes=axes,
        dynamo=False,
    )
    model = capture_model(str(path), schema=CRITEO, example_inputs=None, logit="", label="")
    assert (DEPENDS in model.compare(Options()).notes) == (name in OF_OTHERS)

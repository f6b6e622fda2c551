"""What shares memory with a parameter that is trained is refused, and parameters that are held otherwise than by modules are trained as by PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.errors import ModelError, UsageError
from htrain.frontend.shared_memory import _overlap
from htrain.self_check.capture import Model, capture_model
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from tests.frontend.test_torch_model import interpret

X = {"x": torch.zeros(4, 6)}


class Weighted(nn.Module):
    """A layer whose input is weighted by what `made` is of the model."""

    def __init__(self, made: Callable[["Weighted"], Any], read: Callable[["Weighted"], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(6, 1), read
        made(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * self.read(self)).squeeze(1)


def captured(module: nn.Module, inputs: dict[str, torch.Tensor] = X) -> Model:
    return capture_model(module, schema=CRITEO, example_inputs=inputs, logit="", label="")


def frozen(model: Weighted) -> None:
    model.kept = nn.Parameter(model.layer.weight.detach()[0], requires_grad=False)


def buffered(model: Weighted) -> None:
    model.register_buffer("kept", model.layer.weight.data[0])


def kept(model: Weighted) -> None:
    model.kept = model.layer.weight.detach()[0]


def listed(model: Weighted) -> None:
    model.kept = [model.layer.weight.detach()[0]]


def viewed(model: Weighted) -> None:
    model.kept = model.layer.weight[0]


@pytest.mark.parametrize("made", [frozen, buffered, kept, listed, viewed])
def test_what_would_be_stepped_with_a_parameter_is_refused_where_it_is_read(made: Callable[[Weighted], Any]) -> None:
    def read(model: Weighted) -> torch.Tensor:
        return model.kept[0] if made is listed else model.kept

    with pytest.raises(
        ModelError, match=r"shares memory with parameter 'layer\.weight', which is trained: .*\.clone\(\)$"
    ):
        captured(Weighted(made, read))
    assert captured(Weighted(made, lambda model: torch.ones(6))).compare(Options()).notes == ()


def test_copies_and_parts_of_a_frozen_parameter_are_constants() -> None:
    def made(model: Weighted) -> None:
        model.still = nn.Linear(6, 1).requires_grad_(False)
        model.register_buffer("copy", model.layer.weight.detach()[0].clone())
        model.part = model.still.weight[0]

    model = Weighted(made, lambda model: model.copy + model.part + model.still.weight[0])
    assert captured(model).compare(Options()).notes == ()


PARTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "rows": (lambda w: w[:2], lambda w: w[2:], False),
    "columns": (lambda w: w[:, :3], lambda w: w[:, 3:], False),
    "every other column": (lambda w: w[:, ::2], lambda w: w[:, 1::2], False),
    "a row and a column": (lambda w: w[1], lambda w: w[:, 2], True),
    "transposed": (lambda w: w.T, lambda w: w[3:, 5:], True),
    "a corner": (lambda w: w[:2, :2], lambda w: w[1:, 1:], True),
    "by bytes": (lambda w: w[0], lambda w: w[0].view(torch.int16), True),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_tensor_overlap_where_an_element_is_one(name: str, device: str) -> None:
    first, second, overlaps = PARTS[name]
    whole = torch.zeros(4, 6, device=device)
    assert _overlap(first(whole), second(whole)) == _overlap(second(whole), first(whole)) == overlaps


def test_parts_of_one_tensor_that_are_apart_are_parameters_of_their_own() -> None:
    def made(model: Weighted) -> None:
        whole = torch.randn(2, 6)
        model.parts = nn.ParameterList(nn.Parameter(part) for part in whole.unbind(0))

    model = captured(Weighted(made, lambda model: model.parts[0] * 2 + model.parts[1]))
    assert {"parts.0", "parts.1"} <= model.captured.net.parameters.keys()
    assert model.compare(Options()).notes == ()


class Penalised(nn.Module):
    """Parameters in a list, in a dict and in a closure; a table that is reached by a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.rows = nn.Linear(6, 6), nn.Linear(8, 1), nn.Embedding(9, 2)
        self.scale = nn.Parameter(torch.ones(6))
        self.penalised, self.named = [self.first.weight, self.last.weight], {"scale": self.scale}
        self.tables, scale = [self.rows.weight], self.scale
        self.penalty = lambda: 0.01 * sum(w.pow(2).sum() for w in self.penalised) + 0.1 * scale.abs().sum()

    def forward(self, x: torch.Tensor, ids: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.first(x * self.named["scale"]))
        z = self.last(torch.cat([hidden, F.embedding(ids[:, 0], self.tables[0])], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(z, label) + self.penalty(), z


def test_parameters_in_lists_and_closures_are_trained() -> None:
    inputs = {"x": torch.zeros(4, 6), "ids": torch.zeros(4, 1, dtype=torch.int64), "label": torch.zeros(4)}
    model = capture_model(Penalised(), schema=CRITEO, example_inputs=inputs, logit="", label="", loss="own")
    kinds = {name: parameter.kind for name, parameter in model.captured.net.parameters.items()}
    assert (kinds["rows.weight"], kinds["scale"], len(kinds)) == ("table", "weight", 6)
    assert model.compare(with_flags(loss="own")).notes == ()


class Towers(nn.Module):
    """One tower for users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
        self.item = self.user
        self.norm = self.again = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.norm(self.user(x)) * self.again(self.item(y))).sum(1)


def test_a_batch_norm_under_two_names_moves_its_statistics_as_by_pytorch() -> None:
    module, given = Towers(), {"x": torch.randn(5, 6), "y": torch.randn(5, 6)}
    names = [name for name, _ in module.named_modules(remove_duplicate=False)]
    model = captured(module, {"x": torch.zeros(4, 6), "y": torch.zeros(4, 6)})
    assert [name for name, _ in module.named_modules(remove_duplicate=False)] == names
    model.compare(Options())
    net = model.captured.net
    statistics = {name for name, parameter in net.parameters.items() if parameter.kind == "statistic"}
    assert {name.partition(".")[0] for name in statistics} == {"user", "norm"}
    values = {name: value.clone() for name, value in module.state_dict().items()}
    found = interpret(net, values, given, 5)
    torch.testing.assert_close(found, module(**given))


@pytest.mark.parametrize(
    ("value", "seen"), [(torch.eye(4).to_sparse(), "is a sparse tensor"), ([[1.0]], "is a list"), (torch.zeros(4, 6, device="meta"), "is on the meta")]
)  # fmt: skip
def test_examples_that_no_batch_is_are_refused(value: object, seen: str) -> None:
    with pytest.raises(UsageError, match=rf"example_inputs: 'x' {seen}"):
        captured(Weighted(lambda model: None, lambda model: torch.ones(6)), {"x": value})  # type: ignore[dict-item]


def test_a_module_of_jit_is_refused_by_that() -> None:
    module = torch.jit.trace(nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), (torch.zeros(4, 6),))
    with pytest.raises(ModelError, match=r"the model is of torch\.jit \(TopLevelTracedModule\): give the nn\.Module"):
        captured(module)


def test_who_seeds_in_forward_is_told_that_a_net_draws_anew() -> None:
    def read(model: Weighted) -> torch.Tensor:
        torch.manual_seed(0)
        return torch.rand(6)

    with pytest.raises(ModelError, match=r"^forward\(\) calls torch\.manual_seed\(0\), and would draw the same"):
        captured(Weighted(lambda model: None, read))
    torch.manual_seed(0)

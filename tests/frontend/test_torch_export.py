"""A program that is translated as it was exported is the net of the decomposed one."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest
import torch
from random_modules import drawn_module, example
from torch import nn

from htrain.data import CRITEO, Schema, click_schema
from htrain.frontend import torch_export, torch_model
from htrain.frontend.load import load_model
from htrain.frontend.torch_export import export
from htrain.net.net import Net
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options
from tests.support.whole_runs import ROOT

CLICKS = click_schema(3, (50, 40, 30))
NODES = click_schema(0, (50,) * 13, tables=("ids",) * 13)
Both = tuple[Net, Net]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each program was found to need no decomposition."""
    found: list[bool] = []
    original = torch_export._is_plain
    monkeypatch.setattr(torch_export, "_is_plain", lambda program: (found.append(original(program)), found[-1])[1])
    return found


def captured(model: nn.Module, inputs: Mapping[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> Both:
    """As it is, and decomposed whatever it holds."""
    monkeypatch.setattr(torch_model, "export", export)  # not what tests remember
    as_it_is = torch_model.capture(model, inputs).net
    with monkeypatch.context() as patch:
        patch.setattr(torch_export, "_is_plain", lambda program: False)
        patch.setattr(torch_export, "without_writes", lambda program: None)
        return as_it_is, torch_model.capture(model, inputs).net


def without_names(net: Net) -> Any:
    """A net with blobs in the place of their names, numbered by first appearance."""
    known: dict[str, int] = {}

    def number(names: Iterable[str]) -> tuple[Any, ...]:
        return tuple(name if name in net.parameters else known.setdefault(name, len(known)) for name in names)

    inputs = number(net.inputs)
    ops = [(op.type, number(op.inputs), number(op.outputs), dict(op.attrs), op.module) for op in net.ops]
    blobs = {known[name]: replace(blob, name="") for name, blob in net.blobs.items() if name in known}
    assert {"ops", "blobs", "parameters", "inputs", "outputs"} <= {field.name for field in fields(net)}
    return inputs, ops, number(net.outputs), blobs, net.parameters


@pytest.mark.parametrize(
    ("model", "schema"),
    [(name, CLICKS) for name in ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py:build_v1", "dcn.py:build_v2", "wide_deep.py:build_dense_mlp")]
    + [("graphsage.py:build_classes", NODES)],
)  # fmt: skip
def test_the_zoo_needs_no_decomposition(
    model: str, schema: Schema, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(f"{ROOT}/models/{model}", schema)
    as_it_is, decomposed = captured(loaded.module, loaded.example_inputs, monkeypatch)
    assert asked == [True]
    assert without_names(as_it_is) == without_names(decomposed)


class Made(nn.Module):
    """A linear layer and something of ids behind it."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.table, self.out, self.then = nn.Embedding(9, 4), nn.Linear(4, 1), then

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.then(self.table(ids)).reshape(-1, 4)).squeeze(1)


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y += 1
    return y


def no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.sigmoid()
    return x * scale


def twice(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = y + 1
    y.add_(z).mul_(x)
    y.mul_(y)
    return y * z


def view_of_written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    half = y[:, :2]
    y += 1
    return torch.cat([half, half], 1)


def part_written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0] += 1
    return y


def written_by_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.view(-1).relu_()
    return y


WRITTEN: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "in place": in_place,
    "twice": twice,
    "relu": nn.ReLU(inplace=True),
    "layers": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LeakyReLU(inplace=True), nn.Dropout(0.3), nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)),
    "a norm without statistics": nn.BatchNorm1d(4, track_running_stats=False),
    "a norm that stays": nn.BatchNorm1d(4).eval(),
    "a mask": lambda x: x + torch.zeros_like(x).masked_fill_(x > 0, -1.5),
    "dropped": lambda x: nn.functional.dropout(x, 0.3).add_(1),
    "dtype": lambda x: x * (x > 0).float(),
    "a range": lambda x: x * torch.arange(len(x))[:, None] + torch.arange(2, 6),
}  # fmt: skip
SHAPED: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)).transpose(1, 2).square(),
    "t": lambda x: (x.unsqueeze(0).squeeze(0) * 2).squeeze(),
    "halves": lambda x: torch.cat(x.chunk(2, dim=1), dim=1),
}
OTHERS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "no grad": no_grad,
    "a view of what is written": view_of_written,
    "a part that is written": part_written,
    "what a view writes": written_by_view,
    "bilinear weights": lambda x: torch.cosine_similarity(x, x * 2 + 1, dim=1).unsqueeze(1) * x,
}


@pytest.mark.parametrize("then", SHAPED)
def test_views_are_translated_by_their_shapes(then: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {"ids": torch.zeros(2, dtype=torch.int64)}
    as_it_is, decomposed = captured(Made(SHAPED[then]), ids, monkeypatch)
    assert without_names(as_it_is) == without_names(decomposed)
    assert asked == [then != "halves"]


@pytest.mark.parametrize("then", OTHERS)
def test_what_is_made_of_other_ops_is_decomposed(then: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {"ids": torch.zeros(2, dtype=torch.int64)}
    as_it_is, decomposed = captured(Made(OTHERS[then]), ids, monkeypatch)
    assert without_names(as_it_is) == without_names(decomposed)
    assert True not in asked  # or a write was seen before


@pytest.mark.parametrize("then", WRITTEN)
def test_what_is_written_where_nobody_else_sees_it_needs_no_decomposition(
    then: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {"ids": torch.zeros(2, dtype=torch.int64)}
    as_it_is, decomposed = captured(Made(WRITTEN[then]), ids, monkeypatch)
    assert without_names(as_it_is) == without_names(decomposed)
    assert asked == [True]


def drawn_writes(seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Steps that make values, parts and views of these, and write into any."""

    def then(x: torch.Tensor) -> torch.Tensor:
        draw = Random(seed)
        values = [x * 2]
        for _ in range(draw.randrange(2, 8)):
            some, other = draw.choice(values), draw.choice(values)
            step = draw.choice(["mul", "add", "relu", "view", "part", "add_", "mul_", "relu_", "masked_fill_"])
            if step in ("mul", "add"):
                values.append(getattr(some, step)(other))
            elif step == "relu":
                values.append(some.relu())
            elif step == "view":
                values.append(some.view(-1, 2, 2).view(-1, 4))
            elif step == "part":
                values.append(some[:, :])
            elif step == "masked_fill_":
                some.masked_fill_(other > 1, 0.5)
            else:
                getattr(some, step)(*([] if step == "relu_" else [other]))
        return torch.stack(values).sum(0)

    return then


@pytest.mark.parametrize("seed", range(25))
def test_drawn_writes_are_the_same_net(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {"ids": torch.zeros(2, dtype=torch.int64)}
    as_it_is, decomposed = captured(Made(drawn_writes(seed)), ids, monkeypatch)
    assert without_names(as_it_is) == without_names(decomposed)


@pytest.mark.parametrize("seed", range(4))
def test_drawn_modules_are_the_same_net(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    as_it_is, decomposed = captured(drawn_module(seed), example(4), monkeypatch)
    assert without_names(as_it_is) == without_names(decomposed)


def test_inputs_have_the_names_of_arguments_in_whatever_letters() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.top = nn.Embedding(9, 4), nn.Linear(4, 1)

        def forward(self, a: torch.Tensor, Items: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
            return self.top(self.rows(Items) * A + a).squeeze(1)

    inputs = {"A": torch.randn(2, 4), "a": torch.randn(2, 1), "Items": torch.tensor([1, 2])}
    model = capture_model(Named(), schema=CRITEO, example_inputs=inputs, logit="", label="")
    net = model.captured.net
    assert {name: net.blobs[name].shape[1:] for name in net.inputs} == {"A": (4,), "a": (1,), "Items": (1,)}
    assert model.compare(Options()).notes == ()

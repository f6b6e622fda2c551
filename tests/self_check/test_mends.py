"""Each way to train something else without a word: refused or honoured; and found by the self-check alone when that mend is taken out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from htrain.errors import ModelError
from htrain.frontend import aten_ops, torch_export, torch_model, whole_bags
from htrain.frontend.aten_forms import Call
from htrain.frontend.captured import Captured
from htrain.self_check.check import check
from htrain.self_check.torch_reference import TorchReference
from htrain.spec.options import Options

IDS = {"ids": torch.zeros(4, 3, dtype=torch.int64)}
Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Model(nn.Module):
    """A table, two layers, and what a test puts between them."""

    def __init__(self, between: Forward, build: Callable[[nn.Module], None] = lambda model: None) -> None:
        super().__init__()
        self.table, self.hidden, self.top = nn.Embedding(30, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self._between = between
        build(self)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.hidden(self.table(ids).mean(1))
        return self.top(self._between(self, x)).squeeze(1)


def captured(model: nn.Module, inputs: dict[str, torch.Tensor] = IDS) -> tuple[Captured, tuple[str, ...]]:
    """What is captured, and the notes of the self-check, which finds no difference."""
    found = torch_model.capture(model, inputs)
    return found, check(found, TorchReference(model, found, ""), inputs, Options()).notes


@contextmanager
def nothing() -> Iterator[None]:
    yield


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return 3 * dy


apply = Triple.apply


def without_gradients(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        left, right = model.hidden(x).chunk(2, 1)
        scale = torch.cat([right, left], 1)
    with torch.enable_grad():
        return x + scale * model.hidden(x)


def with_hook(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if x.requires_grad:
        x.register_hook(lambda dx: 2 * dx)
    return x


def set_attribute(**attributes: object) -> Callable[[nn.Module], None]:
    def build(model: nn.Module) -> None:
        for name, value in attributes.items():
            setattr(model, name, value)

    return build


def padded(model: nn.Module) -> None:
    model.table = nn.Embedding(30, 4, padding_idx=1)


def padded_anew(model: nn.Module) -> None:
    padded(model)
    nn.init.normal_(model.table.weight)


def by_frequency(model: nn.Module) -> None:
    model.table = nn.Embedding(30, 4, scale_grad_by_freq=True)


def same(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x


class Bags(nn.Module):
    """Lists of ids of any length."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.bags, self.top = nn.EmbeddingBag(30, 4, mode="sum", **options), nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top(self.bags(ids)).squeeze(1)


def counting(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.calls += 1
    return x * model.calls


HONOURED = {
    "a padding row's weight is read as a matrix, too": Model(lambda m, x: x @ m.table.weight[:4], padded),
    "a padding row that was initialised anew": Model(same, padded_anew),
    "a padding row that another lookup steps": Model(
        lambda m, x: x + F.embedding(torch.ones_like(x).long(), m.table.weight).sum(1), padded
    ),
    "no_grad": Model(without_gradients),
    "data": Model(lambda m, x: x * m.hidden(x).data),
    "a layer that forward() makes": Model(lambda m, x: nn.LayerNorm(4)(x) * nn.PReLU()(x - 0.5)),
    "one bias for all outputs": Model(
        lambda m, x: F.linear(x, m.hidden.weight, m.one) + F.linear(x, m.hidden.weight, m.one[0]),
        set_attribute(one=nn.Parameter(torch.ones(1))),
    ),
    "a threshold": Model(lambda m, x: F.softplus(9 * x, 1, 0.5)),
    "a function with a backward": Model(lambda m, x: Triple.apply(x)),
    "its apply, taken before": Model(lambda m, x: apply(x)),
}


@pytest.mark.parametrize("name", HONOURED)
def test_what_is_honoured_is_trained_as_by_pytorch(name: str) -> None:
    assert captured(HONOURED[name])[1] == ()


def unpadded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aten_ops, "without_padding_gradient", lambda builder, rows, ids, padding, *, module: rows)
    monkeypatch.setattr("htrain.compiler.lowering.read_padding_rows", lambda net, values: net)


class Untold(TorchFunctionMode):
    """The gradient rules, taken out."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def unruled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_export, "GradientRules", Untold)


def unknown_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_export, "traced_functions", nothing)


@pytest.mark.parametrize(
    ("name", "take_out", "what"),
    [
        ("a padding row's weight is read as a matrix, too", unpadded, "the gradient of 'table.weight'"),
        ("a padding row that was initialised anew", unpadded, "the l"),
        ("a padding row that another lookup steps", unpadded, "the l"),
        ("no_grad", unruled, "the gradient of 'hidden"),
        ("a function with a backward", unknown_functions, "the gradient of 'hidden"),
        ("its apply, taken before", unknown_functions, "the gradient of 'hidden"),
    ],
)
def test_without_its_mend_the_self_check_finds_it(
    name: str, take_out, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(monkeypatch)
    with pytest.raises(
        ModelError, match=f"^the self-check found that this model would not be trained as by PyTorch: {what}"
    ):
        captured(HONOURED[name])


def unknown_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Call, "unread", lambda call: {})


def unchecked_bags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_bags, "_check_bag", lambda *given, **named: None)


def unchecked_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_model, "check_module", lambda model: None)


def unchanged_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the self-check finds it."""


def hooked_module(model: nn.Module) -> None:
    model.hidden.register_full_backward_hook(lambda module, dx, dy: (2 * dx[0],))


def hooked_root(model: nn.Module) -> None:
    model.register_full_backward_pre_hook(lambda module, dy: (2 * dy[0],))


def hooked_parameter(model: nn.Module) -> None:
    model.hidden.weight.register_hook(lambda dw: dw.clamp(-1e-3, 1e-3))


def hooked_after(model: nn.Module) -> None:
    def double(parameter: torch.Tensor) -> None:
        parameter.grad *= 2

    model.top.bias.register_post_accumulate_grad_hook(double)


ARGUMENT = r"cannot be compiled: htrain does not follow its argument "
REFUSED = {
    "scale_grad_by_freq": (Model(same, by_frequency), unknown_arguments, "^aten.embedding.default in module 'table' " + ARGUMENT),
    "bags by frequency": (Bags(scale_grad_by_freq=True), unchecked_bags, "^an EmbeddingBag with scale_grad_by_freq cannot be compiled"),
    "a module's hook": (Model(same, hooked_module), unchecked_module, "^module 'hidden' has a hook on gradients, which htrain does not run"),
    "the model's hook": (Model(same, hooked_root), unchecked_module, "^the model Model has a hook on gradients"),
    "a parameter's hook": (Model(same, hooked_parameter), unchecked_module, "^parameter 'hidden.weight' has a hook on gradients"),
    "a hook after a gradient": (Model(same, hooked_after), unchecked_module, "^parameter 'top.bias' has a hook on gradients"),
    "a tensor's hook": (Model(with_hook), unruled, r"^forward\(\) calls register_hook\(\): htrain runs no hooks on gradients"),
    "elu's scales": (Model(lambda m, x: torch.ops.aten.elu(x, 1.6, 1.05)), unknown_arguments, ARGUMENT + "scale=1.05"),
    "a counter": (Model(counting, set_attribute(calls=0)), unchanged_only, "another result for the same batch the second time"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_followed_is_refused_by_name(name: str) -> None:
    model, _, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        captured(model)


@pytest.mark.parametrize("name", REFUSED)
def test_without_its_refusal_the_self_check_finds_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, take_out, _ = REFUSED[name]
    take_out(monkeypatch)
    with pytest.raises(
        ModelError,
        match=r"^the self-check found that this model|gives another result for the same batch the second time",
    ):
        captured(model)

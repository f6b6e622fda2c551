"""What a model keeps from batch to batch, or does in evaluation alone, is found: a net does neither."""

import random
import re
from collections import deque
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


def unfrozen(model: Layered, x: torch.Tensor) -> torch.Tensor:
    """Only the gradient goes by the count."""
    model.seen += 1
    return x.detach() if model.seen < 10 else x


def each_fifth(model: Layered, x: torch.Tensor) -> torch.Tensor:
    model.seen += 1
    return 3 * x if model.seen % 5 == 0 else x


def each_hundredth_before(model: Layered, x: torch.Tensor) -> torch.Tensor:
    found = 3 * x if model.seen % 100 == 99 else x
    model.seen += 1
    return found


@pytest.mark.parametrize(
    ("then", "name"),
    [
        (warmed_up, "first.step"),
        (scheduled, "seen"),
        (decayed, "rate"),
        (unfrozen, "seen"),
        (each_fifth, "seen"),
        (each_hundredth_before, "seen"),
    ],
)
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


def averaged(model: Layered, x: torch.Tensor) -> torch.Tensor:
    """Of the first batch, the mean is that of the batch, whenever it comes again."""
    mean = x.detach().mean(0)
    before = getattr(model, "kept", None)
    model.kept = mean if before is None else 0.9 * before + 0.1 * mean
    return x - model.kept


def queued(model: Layered, x: torch.Tensor) -> torch.Tensor:
    model.__dict__.setdefault("kept", deque(maxlen=4)).append(x.detach().mean(0))
    return x - torch.stack(list(model.kept)).mean(0)


def named(model: Layered, x: torch.Tensor) -> torch.Tensor:
    state = model.__dict__.setdefault("kept", {})
    mean = x.detach().mean(0)
    state["m"] = 0.9 * state.get("m", mean) + 0.1 * mean
    return x - state["m"]


def of_the_last_batch(model: Layered, x: torch.Tensor) -> torch.Tensor:
    last = getattr(model, "kept", None)
    model.kept = x.detach()
    return x if last is None else x + (x - last).detach().mean(0)


@pytest.mark.parametrize("then", [averaged, queued, named, of_the_last_batch])
def test_what_begins_with_the_first_batch_and_is_kept_is_refused(then: Forward) -> None:
    with pytest.raises(
        ModelError, match=r"^forward\(\) of Layered gives another result for the same batch behind another"
    ):
        captured(then).compare(Options())


def remembered(model: Layered, x: torch.Tensor) -> torch.Tensor:
    """A mask that is made once for each size, and the last activations, which nobody reads."""
    masks = model.__dict__.setdefault("masks", {})
    masks.setdefault(x.shape[1], torch.ones(x.shape[1]))
    model.last = x.detach()
    return x * masks[x.shape[1]]


def test_what_is_kept_and_changes_nothing_compiles() -> None:
    assert captured(remembered).compare(Options()).notes == ()


class Encoded(nn.Module):
    def __init__(self, *, nested: bool, masked: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
        self.encoder, self.masked = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested), masked
        self.item, self.top = nn.Embedding(20, 4), nn.Linear(4, 1)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        padding = torch.cat([torch.zeros_like(seen[:, :1]).bool(), seen[:, 1:] == 0], 1) if self.masked else None
        return self.top(self.encoder(self.item(seen), src_key_padding_mask=padding).mean(1)).squeeze(1)


@pytest.mark.parametrize(("nested", "masked"), [(True, True), (False, True), (True, False)])
def test_padded_places_that_pytorch_makes_zeros_in_evaluation_are_told_of(nested: bool, masked: bool) -> None:
    inputs = {"seen": (torch.arange(5) < torch.arange(1, 9).unsqueeze(1)).long() * 7}  # lists, and zeros behind them
    module = Encoded(nested=nested, masked=masked)
    with torch.no_grad():
        module.eval()
        is_other = not torch.allclose(module(**inputs), _without_fast_path(lambda: module(**inputs)), atol=1e-6)
    model = capture_model(module.train(), schema=CRITEO, example_inputs=inputs, logit="", label="")
    notes = [note for note in model.compare(Options()).notes if "makes zeros of padded places" in note]
    assert len(notes) == is_other == (nested and masked)


def _without_fast_path(run: Callable[[], torch.Tensor]) -> torch.Tensor:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return run()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def near_the_first(model: Layered, x: torch.Tensor) -> torch.Tensor:
    """Weights are to stay near those of the first batch."""
    weight = next(model.parameters())
    if not hasattr(model, "kept"):
        model.kept = weight.detach().clone()
    return x + (weight - model.kept).pow(2).sum()


def normed_once(model: Layered, x: torch.Tensor) -> torch.Tensor:
    return x * model.__dict__.setdefault("kept", {}).setdefault("norm", next(model.parameters()).detach().norm())


@pytest.mark.parametrize("then", [near_the_first, normed_once])
def test_what_is_kept_of_the_first_parameters_is_refused(then: Forward) -> None:
    with pytest.raises(
        ModelError, match=r"^forward\(\) of Layered keeps what it once made of its parameters, and gives"
    ):
        captured(then).compare(Options())


def centred(model: Layered, x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0) if len(x) > 1 else x


def doubled(model: Layered, x: torch.Tensor) -> torch.Tensor:
    return 2 * x if x.shape[0] == 1 else x


def refused(model: Layered, x: torch.Tensor) -> torch.Tensor:
    if len(x) < 2:
        raise ValueError("too few\nfor a mean")
    return x


@pytest.mark.parametrize(("then", "is_told"), [(centred, True), (doubled, True), (refused, False)])
def test_a_batch_of_one_example_that_is_another_matter_is_told_of(then: Forward, is_told: bool) -> None:
    """Of one that PyTorch refuses there is nothing to tell."""
    notes = captured(then).compare(Options()).notes
    told = [note for note in notes if re.match(r"a batch of one example.* forward\(\) goes another way", note)]
    assert len(told) == len(notes) == is_told

"""What masks pick by the values of a batch has PyTorch's losses and gradients, whether they pick all, a few or nothing."""

import math
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from picking import EXAMPLE, LENGTH, LOSSES, ROWS, Sequence
from torch import nn

from htrain.errors import ModelError
from htrain.frontend.captured import Captured
from htrain.frontend.torch_model import capture
from htrain.self_check.check import check
from htrain.self_check.ours import Ours
from htrain.self_check.outcome import Outcome, Rows
from htrain.self_check.torch_reference import TorchReference
from htrain.self_check.values import draw_values
from htrain.spec.options import Options

OWN = Options(loss="own")
SUMS = (
    "clicked_examples",
    "rows_and_places",
    "pairs",
    "rare_items",
    "some_items",
    "those_in_batch",
)  # which are finite where nothing is picked


@cache
def models(name: str) -> tuple[Captured, Ours, TorchReference]:
    model = Sequence(LOSSES[name])
    captured = capture(model, EXAMPLE, own_loss=True)
    return captured, Ours(captured, OWN), TorchReference(model, captured, "")


@st.composite
def batches(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Of 2 to 7 examples, of whose items all, some or none are padding, and of which all, some or none are clicks."""
    count, seed = draw(st.integers(2, 7)), draw(st.integers(0, 2**31))
    padding, clicks = (draw(st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0))) for _ in range(2))
    generator = torch.Generator().manual_seed(seed)
    sparse = torch.randint(0, ROWS, (count, 26), generator=generator)
    padded = torch.rand(count, 26, generator=generator) < padding
    sparse[:, LENGTH : 2 * LENGTH] = torch.where(padded, 0, sparse)[:, LENGTH : 2 * LENGTH]
    label = (torch.rand(count, generator=generator) < clicks).float()
    return {"dense": torch.randn(count, 13, generator=generator), "sparse": sparse, "label": label}


@pytest.mark.parametrize("name", LOSSES)
@given(batch=batches(), seed=st.integers(0, 100))
@settings(max_examples=12, derandomize=True)
def test_losses_and_gradients_are_those_of_pytorch(name: str, batch: dict[str, torch.Tensor], seed: int) -> None:
    captured, ours, theirs = models(name)
    values = draw_values(captured, torch.Generator().manual_seed(seed), positive=False, scale=0.3)
    try:
        wanted = theirs.run(values, batch, batch["label"], "own", probability=False)
    except ValueError:  # a norm has no statistics of one example
        return
    found = ours.run(values, batch, batch["label"])
    if math.isfinite(wanted.loss):
        assert_same(found, wanted)
    else:
        assert name not in SUMS


@pytest.mark.parametrize("name", ["one_mask", "masks_alike", "places"])
def test_nothing_is_learned_of_the_mean_over_nothing(name: str) -> None:
    """As of a batch without examples; PyTorch's mean of nothing is not a number, and ends what is trained."""
    captured, ours, _ = models(name)
    values = draw_values(captured, torch.Generator().manual_seed(0), positive=False, scale=0.3)
    found = ours.run(values, {**EXAMPLE, "sparse": torch.zeros(6, 26, dtype=torch.int64)}, EXAMPLE["label"])
    assert found.loss == 0
    dense = [gradient for gradient in found.gradients.values() if not isinstance(gradient, Rows)]
    assert dense
    assert not any(gradient.any() for gradient in dense)


def assert_same(found: Outcome, wanted: Outcome) -> None:
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(torch.tensor(found.loss), torch.tensor(wanted.loss), **close)
    for name, gradient in wanted.gradients.items():
        own = found.gradients[name]
        if isinstance(gradient, Rows):
            assert isinstance(own, Rows)
            torch.testing.assert_close(whole(own), whole(gradient), **close)
        else:
            torch.testing.assert_close(own, gradient, **close)


def whole(gradient: Rows) -> torch.Tensor:
    return torch.zeros(ROWS, gradient.rows.shape[1]).index_copy(0, gradient.ids, gradient.rows)


def of_draws(*given: torch.Tensor) -> torch.Tensor:
    """Negatives and noise, as many as real items."""
    model, states, near, _, ids, _, _ = given
    real = ids > 0
    negatives = torch.randint(ROWS, (ids[real].shape[0], 3))
    others = torch.multinomial(states[real].abs() + 0.1, 2)
    far = (states[real][:, None] * model.items(negatives)).sum(2) + states[real].gather(1, others).sum(1, keepdim=True)
    noise = torch.randn_like(states[real]) + torch.rand(len(near[real]), 1)
    return nn.functional.softplus(far - near[real][:, None]).mean() + (states[real] * noise).square().mean()


def test_draws_for_what_a_mask_picks_are_trained_as_by_pytorch() -> None:
    model = Sequence(of_draws)
    captured = capture(model, EXAMPLE, own_loss=True)
    assert check(captured, TorchReference(model, captured, ""), EXAMPLE, OWN) == ()


def guarded(*given: torch.Tensor) -> torch.Tensor:
    """Which way it goes, a batch says: no net has both."""
    _, _, near, _, ids, _, _ = given
    picked = near[ids > 0]
    return picked.mean() if len(picked) > 0 else near.sum() * 0


def changed(*given: torch.Tensor) -> torch.Tensor:
    """Two masks are made in the same way, and then one is changed."""
    _, _, near, far, ids, _, _ = given
    first, second = ids != 0, ids != 0
    loss = nn.functional.binary_cross_entropy_with_logits(near[first], torch.ones_like(near[second]))
    first[:, 0] = True
    return loss + near[first].mean() + far[second].mean()


REFUSED = {
    guarded: r"of how many elements a mask picks, has no place in a net; .* divide them by max\(len\(picked\), 1\) \(in its forward",
    changed: r"forward\(\) changes a mask in place that it has made twice: make it once",
}


@pytest.mark.parametrize("loss", REFUSED, ids=lambda loss: loss.__name__)
def test_what_no_net_can_do_is_refused_with_its_line(loss: Any) -> None:
    with pytest.raises(ModelError, match=REFUSED[loss]):
        capture(Sequence(loss), EXAMPLE, own_loss=True)

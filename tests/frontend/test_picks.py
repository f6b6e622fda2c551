"""What masks pick by the values of a batch has PyTorch's losses and gradients, whether they pick all, a few or nothing."""

import math
import re
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


def neighbours(*given: Any) -> torch.Tensor:
    """Places below 0 count from the end of what they pick from, however long that is."""
    _, h, near, _, ids, z, _ = given
    picked, joined = near[ids > 0], torch.cat([z, near[:, 0]])
    both = torch.cat([h[:, 0], h[ids > 0]])
    loss = (picked[torch.arange(len(picked)) - 1] * picked).sum() + (
        joined[torch.arange(2 * len(z)) - 1] * joined
    ).sum()
    return loss + (both[torch.arange(len(both)) - 1, torch.arange(len(both)) % 4] * both[:, 0]).sum()


def distinct_below_zero(*given: Any) -> torch.Tensor:
    """Distinct numbers are no places."""
    _, h, _, _, _, z, _ = given
    places = torch.unique(-1 - torch.arange(len(z)))
    return (h[places] * torch.arange(len(places))[:, None, None]).sum()


def lengths_apart(*given: Any) -> torch.Tensor:
    """As many as one mask picks and another does not, and other numbers of both."""
    _, _, near, _, ids, z, _ = given
    picked, some = near[ids > 0], near[(ids > 0) & (ids > 20)]
    joined = torch.cat([picked, torch.zeros(len(picked) - len(some)) + 0.5])
    more = torch.cat([some, torch.ones(2 * len(some))]).tanh().sum()
    rest = torch.arange(len(picked), near.numel()).sum() + torch.ones(max(len(some), len(z))).cumsum(0).sum()
    return joined.tanh().sum() + more + rest * z.mean() / 100


def largest_of_several(*given: Any) -> torch.Tensor:
    _, _, near, far, ids, z, _ = given
    picked, other = near[ids > 0], far[ids % 2 == 0]
    loss = picked.sum() / max(len(picked), 1, 4) + z.sum() / max(len(picked) / 2, 1.5, len(other))
    return loss * min(3, len(other), len(z)) + picked.sum() * max([len(picked), 2]) / max(1.0, len(picked))


def one_for_all_picked(*given: Any) -> torch.Tensor:
    """What is one thing for each element that is picked."""
    m, h, near, _, ids, z, _ = given
    picked, states = h[ids > 0], h.clone()
    bias = (
        m.body.bias.expand(len(picked), 4)
        + m.body.bias[None].repeat(len(picked), 1) * z.mean().expand(len(picked))[:, None]
    )
    states[ids > 0] = m.body.bias
    square = torch.full((len(picked), len(z)), 1 / len(z)) * near[ids > 0][:, None]
    return (picked * bias).sum() + states.square().sum() + (square * z).sum()


def written_twice(*given: Any) -> torch.Tensor:
    """Masks of parts of ids, of their remainders and of sums."""
    _, _, near, _, ids, z, y = given
    loss = of_ones(near[:, 1:][ids[:, 1:] != 0], near[:, 1:][ids[:, 1:] != 0]) + of_ones(
        z[ids[:, 0] > 9], y[ids[:, 0] > 9]
    )
    loss = loss + of_ones(near[ids % 5 != 0], near[ids % 5 != 0]) + of_ones(z[y.long() == 1], y[y.long() == 1])
    return loss + of_ones(z[ids.sum(1) > 60], y[ids.sum(1) > 60])


def of_ones(scores: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(scores, torch.ones_like(like), reduction="sum")


OTHERS = (written_twice, neighbours, distinct_below_zero, lengths_apart, largest_of_several, one_for_all_picked)
CASES = {**LOSSES, **{loss.__name__: loss for loss in OTHERS}}


@cache
def models(name: str) -> tuple[Captured, Ours, TorchReference]:
    model = Sequence(CASES[name])
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


@pytest.mark.parametrize("name", CASES)
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
        assert name in LOSSES
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
    noise = noise + torch.rand(len(near[real]) + len(near[near > 0])).sum() / 50
    return nn.functional.softplus(far - near[real][:, None]).mean() + (states[real] * noise).square().mean()


def test_draws_for_what_a_mask_picks_are_trained_as_by_pytorch() -> None:
    model = Sequence(of_draws)
    captured = capture(model, EXAMPLE, own_loss=True)
    assert check(captured, TorchReference(model, captured, ""), EXAMPLE, OWN).notes == ()


def guarded(*given: torch.Tensor) -> torch.Tensor:
    """Which way it goes, a batch says: no net has both."""
    _, _, near, _, ids, _, _ = given
    picked = near[ids > 0]
    return picked.mean() if len(picked) > 3 else near.sum() * 0


def whether_any(*given: torch.Tensor) -> torch.Tensor:
    """That a mask picks something is a number here."""
    _, _, near, _, ids, _, _ = given
    return near.square().mean() * bool((ids > 0).any())


def changed(*given: torch.Tensor) -> torch.Tensor:
    """Two masks are made in the same way, and then one is changed."""
    _, _, near, far, ids, _, _ = given
    first, second = ids != 0, ids != 0
    loss = nn.functional.binary_cross_entropy_with_logits(near[first], torch.ones_like(near[second]))
    first[:, 0] = True
    return loss + near[first].mean() + far[second].mean()


def rescued(*given: torch.Tensor) -> torch.Tensor:
    """What is caught is torch's question while it is captured: with values, no error comes."""
    _, _, near, _, ids, z, _ = given
    picked = near[ids > 0]
    try:
        return z.sum() if len(picked) == 1 else picked.sum()
    except Exception:
        return z.sum() * 3


def among_pairs(*given: torch.Tensor) -> torch.Tensor:
    _, _, _, _, _, z, y = given
    return nn.functional.softplus(z[None] - z[:, None])[y[:, None] > y[None]].sum()


REFUSED = {
    whether_any: r"or of how many elements a mask picks, has no place in a net; .* \(in its forward",
    guarded: r"of how many elements a mask picks, has no place in a net; .* divide them by max\(len\(picked\), 1\) \(in its forward",
    changed: r"forward\(\) changes a mask in place that it has made twice: make it once",
    rescued: r"another way by the values of a batch: .* \(\S+test_picks.py:\d+\)$",
    among_pairs: "^aten.index.Tensor .* a mask that depends on the batch must have it as one dimension",
}


@pytest.mark.parametrize("loss", REFUSED, ids=lambda loss: loss.__name__)
def test_what_no_net_can_do_is_refused_with_its_line(loss: Any) -> None:
    with pytest.raises(ModelError, match=REFUSED[loss]):
        capture(Sequence(loss), EXAMPLE, own_loss=True)


def test_a_line_that_asks_whether_a_mask_picks_anything_is_told_of() -> None:
    captured = capture(Sequence(LOSSES["none_first"]), EXAMPLE, own_loss=True)
    assert len(captured.supposed) == 2
    lines = r"\(\S+picking.py:\d+, \S+picking.py:\d+\)"
    assert re.fullmatch(rf"a mask is taken to pick something in every batch {lines}: .*", captured.notes[-1])


def other_way(*given: torch.Tensor) -> torch.Tensor:
    """Of a batch in which nothing is picked it learns something else."""
    _, _, near, _, ids, logit, _ = given
    if (ids > 0).any():
        return near[ids > 0].square().mean()
    return (logit - 3).square().mean()


def other_way_of_clicks(*given: torch.Tensor) -> torch.Tensor:
    """It is examples without a click that it asks for."""
    *_, logit, clicks = given
    if (clicks < 0.5).any():
        return logit[clicks < 0.5].square().mean()
    return (logit - 3).square().mean()


@pytest.mark.parametrize("way", [other_way, other_way_of_clicks])
def test_what_is_learned_of_nothing_and_no_net_can_is_refused_with_its_line(way: Any) -> None:
    model = Sequence(way)
    captured = capture(model, EXAMPLE, own_loss=True)
    with pytest.raises(
        ModelError,
        match=r"goes another way where a mask picks nothing \(\S+test_picks.py:\d+\): .* the loss is 0, by PyTorch \d",
    ):
        check(captured, TorchReference(model, captured, ""), EXAMPLE, OWN)

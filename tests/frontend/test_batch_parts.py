"""Batches that are joined, as two views of one are by contrastive losses, and cut apart again, are trained as by PyTorch."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.spec.tree import with_flags

Parts = tuple[torch.Tensor, ...]
Loss = Callable[["Towers", torch.Tensor, torch.Tensor], torch.Tensor]
EXAMPLE = {"ids": torch.zeros(6, 4, dtype=torch.int64), "label": torch.zeros(6)}


class Towers(nn.Module):
    """A loss of two towers' outputs[B,4] of ids[B,4], and a score."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.rows, self.tower, self.loss = nn.Embedding(30, 4), nn.Linear(4, 4), loss

    def forward(self, ids: torch.Tensor, label: torch.Tensor) -> Parts:
        first, second = self.tower(self.rows(ids[:, 0])), self.tower(self.rows(ids[:, 1:3])).mean(1)
        return self.loss(self, first, second), (first * second).sum(1)


def check(loss: Loss) -> None:
    model = capture_model(Towers(loss), schema=CRITEO, example_inputs=EXAMPLE, logit="", label="", loss="own")
    assert model.compare(with_flags(loss="own")).notes == ()


def nearest(model: Towers, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """NT-Xent."""
    count, both = len(first), F.normalize(torch.cat([first, second]), dim=1)
    scores = (both @ both.T / 0.5).masked_fill(torch.eye(2 * count, dtype=torch.bool), -1e9)
    return F.cross_entropy(scores, torch.cat([torch.arange(count) + count, torch.arange(count)]))


def squares(model: Towers, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Of all pairs of both, those of one example."""
    both, count = torch.cat((first, second), dim=0), first.shape[0]
    scores = both @ both.T
    own = scores[:count, count:].diagonal() + scores[count:, :count].diagonal()
    return torch.logsumexp(scores, 1).mean() - own.mean()


LOSSES: dict[str, Loss] = {
    "nearest": nearest,
    "squares of all pairs": squares,
    "candidates beside others": lambda m, a, b: F.cross_entropy(torch.cat([a @ b.T, a @ a.T], 1), torch.arange(len(a))),
    "labels that are made": lambda m, a, b: F.binary_cross_entropy_with_logits(
        torch.cat([a.sum(1), b.sum(1)]), torch.cat([torch.ones_like(a[:, 0]), torch.zeros(len(b))])
    ),
    "ids that are joined": lambda m, a, b: (m.rows(torch.cat([torch.arange(len(a)) % 30, torch.arange(len(a)) % 7])) * a.repeat(2, 1)).mean(),
    "distances": lambda m, a, b: torch.cdist(a, b).mean() + torch.cdist(a, m.rows.weight[:9]).sigmoid().mean(),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_joined_batches_are_trained_as_by_pytorch(name: str) -> None:
    check(LOSSES[name])


CUTS: dict[str, Callable[[torch.Tensor, int, int], Parts]] = {
    "chunk": lambda x, parts, count: x.chunk(parts),
    "torch.chunk": lambda x, parts, count: torch.chunk(x, chunks=parts, dim=0),
    "split": lambda x, parts, count: x.split(count),
    "torch.split": lambda x, parts, count: torch.split(x, [count] * parts, dim=-2),
    "slices": lambda x, parts, count: tuple(x[k * count : (k + 1) * count] for k in range(parts)),
    "from behind": lambda x, parts, count: tuple(x[-k * count :][:count] for k in range(parts, 0, -1)),
    "rows": lambda x, parts, count: x.view(parts, count, -1).unbind(0),
}


@settings(deadline=None, max_examples=12)
@given(st.lists(st.sampled_from([1, 2]), min_size=2, max_size=3), st.booleans(), st.sampled_from(sorted(CUTS)))
def test_what_is_joined_in_any_order_comes_apart_in_that_order(sizes: list[int], nested: bool, cut: str) -> None:
    """Parts of one batch, or of two that were joined before; each has a weight of its own."""

    def loss(model: Towers, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        parts = [first if size == 1 else torch.cat([second, 2 * first]) for size in sizes]
        joined = torch.cat([torch.cat(parts[:2]), *parts[2:]]) if nested else torch.cat(parts)
        apart = CUTS[cut](model.tower(joined).tanh(), sum(sizes), len(first))
        assert len(apart) == sum(sizes)
        return sum((k + 1) * part.square() * second for k, part in enumerate(apart)).mean()  # type: ignore[union-attr]

    check(loss)


REFUSED: dict[str, tuple[Loss, str]] = {
    "half a batch": (lambda m, a, b: a[: len(a) // 2].mean(), "the model's code fixes the batch dimension"),
    "a batch and rows of a table": (lambda m, a, b: torch.cat([a, m.rows.weight[:9]]).mean(), "is not a multiple of the batch size"),
    "all but the first": (lambda m, a, b: torch.cat([a, b])[1:].mean(), "it cuts the batch|is not a multiple"),
    "across parts": (lambda m, a, b: torch.cat([a, b])[len(a) - 1 : 2 * len(a) - 1].mean(), "it cuts the batch|is not a multiple"),
    "pairs": (lambda m, a, b: torch.pdist(a).mean(), r"take torch.cdist\(x, x\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_parts_are_refused(name: str) -> None:
    loss, why = REFUSED[name]
    with pytest.raises(ModelError, match=why):
        capture(Towers(loss), EXAMPLE, own_loss=True)

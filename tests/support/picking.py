"""A model of sequences whose losses are made of what masks pick by the values of a batch, written as recommenders write them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from htrain.data import click_schema
from htrain.frontend.load import example_batch

BATCH, ROWS, LENGTH = 8, 40, 5
EXAMPLE = {
    **{n: v for n, v in example_batch(click_schema(13, (ROWS,) * 26), 6).items() if n in ("dense", "sparse")},
    "label": torch.zeros(6),
}


class Sequence(nn.Module):
    """States[B,L,4] of a sequence of items, scores[B,L] of the next item and of another one, and the loss that a test makes of them."""

    def __init__(self, loss: "Loss") -> None:
        super().__init__()
        self.items, self.body, self.out = nn.Embedding(ROWS, 4), nn.Linear(4, 4), nn.Linear(4, ROWS)
        self.norm, self.state_norm, self.tower = nn.BatchNorm1d(4), nn.LayerNorm(4), nn.Linear(13, 1)
        for parameter in (self.items.weight, self.body.weight, self.out.weight):
            nn.init.normal_(parameter, 0.0, 0.4)
        self.loss = loss

    def forward(
        self, dense: torch.Tensor, sparse: torch.Tensor, label: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """dense[B,13], sparse[B,26], label[B]; an item whose number is a multiple of 3 is padding."""
        states = torch.tanh(self.body(self.items(sparse[:, :LENGTH])))
        following = sparse[:, LENGTH : 2 * LENGTH]
        following = following * (following % 3 != 0)
        near = (states * self.items(following)).sum(2)
        far = (states * self.items(sparse[:, 10:15])).sum(2)
        logit = near[:, -1] + self.tower(dense).squeeze(1)
        return self.loss(self, states, near, far, following, logit, label), logit


Loss = Callable[..., torch.Tensor]
bce = F.binary_cross_entropy_with_logits


def of_one_mask(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """SASRec's, with a mask of a name."""
    real = ids != 0
    return bce(near[real], torch.ones_like(near[real])) + bce(far[real], torch.zeros_like(far[real]))


def of_masks_alike(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    return bce(near[ids != 0], torch.ones_like(near[ids != 0])) + bce(far[ids != 0], torch.zeros_like(far[ids != 0]))


def of_places(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """SASRec's, as its well-known code for PyTorch has it."""
    places = torch.where(ids != 0)
    loss = bce(near[places], torch.ones_like(near)[places])
    return loss + bce(far[places], torch.zeros(far.shape)[places])


def of_some_items(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """BERT4Rec's: only what is masked is classified."""
    masked = ids % 5 == 1
    return F.cross_entropy(m.out(h[masked]), ids[masked], reduction="sum") / (masked.sum() + 1)


def of_flat_places(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    places = torch.nonzero(ids.flatten()).squeeze(1)
    logits = m.out(h.reshape(-1, 4).index_select(0, places))
    return F.nll_loss(F.log_softmax(logits, 1), ids.flatten()[places])


def of_items_looked_up_behind(
    m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor
) -> Tensor:
    real = ids > 0
    return bce((h[real] * m.items(ids[real] - 1)).sum(1), y[:, None].expand(-1, LENGTH)[real])


def of_clicked_examples(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """What comes behind a click is learned of those alone that have one; a batch may have none."""
    clicked = y > 0.5
    return bce(z, y) + (near[clicked, -1] - 1).square().sum() / (len(near[clicked]) + 1)


def of_pairs(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Every click above every example without one."""
    return F.softplus(z[y < 0.5][None, :] - z[y >= 0.5][:, None]).sum() / len(z) ** 2


def of_those_in_batch(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """A softmax among the examples that were picked."""
    kept = ids[:, 0] > 0
    near_each = F.normalize(h[:, 0][kept], dim=1) @ F.normalize(m.items(ids[:, 0])[kept], dim=1).T
    return F.cross_entropy(4 * near_each, torch.arange(near_each.shape[0]), reduction="sum") / BATCH


def of_rare_items(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Most batches have none of them."""
    rare = ids == 7
    return bce(z, y) + near[rare].exp().sum() + h[rare].square().sum() / max(near[rare].shape[0], 1)


def of_selected(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    real = ids.gt(0)
    return -F.logsigmoid(torch.masked_select(near - far, real)).mean() + h.masked_select(real.unsqueeze(2)).abs().mean()


def of_put_back(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Picked, changed, and put where they came from."""
    real, states = ids != 0, torch.zeros_like(h)
    states[real] = m.state_norm(h[real])
    scores = near.clone()
    scores[~real] = far[~real] * 2
    return (states.sum(2) - 1).square().mean() + scores.square().mean()


def of_added_up(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    rows, columns = torch.where(ids > 0)
    sums = torch.zeros(len(h), 4).index_add_(0, rows, h[rows, columns])
    return bce(sums.mean(1) + near.new_zeros(len(z)).scatter_add(0, rows, near[rows, columns]), y)


def of_normed(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    picked = m.norm(h[ids > 0])
    return (
        picked.square().mean(1).sum() / 9 + torch.logsumexp(m.out(picked), 1).mean() + picked.std(0, correction=0).sum()
    )


def of_joined(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    real = ids > 0
    scores = torch.cat([near[real], far[real], far[real == 0]])
    others = torch.zeros_like(far[real == 0])
    return bce(scores, torch.cat([torch.ones_like(near[real]), far.new_zeros(far[real].shape[0]), others]))


def of_weights(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    real = ids > 0
    weights = (1 / (1 + torch.arange(LENGTH))).expand(len(ids), LENGTH)[real]
    every = torch.full_like(weights, 0.5) + torch.arange(len(weights)) / 100
    wide = near[real][:, None].expand(-1, 4) * h[real].view(-1, 2, 2).flip(1).reshape(-1, 4)
    return bce(z, y) + (near[real] * weights * every).sum() / weights.sum() + wide.mean()


def of_picked_twice(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    picked = near[ids > 0]
    high = picked > 0.1
    return (
        bce(z, y) + picked[high].square().sum() / (len(picked[high]) + 2) + ids[ids > 0][high].float().sum() * z.mean()
    )


def of_distinct_items(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """A softmax over the items that a batch has."""
    items, places, counts = torch.unique(ids[:, 1:3], return_inverse=True, return_counts=True)
    logits = h[:, -1] @ m.items(items).T - torch.log(counts / ids[:, 1:3].numel())
    return F.cross_entropy(logits, places[:, 0]) + near[:, :2][places < 2].sum() / 50


def of_rows_and_places(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """RePlay's, of the distinct items that are real: scores of each at its own place, and at others."""
    real = ids > 0
    items, places = torch.masked_select(ids, real).unique(return_inverse=True)
    scores = h[real] @ m.items(items).T
    rows = torch.arange(scores.shape[0])
    own, again = scores[rows, places], scores[rows, places.view(-1, 1).T].T
    both = scores[rows[:, None], torch.stack([places, places * 0], 1)]
    return bce(z, y) + (own.square().sum() + again.tanh().sum() + both.exp().sum()) / (len(own) + 1)


def of_some_if_any(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    real, loss = ids > 0, bce(z, y)
    if real.any():
        loss = loss + near[real].square().mean()
    if (y > 0.5).sum() == 0:
        return loss
    return loss + near[y > 0.5].mean()


def of_none_first(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """As DIEN's auxiliary loss begins."""
    picked = near[ids > 0]
    if picked.shape[0] == 0:
        return near.sum() * 0
    return bce(picked, torch.ones_like(picked)) if len(picked) > 0 else picked.mean()


def of_counted(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """The number of what is picked is that of the mask."""
    real = ids > 0
    count = real.sum().item()
    picked = h[real]
    assert picked.shape == (count, 4)
    assert near[real].shape[0] == torch.count_nonzero(real).item()
    places = torch.arange(count)
    return (m.out(picked)[places, ids[real]] * (1 + places)).sum() / (count + 1) / 20


def of_columns_masked(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """What is assigned to by a mask of dimensions behind the first, as buckets of places are."""
    columns, planes = m.out.weight[:3] @ h.reshape(-1, 4).T, h.permute(2, 0, 1).contiguous()
    columns[:, (ids == 0).view(-1)] = 0.5
    planes[:, ids > 0] = -1.0
    return columns.square().mean() + (planes * near).square().mean()


def of_rows_as_weights(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Scores of the items of a batch alone, each with its bias."""
    items = torch.unique(ids[:, :2])
    return F.linear(h[ids > 0], m.out.weight[items], m.out.bias[items]).square().sum() / 50


def of_recounted(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """A count that is changed in place is another number."""
    real = ids > 0
    count = real.sum()
    count += 1
    return near[real].square().sum() / count.item()


def of_examples_selected(m: Any, h: Tensor, near: Tensor, far: Tensor, ids: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """Whole sequences, as DIEN picks those that are not empty."""
    kept = ids[:, 0] > 0
    states = torch.masked_select(h, kept.view(-1, 1, 1)).view(-1, LENGTH, 4)
    back = torch.zeros_like(z)
    back[kept] = (torch.cumsum(states, 1)[:, -1] * states[:, 0]).sum(1) * near[kept].mean(1)
    return bce(z + back, y) + h.masked_select(kept[:, None, None]).square().sum() / 90


LOSSES = {name.removeprefix("of_"): loss for name, loss in sorted(globals().items()) if name.startswith("of_")}

"""What a mask picks that is drawn, and no batch's, as of the edges of a graph, is trained as by PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.errors import ModelError
from htrain.frontend.torch_model import capture
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options

IDS = {"ids": torch.zeros(3, dtype=torch.int64)}
EDGES = torch.tensor([[0, 3, 5, 8, 8, 1], [1, 2, 0, 8, 3, 7]])


class Graph(nn.Module):
    """Rows of all nodes, and what `spread` gives them of their neighbours, for the nodes of a batch."""

    def __init__(self, spread: Callable[["Graph"], torch.Tensor]) -> None:
        super().__init__()
        self.nodes, self.top, self.spread = nn.Embedding(9, 4), nn.Linear(4, 1), spread
        self.register_buffer("edges", EDGES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.top((self.nodes.weight + self.spread(self))[ids]).squeeze(1)


def zeros() -> torch.Tensor:
    return torch.zeros(9, 4)


def by_degrees(m: Graph) -> torch.Tensor:
    """A convolution over the edges that are kept, by the degrees that these leave."""
    kept = torch.rand(m.edges.size(1)) >= 0.4
    row, col = m.edges[:, kept]
    degrees = torch.zeros(9).scatter_add(0, row, torch.ones(6)[kept])
    scale = (degrees + 1).rsqrt()
    return zeros().index_add(0, row, m.nodes.weight[col] * (scale[row] * scale[col]).view(-1, 1))


def in_place(m: Graph) -> torch.Tensor:
    edges = m.edges[:, torch.bernoulli(torch.full((6,), 0.5)).bool()]
    return zeros().index_add_(0, edges[0], m.nodes.weight.index_select(0, edges[1]))


def by_columns(m: Graph) -> torch.Tensor:
    edges = m.edges.t()[torch.rand(6) < 0.5]
    return zeros().scatter_add(0, edges[:, 0][:, None].expand(-1, 4), F.embedding(edges[:, 1], m.nodes.weight))


def by_places(m: Graph) -> torch.Tensor:
    kept = (torch.rand(6) < 0.5).nonzero().squeeze(1)
    row, col = m.edges[0][kept], m.edges[1, kept]
    return zeros().index_add(0, row, torch.tanh(m.nodes.weight[col]))


def by_where(m: Graph) -> torch.Tensor:
    (kept,) = torch.where(torch.rand(6) < 0.5)
    row, col = m.edges[:, kept].unbind(0)
    return zeros().index_add(0, row, -2 * m.nodes.weight[col] + 1)


def summed(m: Graph) -> torch.Tensor:
    return m.nodes.weight[torch.rand(9) < 0.6].sum(0)


def its_mean(m: Graph) -> torch.Tensor:
    return m.nodes.weight[torch.rand(9) < 0.9].mean(0, keepdim=True)


def all_of_it(m: Graph) -> torch.Tensor:
    picked = m.nodes.weight.t()[:, torch.rand(9) < 0.9].transpose(0, 1)
    return (picked * picked.mean(1, keepdim=True)).mean() + picked.square().sum(1).sum()


SPREADS = [by_degrees, in_place, by_columns, by_places, by_where, summed, its_mean, all_of_it]


@pytest.mark.parametrize("spread", SPREADS)
def test_what_a_drawn_mask_picks_is_trained_as_by_pytorch(spread: Callable[[Graph], torch.Tensor]) -> None:
    model = capture_model(Graph(spread), schema=CRITEO, example_inputs=IDS, logit="", label="")
    assert [note for note in model.compare(Options()).notes if "in evaluation, too" not in note] == []


def two_masks(m: Graph) -> torch.Tensor:
    first, second = (m.edges[:, torch.rand(6) < 0.5] for _ in range(2))
    return zeros().index_add(0, first[0], m.nodes.weight[second[1]])


def changed_behind(m: Graph) -> torch.Tensor:
    rows = 2 * m.nodes.weight
    picked = rows[torch.rand(9) < 0.5]
    rows += 1
    return picked.sum(0) + rows


def mask_changed_behind(m: Graph) -> torch.Tensor:
    mask = torch.rand(9) < 0.5
    picked = m.nodes.weight[mask]
    mask |= torch.rand(9) < 0.5
    return picked.sum(0)


@pytest.mark.parametrize(
    ("spread", "message"),
    [
        (changed_behind, "changes in place what a mask has picked from"),
        (mask_changed_behind, "changes in place what a mask has picked from"),
        (lambda m: F.relu((2 * m.nodes.weight)[torch.rand(9) < 0.5], inplace=True).sum(0), "in place what a mask has picked|relu_"),
        (two_masks, "index_add.*with what another mask picks"),
        (lambda m: m.nodes.weight[torch.rand(9) < 0.5].sort(0)[0][0], r"calls sort\(\) of what a mask picks .* torch.where"),
        (lambda m: m.nodes.weight[torch.rand(9) < 0.5][0], "takes a part of what a mask picks"),
        (lambda m: sum(m.nodes.weight[torch.rand(9) < 0.5]), "goes through what a mask picks"),
        (lambda m: m.nodes.weight / m.nodes.weight[torch.rand(9) < 0.5].shape[0], "asks for shape of what a mask picks"),
        (lambda m: m.nodes.weight / len(m.nodes.weight[torch.rand(9) < 0.5]), "asks how many a mask picks"),
        (lambda m: m.nodes.weight[torch.rand(9) < 0.5].view(2, -1).sum(), "another shape"),
        (lambda m: torch.cat([m.nodes.weight[torch.rand(9) < 0.5]] * 2).sum(0), r"calls cat\(\) of"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_of_it_is_refused_with_the_cure(
    spread: Callable[[Graph], torch.Tensor], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        capture(Graph(spread), IDS)
    assert "\n" not in str(raised.value)

"""GraphSAGE (Hamilton et al. 2017) with the mean aggregator over two hops of sampled neighbours: pairs score by their ends' product, or nodes are told apart.

As in the authors' program the last hop of a pair has no ReLU: with it, the ends' products cannot be negative.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import Schema

_STEEPNESS = 4.0  # of the logit at first: a product of two vectors of length 1 cannot say much by itself


class MeanAggregator(nn.Module):
    """W [x, mean of x's neighbours] + b: lines 4 and 5 of Algorithm 1, without the nonlinearity."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * width, hidden)

    def forward(self, x: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        """x[B,N,K], neighbours[B,N*F,K] -> [B,N,hidden]."""
        mean = neighbours.unflatten(1, (x.size(1), -1)).mean(dim=2)
        return self.linear(torch.cat([x, mean], dim=2))


class GraphSAGE(nn.Module):
    def __init__(self, schema: Schema, dim: int, hidden: int) -> None:
        super().__init__()
        rows = schema.input("nodes").rows[0]
        self.nodes = nn.Embedding(rows, dim)
        nn.init.uniform_(self.nodes.weight, -(rows**-0.5), rows**-0.5)
        self.first = MeanAggregator(dim, hidden)
        self.second = MeanAggregator(hidden, hidden)
        self.logit = nn.Linear(1, 1)
        nn.init.constant_(self.logit.weight, _STEEPNESS)
        nn.init.zeros_(self.logit.bias)

    def hop(self, x: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        """x[B,N,dim], neighbours[B,N*F,dim] -> [B,N,hidden], of length 1 each (line 7 of Algorithm 1)."""
        return F.normalize(torch.relu(self.first(x, neighbours)), dim=2)

    def forward(self, nodes: torch.Tensor, neighbours: torch.Tensor, second_neighbours: torch.Tensor) -> torch.Tensor:
        """ids[B,2], ids[B,2F], ids[B,2FG] -> logit[B]."""
        ends, near, far = self.nodes(nodes), self.nodes(neighbours), self.nodes(second_neighbours)
        user, item = F.normalize(self.second(self.hop(ends, near), self.hop(near, far)), dim=2).unbind(1)
        return self.logit((user * item).sum(dim=1, keepdim=True)).squeeze(1)


def build(schema: Schema, dim: int = 32, hidden: int = 64) -> nn.Module:
    """GraphSAGE for data with `nodes`, `neighbours` and `second_neighbours`, such as a graph's."""
    return GraphSAGE(schema, dim, hidden)


class NodeClassifier(nn.Module):
    """Two classes of nodes, by a logit of what a node is after two hops."""

    def __init__(self, schema: Schema, dim: int, hidden: int) -> None:
        super().__init__()
        width, rows = schema.input("sparse").width, schema.input("sparse").rows[0]
        self.fanout = math.isqrt(width - 1)
        if 1 + self.fanout + self.fanout**2 != width:
            raise ValueError(
                f"{width} ids an example: want a node, F neighbours and F of each: 1 + F + F F, such as 31"
            )
        self.nodes = nn.Embedding(rows, dim)
        nn.init.uniform_(self.nodes.weight, -(rows**-0.5), rows**-0.5)
        self.first = MeanAggregator(dim, hidden)
        self.second = MeanAggregator(hidden, hidden)
        self.logit = nn.Linear(hidden, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """ids[B,1+F+FF], the node, its neighbours, and theirs -> logit[B]."""
        node, near, far = self.nodes(sparse).split([1, self.fanout, self.fanout**2], dim=1)
        first = torch.relu(self.first(node, near)), torch.relu(self.first(near, far))
        return self.logit(torch.relu(self.second(*first)).squeeze(1)).squeeze(1)


def build_classes(schema: Schema) -> nn.Module:
    """Node classification with rows of 128, for examples of a node and its neighbours in one input `sparse` (HET 5.1)."""
    return NodeClassifier(schema, dim=128, hidden=64)

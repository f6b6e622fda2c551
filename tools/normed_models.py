"""Click models with a batch norm and a dropout behind each hidden layer, as their libraries write them."""

import itertools

import torch
from torch import nn

from htrain.data import Schema


def normed(widths: list[int], p: float) -> nn.Sequential:
    """Linear layers with BatchNorm1d, ReLU and Dropout behind each."""
    layers: list[nn.Module] = []
    for k, n in itertools.pairwise(widths):
        layers += [nn.Linear(k, n), nn.BatchNorm1d(n), nn.ReLU(), nn.Dropout(p)]
    return nn.Sequential(*layers)


class Fields(nn.Module):
    """ids[B,F] of one table -> embeddings[B,F,dim]."""

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max(schema.input("sparse").rows), dim)
        nn.init.normal_(self.table.weight, 0.0, 0.02)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.table(sparse)


class Fnn(nn.Module):
    """An MLP on embeddings."""

    def __init__(self, schema: Schema, dim: int = 16) -> None:
        super().__init__()
        self.fields = Fields(schema, dim)
        self.deep = normed([schema.input("sparse").width * dim, 128, 64], 0.2)
        self.out = nn.Linear(64, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.out(self.deep(self.fields(sparse).flatten(1))).squeeze(1)


class DeepFM(Fnn):
    """A factorization machine beside it."""

    def __init__(self, schema: Schema, dim: int = 16) -> None:
        super().__init__(schema, dim)
        self.linear = Fields(schema, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        seen = self.fields(sparse)
        pairs = seen.sum(1).square() - seen.square().sum(1)
        deep = self.out(self.deep(seen.flatten(1))).squeeze(1)
        return self.linear(sparse).sum((1, 2)) + 0.5 * pairs.sum(1) + deep


class Dcn(nn.Module):
    """Two cross layers of DCN-v2, and an MLP beside them."""

    def __init__(self, schema: Schema, dim: int = 16) -> None:
        super().__init__()
        width = schema.input("sparse").width * dim
        self.fields = Fields(schema, dim)
        self.norm = nn.BatchNorm1d(width)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.deep = normed([width, 128, 64], 0.1)
        self.out = nn.Linear(width + 64, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        first = self.norm(self.fields(sparse).flatten(1))
        x = first
        for layer in self.cross:
            x = first * layer(x) + x
        return self.out(torch.cat([x, self.deep(first)], 1)).squeeze(1)


def fnn(schema: Schema) -> nn.Module:
    return Fnn(schema)


def deepfm(schema: Schema) -> nn.Module:
    return DeepFM(schema)


def dcn(schema: Schema) -> nn.Module:
    return Dcn(schema)

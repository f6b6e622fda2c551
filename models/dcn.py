"""Deep & Cross Networks: v1 (Wang et al. 2017) crosses with a vector, v2 (Wang et al. 2021) with a matrix."""

import torch
from fields import FieldEmbeddings, mlp, num_dense
from torch import nn

from htrain.data import Schema


class CrossVector(nn.Module):
    """x0 * (x . w) + b + x (v1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Linear(width, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x0: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x0 * self.weight(x) + self.bias + x


class CrossMatrix(nn.Module):
    """x0 * (W x + b) + x (v2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x0: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x0 * self.linear(x) + x


class DCN(nn.Module):
    def __init__(self, schema: Schema, dim: int, cross: type[nn.Module], layers: int, hidden: list[int]) -> None:
        super().__init__()
        width = schema.input("sparse").width * dim + num_dense(schema)
        self.embeddings = FieldEmbeddings(schema, dim)
        self.crosses = nn.ModuleList(cross(width) for _ in range(layers))
        self.deep = mlp([width, *hidden], last_activation=True)
        self.logit = nn.Linear(width + hidden[-1], 1)

    def predict(self, x0: torch.Tensor) -> torch.Tensor:
        x = x0
        for cross in self.crosses:
            x = cross(x0, x)
        return self.logit(torch.cat([x, self.deep(x0)], dim=1)).squeeze(1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """ids[B,F] -> logit[B]."""
        return self.predict(self.embeddings(sparse).flatten(1))


class DCNDense(DCN):
    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """dense[B,D], ids[B,F] -> logit[B]."""
        return self.predict(torch.cat([dense, self.embeddings(sparse).flatten(1)], dim=1))


def build_v1(schema: Schema, dim: int = 16, hidden: tuple[int, ...] = (256, 64)) -> nn.Module:
    """DCN v1."""
    return (DCNDense if num_dense(schema) else DCN)(schema, dim, CrossVector, layers=3, hidden=list(hidden))


def build_v1_128(schema: Schema) -> nn.Module:
    """DCN v1 with rows of 128, the width that HET is measured with (HET 5.1)."""
    return build_v1(schema, dim=128, hidden=(256, 256))


def build_v2(schema: Schema, dim: int = 16) -> nn.Module:
    """DCN v2."""
    return (DCNDense if num_dense(schema) else DCN)(schema, dim, CrossMatrix, layers=3, hidden=[256, 64])


build = build_v2

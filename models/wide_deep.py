"""Wide & Deep (Cheng et al. 2016): a linear model on the ids beside an MLP on their embeddings."""

import torch
from fields import FieldEmbeddings, mlp, num_dense
from torch import nn

from htrain.data import Schema


class WideDeep(nn.Module):
    def __init__(self, schema: Schema, dim: int, hidden: list[int]) -> None:
        super().__init__()
        fields = schema.input("sparse").width
        self.wide = FieldEmbeddings(schema, 1)
        self.embeddings = FieldEmbeddings(schema, dim)
        self.deep = mlp([fields * dim + num_dense(schema), *hidden, 1], last_activation=False)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """ids[B,F] -> logit[B]."""
        deep = self.deep(self.embeddings(sparse).flatten(1))
        return (self.wide(sparse).sum(dim=1) + deep).squeeze(1)


class WideDeepDense(WideDeep):
    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """dense[B,D], ids[B,F] -> logit[B]."""
        deep = self.deep(torch.cat([self.embeddings(sparse).flatten(1), dense], dim=1))
        return (self.wide(sparse).sum(dim=1) + deep).squeeze(1)


def build(schema: Schema, dim: int = 16) -> nn.Module:
    """Wide & Deep; dense features, where there are any, go into the deep part."""
    return (WideDeepDense if num_dense(schema) else WideDeep)(schema, dim, hidden=[256, 64])


def build_128(schema: Schema) -> nn.Module:
    """Wide & Deep with rows of 128, the width that HET is measured with (HET 5.1)."""
    return build(schema, dim=128)


class WideDeepLinear(nn.Module):
    """An MLP of the dense features; its last layer and the rows go into the logit as they are."""

    def __init__(self, schema: Schema, dim: int, hidden: list[int]) -> None:
        super().__init__()
        self.embeddings = FieldEmbeddings(schema, dim)
        self.deep = mlp([num_dense(schema), *hidden], last_activation=True)
        self.logit = nn.Linear(schema.input("sparse").width * dim + hidden[-1], 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """dense[B,D], ids[B,F] -> logit[B]."""
        return self.logit(torch.cat([self.embeddings(sparse).flatten(1), self.deep(dense)], dim=1)).squeeze(1)


def build_linear(schema: Schema) -> nn.Module:
    """Wide & Deep whose deep part is of the dense features alone, with rows of 128: nearly all that workers exchange is rows."""
    return WideDeepLinear(schema, dim=128, hidden=[64])


def build_dense_mlp(schema: Schema) -> nn.Module:
    """The same with an MLP of three layers, which HET is measured with (HET 5.1)."""
    return WideDeepLinear(schema, dim=128, hidden=[256, 256, 256])


def build_narrow(schema: Schema) -> nn.Module:
    """Wide & Deep with rows of 128 and an MLP so narrow that rows are most of what workers exchange."""
    return (WideDeepDense if num_dense(schema) else WideDeep)(schema, dim=128, hidden=[32])

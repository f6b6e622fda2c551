"""DeepFM (Guo et al. 2017): a factorization machine and an MLP on the same embeddings."""

import torch
from fields import FieldEmbeddings, mlp, num_dense
from torch import nn

from htrain.data import Schema


class DeepFM(nn.Module):
    def __init__(self, schema: Schema, dim: int, hidden: list[int]) -> None:
        super().__init__()
        fields = schema.input("sparse").width
        self.linear = FieldEmbeddings(schema, 1)
        self.embeddings = FieldEmbeddings(schema, dim)
        self.deep = mlp([fields * dim + num_dense(schema), *hidden, 1], last_activation=False)
        self.bias = nn.Parameter(torch.zeros(1))

    def factorize(self, sparse: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """First- and second-order terms: sum of pairwise dots = (square of sum - sum of squares) / 2."""
        pairs = features.sum(dim=1).square() - features.square().sum(dim=1)
        return self.bias + self.linear(sparse).sum(dim=(1, 2)) + 0.5 * pairs.sum(dim=1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """ids[B,F] -> logit[B]."""
        features = self.embeddings(sparse)
        return self.factorize(sparse, features) + self.deep(features.flatten(1)).squeeze(1)


class DeepFMDense(DeepFM):
    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """dense[B,D], ids[B,F] -> logit[B]."""
        features = self.embeddings(sparse)
        deep = self.deep(torch.cat([features.flatten(1), dense], dim=1)).squeeze(1)
        return self.factorize(sparse, features) + deep


def build(schema: Schema, dim: int = 16, hidden: tuple[int, ...] = (256, 64)) -> nn.Module:
    """DeepFM; dense features, where there are any, go into the deep part."""
    return (DeepFMDense if num_dense(schema) else DeepFM)(schema, dim, hidden=list(hidden))


def build_128(schema: Schema) -> nn.Module:
    """DeepFM with rows of 128, the width that HET is measured with (HET 5.1)."""
    return build(schema, dim=128, hidden=(256, 256))

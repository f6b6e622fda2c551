"""DLRM (Naumov et al. 2019): an MLP on the dense features, pairwise dot products with the embeddings, an MLP on top."""

import torch
from fields import FieldEmbeddings, mlp, num_dense
from torch import nn

from htrain.data import Schema


class DLRM(nn.Module):
    def __init__(self, schema: Schema, dim: int, bottom: list[int], top: list[int]) -> None:
        super().__init__()
        count = schema.input("sparse").width + 1
        self.embeddings = FieldEmbeddings(schema, dim)
        self.bottom = mlp([num_dense(schema), *bottom, dim], last_activation=True)
        self.top = mlp([dim + count * (count - 1) // 2, *top, 1], last_activation=False)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """dense[B,13], ids[B,26] -> logit[B]."""
        x = self.bottom(dense)
        features = torch.cat([x.unsqueeze(1), self.embeddings(sparse)], dim=1)
        dots = torch.bmm(features, features.transpose(1, 2))
        row, column = torch.tril_indices(features.size(1), features.size(1), offset=-1)
        return self.top(torch.cat([x, dots[:, row, column]], dim=1)).squeeze(1)


def build(schema: Schema, dim: int = 16) -> nn.Module:
    """DLRM for data with dense features, such as Criteo's."""
    return DLRM(schema, dim, bottom=[512, 256, 64], top=[512, 256])


def build_64(schema: Schema) -> nn.Module:
    """DLRM with rows of 64 and the MLPs that cDLRM is measured with (cDLRM 7)."""
    return DLRM(schema, 64, bottom=[512, 256], top=[512, 512, 256])


def build_bench(schema: Schema) -> nn.Module:
    """DLRM with rows of 64, by which the speed of one host is compared (tools/bench)."""
    return DLRM(schema, 64, bottom=[512, 256], top=[512, 256])

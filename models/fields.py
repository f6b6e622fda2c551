"""Embedding tables for the columns of a click log."""

import itertools

import torch
from torch import nn

from htrain.data import Schema


class FieldEmbeddings(nn.Module):
    """One embedding per column of the `ids` input `sparse`; columns that name the same table share it."""

    def __init__(self, schema: Schema, dim: int) -> None:
        super().__init__()
        sparse = schema.input("sparse")
        self.columns = list(sparse.tables)
        rows = {
            table: max(r for r, t in zip(sparse.rows, sparse.tables, strict=True) if t == table)
            for table in self.columns
        }
        self.tables = nn.ModuleDict({table: nn.Embedding(count, dim) for table, count in rows.items()})
        for table in self.tables.values():
            bound = table.num_embeddings**-0.5
            nn.init.uniform_(table.weight, -bound, bound)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """ids[B,F] -> embeddings[B,F,dim]."""
        if len(self.tables) == 1:
            return self.tables[self.columns[0]](sparse)
        return torch.stack([self.tables[table](sparse[:, c]) for c, table in enumerate(self.columns)], dim=1)


def mlp(widths: list[int], last_activation: bool) -> nn.Sequential:
    """Linear layers with ReLU between them, and after the last one if asked."""
    layers: list[nn.Module] = []
    for k, n in itertools.pairwise(widths):
        layers += [nn.Linear(k, n), nn.ReLU()]
    return nn.Sequential(*(layers if last_activation else layers[:-1]))


def num_dense(schema: Schema) -> int:
    """Columns of the input `dense`; 0 when the schema has none."""
    return schema.input("dense").width if "dense" in schema.names else 0

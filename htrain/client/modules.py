"""Embeddings whose rows live on the servers of a plan, in the place of nn.Embedding and nn.EmbeddingBag in any module."""

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from htrain.client.tables import Tables
from htrain.client.warm_up import summed
from htrain.errors import DataError
from htrain.membership.served import ServedTable


class HetEmbedding(nn.Module):
    """y[...,D] = rows of ids[...], as nn.Embedding: rows come through this worker's cache and are trained by `tables.step()`.

    In evaluation (`eval()`, or without gradients) rows are read as the servers have them, and nothing is trained. The module has no parameters: an
    optimizer, or DistributedDataParallel, sees only what is beside it.

        import torch

        import htrain.client

        with htrain.client.connect("runs/tables") as tables:
            users = htrain.client.HetEmbedding(tables, "embeddings.tables.user")
            top = torch.nn.Linear(users.embedding_dim, 1)
            top(users(torch.tensor([4, 17, 4]))).sum().backward()
            tables.step()
    """

    def __init__(self, tables: Tables, table: str, *, padding_idx: int | None = None) -> None:
        """Raises DataError for a table that is not served."""
        super().__init__()
        cache, found = tables.place_of(table)
        self.tables = tables
        self.table = found.name
        self.num_embeddings, self.embedding_dim = found.rows, cache.width
        self.padding_idx = _padding(padding_idx, found)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Raises DataError for ids that are no tensor or out of range, PeerLost where a server does not answer, UsageError in a forked process."""
        rows, inverse = _rows(self.tables, self.table, ids, self.training)
        if self.padding_idx is None and rows.requires_grad and rows.device.type == "cpu" and self.tables.is_warm:
            taken: torch.Tensor = _Take.apply(rows, inverse)
            return taken.reshape(*ids.shape, self.embedding_dim)
        return F.embedding(inverse.reshape(ids.shape), rows, padding_idx=_place(self.padding_idx, ids, inverse))

    def extra_repr(self) -> str:
        """As nn.Embedding's."""
        return f"{self.num_embeddings}, {self.embedding_dim}, table={self.table!r}"


class HetEmbeddingBag(nn.Module):
    """y[B,D] = the sum, mean or maximum of each bag's rows, as nn.EmbeddingBag.

    As with `HetEmbedding`, the rows come through this worker's cache and are trained by `tables.step()`.

        import torch

        import htrain.client

        with htrain.client.connect("runs/tables") as tables:
            seen = htrain.client.HetEmbeddingBag(tables, "embeddings.tables.item", mode="mean")
            tastes = seen(torch.tensor([4, 8, 15, 16, 23]), torch.tensor([0, 3]))  # of two users, who have seen 3 and 2
            tastes.square().sum().backward()
            tables.step()
    """

    def __init__(
        self,
        tables: Tables,
        table: str,
        *,
        mode: Literal["sum", "mean", "max"] = "mean",
        padding_idx: int | None = None,
        include_last_offset: bool = False,
    ) -> None:
        """Raises DataError for a table that is not served."""
        super().__init__()
        cache, found = tables.place_of(table)
        self.tables = tables
        self.table = found.name
        self.num_embeddings, self.embedding_dim = found.rows, cache.width
        self.mode = mode
        self.padding_idx = _padding(padding_idx, found)
        self.include_last_offset = include_last_offset

    def forward(
        self, ids: torch.Tensor, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Of ids[n] with offsets[B], or of ids[B,L]. Raises what `HetEmbedding.forward` does."""
        rows, inverse = _rows(self.tables, self.table, ids, self.training)
        padding = _place(self.padding_idx, ids, inverse)
        return F.embedding_bag(
            inverse.reshape(ids.shape),
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )

    def extra_repr(self) -> str:
        """As nn.EmbeddingBag's."""
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}, table={self.table!r}"


class _Take(torch.autograd.Function):
    """y[n,D] = rows[inverse[n]] on a CPU: torch's own gradient takes several times as long."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        context.inverse, context.num_rows = inverse, len(rows)
        return F.embedding(inverse, rows)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        return summed(gradient, context.inverse, context.num_rows), None


def _rows(tables: Tables, table: str, ids: torch.Tensor, training: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """rows[u,D] on the device of ids, and which of them each id has. Raises DataError for ids that are no tensor."""
    if not isinstance(ids, torch.Tensor):
        raise DataError(f"table '{table}': ids are of type {type(ids).__name__}, want a tensor of integers")
    if training and torch.is_grad_enabled():
        lookup = tables.read(table, ids)
        return lookup.rows.to(ids.device), lookup.inverse.to(ids.device)
    distinct, inverse = np.unique(ids.detach().cpu().numpy(), return_inverse=True)
    rows = tables.look(table, distinct)
    return rows.to(ids.device), torch.from_numpy(inverse.reshape(-1)).to(ids.device)


def _padding(asked: int | None, table: ServedTable) -> int | None:
    """The row of padding, which may be counted from the end. Raises DataError for one that is not there."""
    if asked is not None and not -table.rows <= asked < table.rows:
        raise DataError(f"table '{table.name}': padding_idx {asked} is out of range, it has {table.rows} rows")
    return asked if asked is None or asked >= 0 else table.rows + asked


def _place(padding_idx: int | None, ids: torch.Tensor, inverse: torch.Tensor) -> int | None:
    """Which of the rows is that of padding."""
    if padding_idx is None:
        return None
    found = (ids.reshape(-1) == padding_idx).nonzero()
    return int(inverse[found[0, 0]]) if len(found) else None

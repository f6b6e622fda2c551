"""Tables as TorchRec has them on a CPU, one fused collection whose rows take their step in the backward pass: what a DLRM's embeddings are replaced by.

Needs `pip install torchrec`, and then fbgemm-gpu-cpu in the place of fbgemm-gpu, both of the version that fits torch: 1.8 for torch 2.13.
"""

import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


class Fields(nn.Module):
    """sparse[B,F] -> rows[B,F,D], of F tables; they take a step of SGD with `lr` when gradients come."""

    def __init__(self, tables: dict[str, nn.Embedding], lr: float) -> None:
        super().__init__()
        self._names = list(tables)
        configs = [
            EmbeddingBagConfig(
                name=name, embedding_dim=t.embedding_dim, num_embeddings=t.num_embeddings, feature_names=[name]
            )
            for name, t in tables.items()
        ]
        self._collection = FusedEmbeddingBagCollection(configs, torch.optim.SGD, {"lr": lr}, device=torch.device("cpu"))
        for name, weights in self._collection.state_dict().items():
            weights.copy_(next(table.weight for key, table in tables.items() if f".{key}." in name))

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """An id a field: the jagged form of it, field by field."""
        batch, fields = sparse.shape
        ids = KeyedJaggedTensor(
            self._names, sparse.t().reshape(-1), lengths=torch.ones(batch * fields, dtype=torch.int64)
        )
        rows: torch.Tensor = self._collection(ids).values()
        return rows.view(batch, fields, -1)

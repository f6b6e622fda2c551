"""A model that nobody planned for, in the manner of DIN: attention over a padded behaviour sequence with a mask."""

import torch
from torch import nn
from torch.nn import functional as F


class DIN(nn.Module):
    """Shared tables for history and target, LayerNorm, GELU, einsum, residuals, shared weights, several outputs."""

    def __init__(self, items: int, categories: int, dim: int) -> None:
        super().__init__()
        self.item = nn.Embedding(items, dim, padding_idx=0)
        self.category = nn.EmbeddingBag(categories, dim, mode="mean", padding_idx=0)
        self.score = nn.Sequential(nn.Linear(3 * dim, 8), nn.GELU(), nn.Linear(8, 1))
        self.position = nn.Embedding(16, dim)
        self.shared = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Parameter(torch.empty(dim, dim))
        self.top = nn.Linear(3 * dim, 1)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0.0, 0.3)
        nn.init.zeros_(self.item.weight[0])
        nn.init.zeros_(self.category.weight[0])

    def forward(
        self,
        dense: torch.Tensor,
        target: torch.Tensor,
        history: torch.Tensor,
        history_length: torch.Tensor,
        tags: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        """dense[B,3], target[B,1], history[B,T] padded with 0, history_length[B], tags[B,L] padded with 0."""
        steps = history.size(1)
        wanted = self.item(target)[:, 0]
        seen = self.item(history) + self.position(torch.arange(steps))
        pairs = torch.cat([seen, wanted.unsqueeze(1).expand(-1, steps, -1), seen * wanted[:, None]], dim=-1)
        mask = torch.arange(steps)[None, :] < history_length[:, None]
        weights = F.softmax(self.score(pairs).squeeze(-1).masked_fill(~mask, -1e9), dim=1) * (
            history_length > 0
        ).unsqueeze(1)
        interest = torch.einsum("bt,btd->bd", weights, seen)
        interest = self.norm(interest + self.shared(F.gelu(self.shared(interest))))
        mixed = torch.einsum("bd,de,be->b", interest, self.mix, wanted).unsqueeze(1)
        features = torch.cat([interest, wanted, self.category(tags)], dim=1)
        logit = self.top(features) + mixed + dense.mean(dim=1, keepdim=True)
        return {"probability": torch.sigmoid(logit), "logit": logit}


def build(items: int = 60, categories: int = 20, dim: int = 8) -> nn.Module:
    """The model at a size for tests."""
    return DIN(items, categories, dim)

"""Random modules: tables and bags that are shared or not, attention over sequences, interactions, tied and frozen weights, any activation."""

import random
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, STEPS = 4, 5
Tensors = dict[str, torch.Tensor]
_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu, "tanh": torch.tanh, "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid, "elu": F.elu, "mish": F.mish,
    "leaky_relu": F.leaky_relu, "softplus": F.softplus, "hardswish": F.hardswish, "square": torch.square, "abs": torch.abs,
}  # fmt: skip


class Drawn(nn.Module):
    """Features [B,k,WIDTH] of ids, a sequence, a bag and numbers, a few random layers over them, and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        rows = [draw.choice([7, 40, 3000]) for _ in range(2)]
        self.columns = [draw.randrange(2) for _ in range(3)]  # which table a column of `ids` reads
        self.tables = nn.ModuleList(nn.Embedding(r, WIDTH, padding_idx=draw.choice([None, 0, r - 1])) for r in rows)
        self.shares = draw.random() < 0.5
        self.items = self.tables[0] if self.shares else nn.Embedding(50, WIDTH, padding_idx=draw.choice([None, 0]))
        self.bags = nn.EmbeddingBag(30, WIDTH, mode=draw.choice(["sum", "mean"]), padding_idx=draw.choice([None, 3]))
        self.reads_bags_again = draw.random() < 0.3
        self.position = nn.Parameter(torch.randn(STEPS, WIDTH))
        self.numbers = nn.Linear(3, WIDTH)
        self.attention = draw.choice(["dots", "scores", "scaled"])
        self.scores = nn.Sequential(nn.Linear(2 * WIDTH, 6), nn.GELU(), nn.Linear(6, 1))
        self.steps = [draw.choice(_STEPS) for _ in range(draw.randrange(2, 5))]
        self.activation = draw.choice(list(_ACTIVATIONS))
        self.norm, self.mixer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.tied = nn.Linear(WIDTH, WIDTH)
        if draw.random() < 0.5:
            self.tied.weight = self.mixer.weight
        self.gate = nn.Parameter(torch.tensor(0.3), requires_grad=draw.random() < 0.7)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))
        self.stops, self.ends = draw.random() < 0.4, draw.choice(["logit", "column", "probability"])
        self.head = nn.Linear(WIDTH * (len(self.columns) + 3), 1)

    def forward(
        self, numbers: torch.Tensor, ids: torch.Tensor, history: torch.Tensor, history_length: torch.Tensor, tags: torch.Tensor, tags_offsets: torch.Tensor
    ) -> torch.Tensor:  # fmt: skip
        fields = [self.tables[table](ids[:, column]) for column, table in enumerate(self.columns)]
        seen = self.items(history) + self.position
        interest = self._attend(fields[0], seen, history_length)
        if self.stops:
            with torch.no_grad():
                interest = interest + self.mixer(fields[1]).mean(1, keepdim=True)
        bag = self.bags(tags, tags_offsets)
        if self.reads_bags_again:
            bag = bag + self.bags(history)
        x = torch.stack([*fields, interest, bag, self.numbers(numbers)], dim=1)
        for step in self.steps:
            x = step(self, x)
        logit = self.head((x * self.scale).flatten(1))
        return {"logit": logit.squeeze(1), "column": logit, "probability": torch.sigmoid(logit).squeeze(1)}[self.ends]

    def _attend(self, target: torch.Tensor, seen: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(STEPS)[None, :] < length[:, None]
        if self.attention == "scaled":
            return F.scaled_dot_product_attention(target[:, None], seen, seen).squeeze(1)
        if self.attention == "dots":
            scores = torch.einsum("bd,btd->bt", target, seen) / WIDTH**0.5
        else:
            scores = self.scores(torch.cat([seen, target[:, None].expand(-1, STEPS, -1)], dim=-1)).squeeze(-1)
        return torch.einsum("bt,btd->bd", scores.masked_fill(~mask, -1e9).softmax(1), seen)

    def activate(self, x: torch.Tensor) -> torch.Tensor:
        return _ACTIVATIONS[self.activation](x)


def _residual(m: Drawn, x: torch.Tensor) -> torch.Tensor:
    return x + m.activate(m.mixer(m.norm(x)))


def _crossed(m: Drawn, x: torch.Tensor) -> torch.Tensor:
    return x * m.mixer(x.mean(1, keepdim=True)) + x


def _tied(m: Drawn, x: torch.Tensor) -> torch.Tensor:
    return m.activate(m.tied(m.mixer(x)))


def _pooled(m: Drawn, x: torch.Tensor) -> torch.Tensor:
    return x - x.amax(1, keepdim=True) * m.gate


def _detached(m: Drawn, x: torch.Tensor) -> torch.Tensor:
    return x + m.tied(x.detach())


def _paired(m: Drawn, x: torch.Tensor) -> torch.Tensor:
    products = torch.bmm(x, x.transpose(1, 2))
    return torch.bmm(products.softmax(-1), x)


def _looked_up(m: Drawn, x: torch.Tensor) -> torch.Tensor:
    """The rows of a table as a matrix, besides its lookups."""
    return x + x @ m.items.weight[:WIDTH]


_STEPS = (_residual, _crossed, _tied, _pooled, _detached, _paired, _looked_up)


def drawn_module(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Drawn(seed)


def example(count: int = 4) -> Tensors:
    return {
        "numbers": torch.zeros(count, 3),
        "ids": torch.zeros(count, 3, dtype=torch.int64),
        "history": torch.zeros(count, STEPS, dtype=torch.int64),
        "history_length": torch.full((count,), STEPS),
        "tags": torch.zeros(2 * count, dtype=torch.int64),
        "tags_offsets": torch.arange(count) * 2,
    }

"""Rows that forward() takes by indexing an embedding's weight: tables like those that it calls, with PyTorch's loss and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from htrain.data import CRITEO
from htrain.self_check.capture import capture_model
from htrain.spec.options import Options

INPUTS = {"item": torch.arange(4)[:, None], "seq": torch.arange(24).view(4, 6)}
Body = Callable[["Indexed", torch.Tensor, torch.Tensor], torch.Tensor]


class Indexed(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.e, self.top, self.body = nn.Embedding(40, 4, padding_idx=0), nn.Linear(4, 1), body
        self.bias, self.cube = nn.Parameter(torch.randn(40, 4)), nn.Parameter(torch.randn(40, 4, 4))
        self.register_buffer("places", torch.tensor([3, -1, 0, 5]))

    def forward(self, item: torch.Tensor, seq: torch.Tensor) -> torch.Tensor:
        return self.top(self.body(self, item[:, 0], seq)).squeeze(1)


LOOKUPS: dict[str, Body] = {
    "an index": lambda m, item, seq: m.e.weight[item],
    "a list": lambda m, item, seq: m.e.weight[seq].mean(1),
    "by the end": lambda m, item, seq: m.e.weight[item - 3],
    "index_select": lambda m, item, seq: m.e.weight.index_select(0, item),
    "int32": lambda m, item, seq: m.e.weight[item.int()],
    "beside calls": lambda m, item, seq: m.e(seq).sum(1) + F.embedding(item, m.e.weight) + m.e.weight[item],
    "beside bags": lambda m, item, seq: F.embedding_bag(seq, m.e.weight, mode="sum") + m.e.weight[seq[:, 0]],
    "normalised": lambda m, item, seq: F.normalize(m.e.weight[seq], dim=-1)[:, 0],
}
DENSE: dict[str, Body] = {
    "a parameter": lambda m, item, seq: m.bias[item],
    "of three dimensions": lambda m, item, seq: m.cube[item].sum(1),
    "constant places": lambda m, item, seq: m.e.weight[m.places].sum(0) + m.bias[item],
    "a column": lambda m, item, seq: m.e.weight[:, 0][item][:, None].expand(-1, 4),
    "all rows": lambda m, item, seq: m.e.weight[item] @ m.e.weight.T @ m.e.weight,
}


@pytest.mark.parametrize("name", [*LOOKUPS, *DENSE])
def test_rows_are_those_of_a_table_where_nothing_else_reads_it(name: str) -> None:
    body = (LOOKUPS | DENSE)[name]
    model = capture_model(Indexed(body), schema=CRITEO, example_inputs=INPUTS, logit="", label="")
    model.compare(Options())
    tables = [n for n, p in model.captured.net.parameters.items() if p.kind == "table"]
    assert tables == (["e.weight"] if name in LOOKUPS else [])

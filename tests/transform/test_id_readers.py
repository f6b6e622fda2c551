"""Ids by the new numbers of a partition: a net means the same by them as PyTorch does by the old ones."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from htrain.errors import UsageError
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.ops import OPS
from htrain.ops.base import tensor_of
from htrain.transform.id_readers import by_new_numbers
from htrain.transform.lookups import lower_lookups

ROWS = {"item": 12, "user": 9}
COLUMNS = {"ids": ("item", "user", "item"), "seq": ("item",)}
INPUTS = {
    "ids": torch.zeros(4, 3, dtype=torch.int64),
    "seq": torch.zeros(4, 5, dtype=torch.int64),
    "x": torch.zeros(4, 2),
}

Read = Callable[["Reads", torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Reads(nn.Module):
    def __init__(self, read: Read) -> None:
        super().__init__()
        self.item, self.user, self.top = nn.Embedding(12, 3), nn.Embedding(9, 3), nn.Linear(9, 1)
        self.both, self.read = nn.Embedding(20 + 12 + 9, 3), read

    def forward(self, ids: torch.Tensor, seq: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        seen = self.item(seq) * self.read(self, ids, seq, x).float().unsqueeze(-1)
        looked_up = [self.item(ids[:, 0]), self.user(ids[:, 1]), seen.sum(1)]
        return self.top(torch.cat(looked_up, 1)).squeeze(1)


READS: dict[str, Read] = {
    "padding": lambda m, ids, seq, x: seq != 0,
    "more than 0": lambda m, ids, seq, x: seq > 0,
    "0 less": lambda m, ids, seq, x: torch.zeros((), dtype=torch.int64) < seq,
    "1 at least": lambda m, ids, seq, x: (seq >= 1) | (seq < 1),
    "0 at most": lambda m, ids, seq, x: seq <= 0,
    "less than all": lambda m, ids, seq, x: (seq < 0) | (seq >= 0),
    "less than more": lambda m, ids, seq, x: (seq < 12) | (seq > 50),
    "true": lambda m, ids, seq, x: seq.bool(),
    "not": lambda m, ids, seq, x: seq.logical_not(),
    "a row": lambda m, ids, seq, x: seq == 7,
    "no row": lambda m, ids, seq, x: seq != 400,
    "below all rows": lambda m, ids, seq, x: seq == -1,
    "some rows": lambda m, ids, seq, x: seq == torch.tensor([1, 2, 3, 4, 70]),
    "any of some": lambda m, ids, seq, x: (seq[:, :, None] == torch.tensor([1, 5, 9])).any(2),
    "columns": lambda m, ids, seq, x: (ids[:, :2] == torch.tensor([3, 4])).float().sum(1, keepdim=True) + 0 * x[:, :1],
    "another of the table": lambda m, ids, seq, x: seq == ids[:, 2:],
    "the same": lambda m, ids, seq, x: (ids[:, :1] != ids[:, 2:]).float() + (seq == seq[:, :1]).float(),
    "behind others": lambda m, ids, seq, x: (seq + 20 == 23).float() + (seq + 20 > 0).float() + (seq + 20 != 20).float(),
    "stacked": lambda m, ids, seq, x: torch.cat([seq[:, :4], ids[:, :1]], 1).reshape(-1, 5, 1).flip(1)[:, :, 0] != 2,
    "counted": lambda m, ids, seq, x: (seq > 0).sum(1, keepdim=True) / (seq == 0).sum(1, keepdim=True).clamp(min=1) + 0 * x[:, :1],
    "numbers apart": lambda m, ids, seq, x: (x[:, :1] > 0.1).float() * (seq != 0).float(),
}  # fmt: skip


def lowered(read: Read) -> tuple[Reads, Net]:
    torch.manual_seed(0)
    model = Reads(read)
    return model, lower_lookups(capture(model, INPUTS).net)


def run(net: Net, model: Reads, tables: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    known = {**dict(model.named_parameters()), **tables, **inputs}
    with torch.no_grad():
        for op in net.ops:
            made = OPS[op.type].run(op, [known[name] for name in op.inputs], len(inputs["x"]))
            known.update(zip(op.outputs, made, strict=True))
    return known[net.outputs[0]]


@pytest.mark.parametrize("name", [*READS])
def test_a_net_means_the_same_by_new_numbers(name: str) -> None:
    model, net = lowered(READS[name])
    draw = torch.Generator().manual_seed(3)
    new = {table: torch.randperm(count - 1, generator=draw) + 1 for table, count in ROWS.items()}
    new = {table: torch.cat([order, torch.zeros(1, dtype=torch.int64)]) for table, order in new.items()}  # none stays
    found = by_new_numbers(
        net, COLUMNS, lambda table, row: int(new[table][row]) if 0 <= row < ROWS[table] else -1
    )  # fmt: skip
    ids = torch.stack([torch.randint(ROWS[table], (64,), generator=draw) for table in COLUMNS["ids"]], 1)
    seq = torch.randint(ROWS["item"], (64, 5), generator=draw) * torch.randint(2, (64, 5), generator=draw)
    inputs = {"ids": ids, "seq": seq, "x": torch.randn(64, 2, generator=draw)}
    renumbered = {
        "ids": torch.stack([new[table][ids[:, place]] for place, table in enumerate(COLUMNS["ids"])], 1),
        "seq": new["item"][seq],
        "x": inputs["x"],
    }
    moved = {}
    for table in ROWS:
        weight = getattr(model, table).weight.detach()
        moved[f"{table}.weight"] = torch.empty_like(weight).index_copy(0, new[table], weight)
    with torch.no_grad():
        wanted = model(**inputs)
    torch.testing.assert_close(run(found, model, moved, renumbered), wanted)
    compared = [op for op in found.ops if op.type == "IsRow"]
    for op in compared:
        assert tensor_of(op.attrs["original"]).min() >= -1, "what an exported graph compares with is the model's own"
    values = {op.inputs[1]: tensor_of(op.attrs["original"]) for op in compared}
    exported = found.with_ops(op for op in found.ops if op.outputs[0] not in values)
    torch.testing.assert_close(run(exported, model, values, inputs), wanted)


OTHERWISE: dict[str, Read] = {
    "a number": lambda m, ids, seq, x: seq.float(),
    "an order": lambda m, ids, seq, x: seq > 3,
    "an order of some": lambda m, ids, seq, x: seq > torch.tensor([0, 0, 0, 0, 1]),
    "another table": lambda m, ids, seq, x: seq == ids[:, 1:2],
    "an order of ids": lambda m, ids, seq, x: seq > ids[:, :1],
    "times a mask": lambda m, ids, seq, x: seq * (x[:, :1] > 0),
    "a choice": lambda m, ids, seq, x: torch.where(x[:, :1] > 0, seq, 0),
    "the largest": lambda m, ids, seq, x: seq == seq.max(1, keepdim=True).values,
    "sorted": lambda m, ids, seq, x: seq.sort(1).values == 0,
    "rows of the largest": lambda m, ids, seq, x: m.item(seq.max(1, keepdim=True).values).sum(2),
    "a remainder": lambda m, ids, seq, x: seq % 3 == 0,
    "a half": lambda m, ids, seq, x: seq > 0.5,
    "a weight": lambda m, ids, seq, x: m.top.weight[0][seq // 4],
    "a list of one's own": lambda m, ids, seq, x: torch.arange(12)[seq] % 5,
    "one hot": lambda m, ids, seq, x: nn.functional.one_hot(seq, 12)[:, :, 3],
    "one hot of some": lambda m, ids, seq, x: nn.functional.one_hot(ids[:, :2], 12).sum(1)[:, 3:4] * (seq != 0),
}


@pytest.mark.parametrize("name", [*OTHERWISE])
def test_what_else_is_computed_of_ids_is_refused(name: str) -> None:
    _, net = lowered(OTHERWISE[name])
    with pytest.raises(UsageError, match="computes with ids themselves"):
        by_new_numbers(net, COLUMNS, lambda table, row: row if 0 <= row < ROWS[table] else -1)

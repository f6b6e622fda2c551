"""Examples of a few topics, partitioned and packed, and what PyTorch makes of the same batches."""

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from joint import losses_on, shard_of
from torch import nn

from htrain.data import Malformed
from htrain.data.numbering import Numbering, open_numbering
from htrain.data.pack_by_partition import pack_by_partition
from htrain.spec.options import Options
from htrain.tagging.bigraph import Request
from htrain.tagging.bigraph.divide import divide

ROWS = (40, 30, 24, 35)  # of the tables a, d, b, c: two columns, a list of at most LENGTH, and one of any length
LENGTH = 4
BATCH = 16
SCHEMA = f"""label: y
inputs:
  sparse: {{kind: ids, columns: [a, d], rows: [{ROWS[0]}, {ROWS[1]}]}}
  seen: {{kind: padded, column: b, length: {LENGTH}, rows: {ROWS[2]}}}
  tags: {{kind: bag, column: c, rows: {ROWS[3]}}}
"""


@dataclass(frozen=True)
class Parts:
    """Data in original ids, its partition, and the packed file."""

    source: str
    partition: Path
    packed: str

    @property
    def numbering(self) -> Numbering:
        return open_numbering(self.partition)


def write_examples(folder: Path, name: str, count: int, seed: int = 0) -> str:
    """Examples whose ids are mostly of one of four topics; the URI."""
    random = np.random.default_rng(seed)
    (folder / "s.yaml").write_text(SCHEMA)
    lines = ["y,a,d,b,c"]
    for _ in range(count):
        topic = int(random.integers(4))
        lengths = (1, 1, random.integers(1, LENGTH + 1), random.integers(1, 4))
        ids = [_drawn(random, topic, rows, int(length)) for rows, length in zip(ROWS, lengths, strict=True)]
        cells = (str(int(random.random() < 0.2 + 0.15 * topic)), *(" ".join(map(str, each)) for each in ids))
        lines.append(",".join(cells))
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{folder}/{name}.csv?schema={folder}/s.yaml"


def _drawn(random: np.random.Generator, topic: int, rows: int, count: int) -> list[int]:
    each = rows // 4
    return [
        int(topic * each + random.integers(each) if random.random() < 0.8 else random.integers(rows))
        for _ in range(count)
    ]


def parts_of(
    folder: Path, workers: int, *, count: int = BATCH * 120, replicas: float = 0.1, batch: int = BATCH, seed: int = 0
) -> Parts:
    """Examples, divided among workers, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_examples(folder, "a", count)
    return divided(source, folder, workers, replicas=replicas, batch=batch, seed=seed)


def divided(
    source: str, folder: Path, workers: int, *, replicas: float = 0.1, batch: int = BATCH, seed: int = 0
) -> Parts:
    """Data that is there, divided among workers."""
    partition, packed = folder / f"{workers}.partition", folder / f"{workers}.packed"
    divide(
        source,
        partition,
        Request(workers, batch, 1.03, 1.05, seed),
        replicated=replicas,
        malformed=Malformed(),
    )
    pack_by_partition(source, partition, packed, malformed=Malformed())
    return Parts(source, partition, f"packed:{packed}")


class FieldNet(nn.Module):
    """A table for each column, and one for a list, which counts as far as its length goes: 0 fills it up."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.d, self.b = (nn.Embedding(rows, 4) for rows in ROWS[:3])
        self.top = nn.Linear(12, 1)

    def forward(self, sparse: torch.Tensor, seen: torch.Tensor, seen_length: torch.Tensor) -> torch.Tensor:
        there = (torch.arange(LENGTH) < seen_length.unsqueeze(1)).unsqueeze(2).to(torch.float32)
        pooled = (self.b(seen) * there).sum(1)
        return self.top(torch.cat([self.a(sparse[:, 0]), self.d(sparse[:, 1]), pooled], 1))


class PaddedNet(nn.Module):
    """Row 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Embedding(ROWS[0], 4), nn.Embedding(ROWS[2], 4, padding_idx=0)
        self.top = nn.Linear(4, 1)

    def forward(self, sparse: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return self.top(self.a(sparse[:, 0]) + self.b(seen).sum(1))


class OneTable(nn.Module):
    """All columns look up one table, each from a first row of its own on; there are rows that none of them means."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(5 + ROWS[0] + 3 + ROWS[1] + 7, 4)
        self.register_buffer("first", torch.tensor([5, 5 + ROWS[0] + 3]))
        self.top = nn.Linear(8, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        return self.top(self.rows(sparse + self.first).flatten(1))


class BagNet(nn.Module):
    """A bag of any length, and tables of two widths."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.wide = nn.Embedding(ROWS[0], 4), nn.Embedding(ROWS[0], 1)
        self.c = nn.EmbeddingBag(ROWS[3], 4, mode="sum")
        self.top = nn.Linear(4, 1)

    def forward(self, sparse: torch.Tensor, tags: torch.Tensor, tags_offsets: torch.Tensor) -> torch.Tensor:
        return self.top(self.a(sparse[:, 0]) * self.c(tags, tags_offsets)) + self.wide(sparse[:, 0])


def arguments_of(model: nn.Module) -> set[str]:
    """What its forward() takes."""
    return set(inspect.signature(model.forward).parameters)


def drawn(kind: type[nn.Module]) -> nn.Module:
    """A model with values."""
    torch.manual_seed(0)
    model = kind()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.3)
    if isinstance(model, PaddedNet):
        with torch.no_grad():
            model.b.weight[0] = 0.0
    return model


def examples_of(source: str) -> dict[str, torch.Tensor]:
    """What a model of any kind is captured with."""
    return {name: value for name, value in shard_of(source, BATCH, 0, 1)[0].items() if name != "label"}


def in_original_ids(batch: dict[str, torch.Tensor], numbering: Numbering) -> dict[str, torch.Tensor]:
    old = {
        each: torch.from_numpy(numbering.originals(each, 0, numbering.tables.rows_of(each)))
        for each in numbering.tables.names
    }
    found = dict(batch)
    for each in numbering.facts.inputs:
        if each.kind == "ids":
            found[each.name] = torch.stack(
                [old[table][batch[each.name][:, c]] for c, table in enumerate(each.tables)], 1
            )
        elif each.kind != "dense":
            found[each.name] = old[each.tables[0]][batch[each.name]]
    return found


def joint_losses(model: nn.Module, parts: Parts, options: Options, workers: int) -> list[float]:
    """PyTorch on the joint batches of all workers."""
    numbering = parts.numbering
    shards = [
        [in_original_ids(b, numbering) for b in shard_of(parts.packed, BATCH, w, workers)] for w in range(workers)
    ]
    return losses_on(model, shards, options)[0]

"""Frappe by a training loop that imports `htrain.client` alone, beside plain PyTorch: AUC after an epoch, by staleness and optimizer.

    python tools/client_frappe.py --frappe ../shared/data/frappe.libfm.gz [--epochs 1] [--seeds 3] [--only adagrad:0,sgd:100]

The model is an embedding of the ten fields behind an MLP; rows are shuffled with seed 0 and split 80/20; batches of 128. Tables begin alike: the loop's model
reads what its servers have made, and PyTorch's has a copy. Each run is a process of servers and one worker.
"""

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from served import serving
from torch import nn

import htrain.client
from htrain.client.modules import HetEmbedding

ROWS, FIELDS, DIM, BATCH, RATE = 5382, 10, 16, 128, {"adagrad": 0.05, "sgd": 2.0}
Data = tuple[torch.Tensor, torch.Tensor]


class Model(nn.Module):
    """An MLP of the rows of ten ids."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.mlp = nn.Sequential(nn.Linear(FIELDS * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids[B,10] -> logit[B]."""
        return self.mlp(self.embedding(ids).flatten(1)).squeeze(1)


def read(path: Path) -> tuple[Data, Data]:
    """Train and test: ids[N,10], label[N]."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    random.Random(0).shuffle(lines)
    parts = [line.split() for line in lines]
    labels = torch.tensor([float(part[0]) > 0 for part in parts], dtype=torch.float32)
    ids = torch.tensor([[int(word.split(":")[0]) for word in part[1:]] for part in parts])
    cut = len(lines) * 8 // 10
    return (ids[:cut], labels[:cut]), (ids[cut:], labels[cut:])


def batches(data: Data, epochs: int) -> Iterator[Data]:
    """Of one size, but the last of an epoch."""
    for _ in range(epochs):
        yield from zip(*(part.split(BATCH) for part in data), strict=True)


def area(scores: torch.Tensor, labels: torch.Tensor) -> float:
    """The area under the ROC curve; ties count a half."""
    order = np.argsort(scores.numpy(), kind="stable")
    ranks = np.empty(len(order))
    _, first, counts = np.unique(scores.numpy()[order], return_index=True, return_counts=True)
    ranks[order] = np.repeat(first + (counts + 1) / 2, counts)
    positive = labels.numpy() > 0
    ones = positive.sum()
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * (len(order) - ones)))


def train(
    model: Model, data: Data, test: Data, epochs: int, step: torch.optim.Optimizer | htrain.client.Tables
) -> float:
    """An epoch or more; the AUC on the test set. `step` is what steps the rows."""
    dense = torch.optim.Adagrad(model.mlp.parameters(), lr=0.01)
    for ids, label in batches(data, epochs):
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), label)
        dense.zero_grad()
        if isinstance(step, torch.optim.Optimizer):
            step.zero_grad()
        loss.backward()
        dense.step()
        step.step()
    model.eval()
    with torch.no_grad():
        return area(model(test[0]), test[1])


def plan(folder: Path, optimizer: str, staleness: int) -> None:
    """A plan of the model, with one sparse PS."""
    code = (
        "import torch, htrain, sys; from client_frappe import *; "
        f"o = htrain.Options(cache=htrain.HetCache(capacity='20%', staleness={staleness}), "
        f"sparse_optimizer={'htrain.Adagrad' if optimizer == 'adagrad' else 'htrain.Sgd'}(lr={RATE[optimizer]})); "
        "c = htrain.Cluster(groups=1, trainers=1, group_ps=0, sparse_ps=1); "
        "m = Model(nn.Embedding(ROWS, DIM)); "
        "htrain.compile(m, example_inputs={'ids': torch.zeros(4, FIELDS, dtype=torch.int64)}, options=o, cluster=c).save(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=Path(__file__).parent, check=True)


def compare(
    data: Data, test: Data, optimizer: str, staleness: int, epochs: int, seed: int
) -> tuple[float, float, float]:
    """The AUC of the loop behind a cache, that of plain PyTorch, and the share of rows that were in the cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan(folder / "plan", optimizer, staleness)
        with serving(folder / "plan") as place, htrain.client.connect(place) as tables:
            tables.warm()  # a short epoch may end before the loops of a cache are compiled: it would compare none
            (table,) = tables.served.tables
            torch.manual_seed(seed)
            model = Model(HetEmbedding(tables, table))
            copy = Model(nn.Embedding.from_pretrained(tables.look(table, torch.arange(ROWS)), freeze=False))
            copy.mlp.load_state_dict(model.mlp.state_dict())
            behind = train(model, data, test, epochs, tables)
            counts = tables.counts
    rows = copy.embedding.parameters()
    stepped = (
        torch.optim.Adagrad(rows, RATE[optimizer]) if optimizer == "adagrad" else torch.optim.SGD(rows, RATE[optimizer])
    )
    return behind, train(copy, data, test, epochs, stepped), counts["hits"] / max(1, counts["hits"] + counts["misses"])


def main() -> None:
    """Print a line for each setting and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="adagrad:0,adagrad:1,adagrad:10,sgd:10,sgd:100")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data, test = read(arguments.frappe)
    for setting in arguments.only.split(","):
        optimizer, staleness = setting.split(":")
        for seed in range(arguments.seeds):
            behind, plain, hits = compare(data, test, optimizer, int(staleness), arguments.epochs, seed)
            aucs = {"client": round(behind, 4), "torch": round(plain, 4)}
            line = {"optimizer": optimizer, "s": int(staleness), "seed": seed, **aucs, "hits": round(hits, 3)}
            print(json.dumps(line), flush=True)
    assert not [name for name in sys.modules if name.startswith(("htrain.executor", "htrain.plan", "htrain.compiler"))]


if __name__ == "__main__":
    main()

"""Quality by staleness: AUC of HET-GMP with s = 0, 100, 10,000 and without a bound, by a partition and at random (HET-GMP 7.2, Table 2).

    python tools/gmp_staleness.py --frappe frappe.libfm.gz [--workers 4] [--batch 32] [--epochs 4] [--seeds 5] [--write deferred]

Wide & deep with htrain's optimizers and rates, trained on four fifths of Frappe and tested on the rest. Workers and owners are htrain's own, in one process
and in lockstep; the model is PyTorch's. Dense weights are those of AllReduce, the same for all. The control has samples and rows anywhere, with as many
replicas, chosen in the same way. The seeds are those of the weights, of the order of examples, and of the control's partition.
A bound that no row's clock reaches in so few steps is none: the line says so.
"""

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from baseline import build_model, evaluate
from gmp_workers import Array, Cluster, Layout, joint_batches, layout_of
from precision import parts
from torch import nn

from htrain.data import START, Malformed, open_data
from htrain.spec.options import Options
from htrain.sync.gmp.worker import UNBOUNDED, Bounds
from htrain.sync.row_steps import SparseStep
from htrain.tagging.bigraph import Request, at_random, partition
from htrain.tagging.bigraph.of_data import read_bigraph

MODEL = str(Path(__file__).parents[1] / "models" / "wide_deep.py")
STALENESS = {"0": 0, "100": 100, "10k": 10_000, "unbounded": UNBOUNDED}
PAPER = {
    "Avazu": (77.19, 77.19, 76.9, 76.21),
    "Criteo": (79.79, 79.79, 79.77, 78.70),
    "Company": (76.09, 76.10, 76.11, 73.27),
}


@dataclass(frozen=True)
class Split:
    """Training data, whose rows of all tables are numbered one table after another, and the URI of test data."""

    train: str
    test: str

    @cached_property
    def graph_and_seen(self):  # type: ignore[no-untyped-def]
        return read_bigraph(open_data(self.train), Malformed(0.01))

    @cached_property
    def used(self) -> Array:
        """The rows of all tables that the training data uses."""
        return np.flatnonzero(np.unpackbits(self.graph_and_seen[1].words.view(np.uint8), bitorder="little"))

    @cached_property
    def columns(self) -> tuple[Array, Array]:
        """Of each example the numbers of its rows among those used, [n,F], and its label."""
        seen = self.graph_and_seen[1]
        data = open_data(self.train).for_loss("bce")
        (ids,) = (i for i in data.schema.inputs if i.kind == "ids")
        starts = dict(zip(seen.tables.names, seen.tables.starts, strict=True))
        read = data.batches(batch_size=4096, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed(0.01))
        found = [(batch.columns[ids.name], batch.columns["label"]) for batch in read]
        rows = np.concatenate([each for each, _ in found]) + np.array([starts[table] for table in ids.tables])
        return np.searchsorted(self.used, rows), np.concatenate([label for _, label in found])


class Training:
    """A model whose tables are at HET-GMP's workers."""

    def __init__(self, split: Split, layout: Layout, bounds: Bounds, seed: int) -> None:
        options = Options()
        self._split, self._layout = split, layout
        self.model = build_model(MODEL, open_data(split.train).schema, seed)
        adagrad = options.sparse_optimizer
        self._dense = torch.optim.Adagrad(self.model.deep.parameters(), lr=options.dense_optimizer.lr)
        table = np.empty((len(split.used), self._weights().shape[1]), np.float32)
        table[layout.key_of] = self._weights()[split.used]
        step = SparseStep(adagrad.kind, adagrad.lr, adagrad.eps)
        self._cluster = Cluster(layout, table, bounds=bounds, step=step)

    def epoch(self, batch: int, seed: int) -> None:
        """One pass over the data."""
        rows, labels = self._split.columns
        for batches in joint_batches(self._layout, batch, seed):
            wanted = torch.from_numpy(np.concatenate([labels[samples] for samples in batches]))
            self._cluster.step(
                [self._layout.key_of[rows[samples]] for samples in batches],
                lambda values, places, wanted=wanted: self._gradients(values, places, wanted),
            )

    def auc(self) -> float:
        """On the test data, with the primaries, when every update has come to them."""
        self._cluster.flush()
        weights = self._weights()
        weights[self._split.used] = self._cluster.table[self._layout.key_of]
        at = 0
        for deep, wide in self._tables():
            deep.data.copy_(torch.from_numpy(weights[at : at + len(deep), :-1]))
            wide.data.copy_(torch.from_numpy(weights[at : at + len(deep), -1:]))
            at += len(deep)
        return evaluate(self.model, self._split.test)[1]

    def _gradients(self, values: Array, places: Sequence[Array], labels: torch.Tensor) -> Array:
        """Of the mean loss of all workers' examples."""
        rows = torch.from_numpy(values).requires_grad_()
        looked_up = rows[torch.from_numpy(np.concatenate(places))]
        logit = self.model.deep(looked_up[..., :-1].flatten(1)).squeeze(1) + looked_up[..., -1].sum(dim=1)
        self._dense.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(logit, labels).backward()
        self._dense.step()
        assert rows.grad is not None
        return rows.grad.numpy()

    def _weights(self) -> Array:
        """The rows of all tables, of the deep part and behind them of the wide one."""
        return torch.cat([torch.cat([deep.data, wide.data], dim=1) for deep, wide in self._tables()]).numpy()

    def _tables(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        names = self._split.graph_and_seen[1].tables.names
        deep, wide = self.model.embeddings.tables, self.model.wide.tables
        return [(deep[name].weight, wide[name].weight) for name in names]


def layouts(split: Split, asked: argparse.Namespace) -> dict[str, list[Layout]]:
    """For each seed, by a search, which is the same for all, and at random."""
    graph, _ = split.graph_and_seen

    def layout(searched: bool, seed: int) -> Layout:
        found = (partition if searched else at_random)(graph, Request(asked.workers, asked.batch, seed=seed))
        return layout_of(
            graph, found.samples, found.homes, num_workers=asked.workers, batch=asked.batch, replicated=asked.replicas
        )

    return {
        "by the partition": [layout(True, 0)] * asked.seeds,
        "at random": [layout(False, seed) for seed in range(asked.seeds)],
    }


def trained(split: Split, layout: Layout, bounds: Bounds, seed: int, epochs: int, batch: int) -> float:
    """The AUC of one run."""
    torch.set_num_threads(1)
    training = Training(split, layout, bounds, seed)
    for epoch in range(epochs):
        training.epoch(batch, seed * 1000 + epoch)
    return training.auc()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path, required=True)
    for name, default in (("workers", 4), ("batch", 32), ("epochs", 4), ("seeds", 5), ("processes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--replicas", type=float, default=0.01)
    parser.add_argument("--write", choices=["through", "deferred"], default="through")
    parser.add_argument("--staleness", default=",".join(STALENESS))
    asked = parser.parse_args()
    print("paper, test AUC in % at s = 0, 100, 10k, unbounded: " + "; ".join(f"{k} {v}" for k, v in PAPER.items()))
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool,
    ):
        print_table(Split(*parts(asked.frappe, Path(folder))), asked, pool)


def print_table(split: Split, asked: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
    by_name = layouts(split, asked)
    steps = asked.epochs * min(min(map(len, each.examples)) // asked.batch for each in chain(*by_name.values()))
    print(
        f"{asked.workers} workers, batches of {asked.batch}, {asked.epochs} epochs of {len(split.columns[1]):,} examples: {steps * asked.workers:,} updates of "
        f"a row at most; writes {asked.write}, replicas of {asked.replicas:.0%} of the rows; median, least and largest AUC in % of {asked.seeds} seeds"
    )
    print(f"{'s':>10}{'by the partition':>28}{'at random':>28}")
    for name in asked.staleness.split(","):
        bound = STALENESS[name]
        if steps * asked.workers <= bound < UNBOUNDED:
            print(f"{name:>10}   no row has so many updates: as unbounded")
            continue
        bounds = Bounds(bound, deferred=asked.write == "deferred")
        waited = [
            [
                pool.submit(trained, split, layout, bounds, seed=seed, epochs=asked.epochs, batch=asked.batch)
                for seed, layout in enumerate(each)
            ]
            for each in by_name.values()
        ]
        print(f"{name:>10}" + "".join(f"{_cell([run.result() for run in runs]):>28}" for runs in waited), flush=True)


def _cell(aucs: Sequence[float]) -> str:
    return f"{100 * statistics.median(aucs):.2f} ({100 * min(aucs):.2f} to {100 * max(aucs):.2f})"


if __name__ == "__main__":
    main()

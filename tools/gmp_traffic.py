"""What HET-GMP's partitions and bounds save, by kind of bytes (HET-GMP 7.2, Figure 8): the protocol itself over data, without a network.

    python tools/gmp_traffic.py --frappe frappe.libfm.gz [--workers 8] [--batch 128] [--steps 200] [--dim 128] [--replicas 0.01]
    python tools/gmp_traffic.py --data criteo:train.tsv

Bytes that a worker and all others exchange in one iteration, both ways, in the mean over workers and steps, the first ones, when replicas are empty,
included. Samples of a worker come in random order. Wide & deep looks rows of D and of 1 up, each with keys and clocks of their own; deep & cross, with the
cross of vectors, rows of D. A ring of AllReduce sends 2 (N - 1) / N of the dense weights. Without `--data`: Frappe where it is given, and synthetic logs whose
ids are of the sample's own community, of 64, as often as `--localities` say: 0.9 is strong, 0 is none.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gmp_workers import Array, Cluster, Layout, joint_batches, keys_of, layout_of
from torch import nn

from htrain.data import Malformed, Schema, open_data
from htrain.sync.gmp.counts import KINDS
from htrain.sync.gmp.worker import Bounds
from htrain.sync.row_steps import SparseStep
from htrain.tagging.bigraph import Bigraph, Request, at_random, partition
from htrain.tagging.bigraph.of_data import read_bigraph

MODELS = Path(__file__).parents[1] / "models"
_NO_BOUND_MATTERS = 100  # without replicas


@dataclass(frozen=True)
class Setting:
    """A column of Figure 8: a partition by a search or at random, with replicas or without, and how they are held."""

    name: str
    searched: bool
    replicated: bool
    bounds: Bounds


SETTINGS = (
    Setting("random", False, False, Bounds(_NO_BOUND_MATTERS)),
    Setting("1D", True, False, Bounds(_NO_BOUND_MATTERS)),
    Setting("2D, s = 10, through", True, True, Bounds(10)),
    Setting("2D, s = 10, deferred", True, True, Bounds(10, deferred=True)),
    Setting("2D, s = 100, through", True, True, Bounds(100)),
    Setting("2D, s = 100, deferred", True, True, Bounds(100, deferred=True)),
)  # fmt: skip


@dataclass(frozen=True)
class Bytes:
    """Of one iteration of a worker: embedding rows and their gradients, keys, clocks, and AllReduce."""

    rows: float
    gradients: float
    keys: float
    clocks: float
    dense: float

    @property
    def embeddings(self) -> float:
        """What the paper counts as embeddings and gradients."""
        return self.rows + self.gradients


def unit_bytes(graph: Bigraph, layout: Layout, bounds: Bounds, *, batch: int, steps: int) -> dict[str, float]:
    """Bytes by kind of a worker's iteration with rows of one number."""
    cluster = Cluster(layout, np.zeros((graph.num_rows, 1), np.float32), bounds=bounds, step=SparseStep("sgd", 0.0))
    keys = keys_of(graph, layout)
    for batches in _steps(layout, batch, steps):
        cluster.step([keys[samples] for samples in batches], lambda rows, _: rows)
    cluster.flush()
    return {kind: cluster.bytes[kind] / layout.num_workers / steps for kind in KINDS}


def _steps(layout: Layout, batch: int, steps: int) -> Iterator[list[Array]]:
    """So many steps, of as many epochs as that takes. Raises ValueError where a worker has no batch."""
    if min(map(len, layout.examples)) < batch:
        raise ValueError(f"a worker has fewer examples than a batch of {batch}: want less of --batch or --workers")
    count = epoch = 0
    while True:
        for batches in joint_batches(layout, batch, epoch):
            if count == steps:
                return
            count += 1
            yield batches
        epoch += 1


def of_model(unit: dict[str, float], widths: tuple[int, ...], num_dense: int, num_workers: int) -> Bytes:
    """Those of a model that looks the same ids up in tables of `widths`."""
    each, sets = sum(widths), len(widths)
    dense = 4 * num_dense * 2 * (num_workers - 1) / num_workers
    return Bytes(unit["rows"] * each, unit["gradients"] * each, unit["keys"] * sets, unit["clocks"] * sets, dense)


def models(schema: Schema, dim: int) -> dict[str, tuple[tuple[int, ...], int]]:
    """The widths of each model's tables, and how many dense weights it has."""
    sys.path.insert(0, str(MODELS))
    from dcn import build_v1  # noqa: PLC0415  model files, not a package
    from wide_deep import build  # noqa: PLC0415

    with torch.device("meta"):
        return {"WDL": ((dim, 1), _num_dense(build(schema, dim))), "DCN": ((dim,), _num_dense(build_v1(schema, dim)))}


def _num_dense(model: nn.Module) -> int:
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return sum(p.numel() for p in model.parameters() if id(p) not in tables)


def layouts(graph: Bigraph, asked: argparse.Namespace) -> dict[tuple[bool, bool], Layout]:
    """By whether the partition was searched for, and whether there are replicas."""
    request = Request(asked.workers, asked.batch)
    found = {searched: way(graph, request) for searched, way in ((False, at_random), (True, partition))}
    return {
        (searched, replicated): layout_of(
            graph, found[searched].samples, found[searched].homes, num_workers=asked.workers, batch=asked.batch,
            replicated=asked.replicas if replicated else 0.0,
        )
        for searched, replicated in {(s.searched, s.replicated) for s in SETTINGS}
    }  # fmt: skip


def print_tables(uri: str, label: str, asked: argparse.Namespace) -> None:
    data = open_data(uri)
    graph, _ = read_bigraph(data, Malformed(0.01))
    print(
        f"\n{label}: {graph.num_samples:,} samples, {graph.num_rows:,} rows; {asked.workers} workers, batches of {asked.batch}, {asked.steps} steps; D = "
        f"{asked.dim}, replicas of {asked.replicas:.0%} of the rows; kB of a worker's iteration"
    )
    print(
        f"{'':<30}{'rows':>9}{'gradients':>11}{'keys':>8}{'clocks':>8}{'AllReduce':>11}{'rows and gradients saved':>26}"
    )
    by_layout = layouts(graph, asked)
    units = {
        s.name: unit_bytes(graph, by_layout[s.searched, s.replicated], s.bounds, batch=asked.batch, steps=asked.steps)
        for s in SETTINGS
    }
    for model, (widths, num_dense) in models(data.schema, asked.dim).items():
        full = of_model(units["random"], widths, num_dense, asked.workers).embeddings
        for name, unit in units.items():
            found = of_model(unit, widths, num_dense, asked.workers)
            cells = "".join(
                f"{value / 1000:>{width},.1f}"
                for value, width in (
                    (found.rows, 9), (found.gradients, 11), (found.keys, 8), (found.clocks, 8), (found.dense, 11),
                )
            )  # fmt: skip
            print(f"{f'{model}, {name}':<30}{cells}{1 - found.embeddings / full:>26.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path)
    parser.add_argument("--data", action="append", help="other data than Frappe and the synthetic logs, FORMAT:PATH")
    for name, default in (("workers", 8), ("batch", 128), ("steps", 200), ("dim", 128), ("examples", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--table-rows", type=int, default=5_000)
    parser.add_argument("--localities", default="0.9,0.7,0")
    parser.add_argument("--replicas", type=float, default=0.01)
    asked = parser.parse_args()
    print(
        "paper: 87.5 % of rows and gradients saved by 2D with s = 100 on Company, 63.8 % by 1D there (Table 3); bars without numbers otherwise"
    )
    if asked.data:
        for uri in asked.data:
            print_tables(uri, uri.rpartition("/")[2], asked)
        return
    if asked.frappe:
        print_tables(f"libfm:{asked.frappe}?rows=5382", "Frappe", asked)
    for locality in asked.localities.split(","):
        uri = f"synthetic:?rows={asked.examples}&table_rows={asked.table_rows}&locality={locality}"
        print_tables(uri, f"synthetic, locality {locality}", asked)


if __name__ == "__main__":
    main()

"""How often replicas come anew, epoch by epoch, and why: too far behind their primaries, or other rows of a sample (HET-GMP 5.3).

    python tools/gmp_syncs.py --frappe frappe.libfm.gz [--workers 4] [--batch 32] [--epochs 12] [--replicas 0.01]

HET-GMP's own workers and owners, without a network; a line for each bound and epoch. `useless` are those that came for the sake of other rows and brought no
update that had not been seen.
"""

import argparse
from pathlib import Path

import numpy as np
from gmp_workers import Cluster, joint_batches, keys_of, layout_of

from htrain.data import Malformed, open_data
from htrain.sync.gmp.worker import Bounds
from htrain.sync.row_steps import SparseStep
from htrain.tagging.bigraph import Request, partition
from htrain.tagging.bigraph.of_data import read_bigraph

COUNTS = ("intra_checks", "intra_syncs", "inter_syncs", "useless")
BOUNDS = (Bounds(10), Bounds(100), Bounds(100, deferred=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path, required=True)
    for name, default in (("workers", 4), ("batch", 32), ("epochs", 12), ("replicas", 0.01)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args()
    graph, _ = read_bigraph(open_data(f"libfm:{asked.frappe}?rows=5382"), Malformed(0.01))
    found = partition(graph, Request(asked.workers, asked.batch))
    layout = layout_of(
        graph, found.samples, found.homes, num_workers=asked.workers, batch=asked.batch, replicated=asked.replicas
    )
    keys = keys_of(graph, layout)
    print(f"{'s':>5}{'write':>10}{'epoch':>7}" + "".join(f"{name.replace('_', ' '):>14}" for name in COUNTS))
    for bounds in BOUNDS:
        table = np.zeros((graph.num_rows, 1), np.float32)
        cluster, before = Cluster(layout, table, bounds=bounds, step=SparseStep("sgd", 0.0)), np.zeros(len(COUNTS))
        for epoch in range(asked.epochs):
            for samples in joint_batches(layout, asked.batch, epoch):
                cluster.step([keys[mine] for mine in samples], lambda rows, _: rows)
            counts = np.array([sum(getattr(worker.counts, name) for worker in cluster.workers) for name in COUNTS])
            write = "deferred" if bounds.deferred else "through"
            cells = "".join(f"{count:>14,.0f}" for count in counts - before)
            print(f"{bounds.staleness:>5}{write:>10}{epoch + 1:>7}{cells}", flush=True)
            before = counts


if __name__ == "__main__":
    main()

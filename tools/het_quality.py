"""Quality by staleness: AUC and NE of HET with s = 0, 100, 10,000 and without a bound (HET 5.1, Table 2).

    python tools/het_quality.py [--examples 400000] [--table-rows 10000]
    python tools/het_quality.py --frappe frappe.libfm.gz --epochs 15 --batch 16 --capacity 2% --optimizer adagrad --sparse-lr 0.01 --dense-lr 0.005

8 workers in lockstep, wide & deep, batch 128 of each unless told; tested on a twentieth of the size from the same planted model, or on a fifth of
Frappe. s = 0 is synchronous training. Each line is the median of `--runs` runs, with the least and the largest AUC.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from het_traffic import stream_uri
from precision import parts
from rich.console import Console

import htrain
from htrain.data.formats.synthetic import TEST_BLOCK
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[1] / "models" / "wide_deep.py")
STALENESS = {"0": 0, "100": 100, "10k": 10_000, "unbounded": "unbounded"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path)
    parser.add_argument("--examples", type=int, default=400_000)
    parser.add_argument("--table-rows", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--capacity", default="10%")
    parser.add_argument("--dense-lr", type=float, default=0.1)
    parser.add_argument("--sparse-lr", type=float, default=1.0)
    parser.add_argument(
        "--optimizer", default="sgd", choices=["sgd", "adagrad"], help="of dense and of sparse parameters"
    )
    parser.add_argument("--staleness", default=",".join(STALENESS))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if asked.frappe:
            train, test = parts(asked.frappe, Path(folder))
        else:
            train = stream_uri(asked.table_rows, asked.examples)
            test = f"{stream_uri(asked.table_rows, asked.examples // 20)}&first_block={TEST_BLOCK}"
        print(
            f"{asked.workers} workers, batch {asked.batch}, {asked.epochs} epochs of {train.rpartition('/')[2]}",
            flush=True,
        )
        print(f"{'s':>10}{'AUC':>9}{'least':>9}{'largest':>9}{'NE':>9}{'hit rate':>10}{'invalid':>9}{'EPS':>9}")
        for name in asked.staleness.split(","):
            _line(name, asked, train, test, Path(folder))


def _line(name: str, asked: argparse.Namespace, train: str, test: str, folder: Path) -> None:
    options = with_flags(
        batch_size=asked.batch, dense_sync="allreduce", cache="het", cache_capacity=asked.capacity,
        dense_optimizer=asked.optimizer, sparse_optimizer=asked.optimizer, dense_lr=asked.dense_lr, sparse_lr=asked.sparse_lr,
    )  # fmt: skip
    aucs, entropies = [], []
    for number in range(asked.runs):
        cluster = this_machine(groups=asked.workers, trainers=1, group_ps=0, sparse_ps=1)
        place = folder / f"{name}-{number}"
        chosen = with_flags(options, cache_staleness=STALENESS[name], seed=number)
        htrain.compile(MODEL, data=train, cluster=cluster, options=chosen).save(place / "plan")
        result = htrain.run(
            place / "plan",
            data=train,
            out=place / "run",
            epochs=asked.epochs,
            deadline_seconds=300,
            console=Console(quiet=True),
        )
        found = htrain.evaluate(place / "run", data=test)
        aucs.append(found.auc)
        entropies.append(found.ne)
    caches, eps = result.totals.caches, result.totals.examples / result.train_seconds
    print(
        f"{name:>10}{statistics.median(aucs):>9.5f}{min(aucs):>9.5f}{max(aucs):>9.5f}{statistics.median(entropies):>9.4f}"
        f"{caches.hit_rate:>10.1%}{caches.invalid_rate:>9.1%}{eps:>9,.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()

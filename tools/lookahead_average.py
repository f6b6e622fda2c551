"""What averaging look-ahead caches less often costs: AUC against lambda (cDLRM 6.1, Figure 4c).

    python tools/lookahead_average.py [--examples 500000] [--table-rows 20000] [--every 1,10,100,1000] [--batches 128,1024] [--trainers 2] [--runs 1]

Wide & deep on a synthetic click log, trainers with replicas of the same caches and one sparse PS, each a process; beside them one trainer on the
joint batches. Tested on a twentieth of the size from the same planted model. Medians of the runs, whose seeds differ; `exchanged` is what a
trainer brings into averages, per example. A batch is of all trainers together.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.console import Console

import htrain
from htrain.data.formats.synthetic import TEST_BLOCK
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[1] / "models" / "wide_deep.py")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=500_000)
    parser.add_argument("--table-rows", type=int, default=20_000)
    parser.add_argument("--every", default="1,10,100,1000")
    parser.add_argument("--batches", default="128,1024")
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--window", type=int, default=100)
    parser.add_argument("--sparse-lr", type=float, default=0.02)
    parser.add_argument("--dense-lr", type=float, default=0.005)
    parser.add_argument("--optimizer", default="adagrad", choices=["sgd", "adagrad", "rowwise_adagrad"])
    parser.add_argument("--runs", type=int, default=1)
    asked = parser.parse_args()
    print(
        f"{asked.examples:,} examples, 26 tables of {asked.table_rows:,} rows, {asked.optimizer}, {asked.trainers} trainers, {asked.runs} runs"
    )
    print(f"{'batch':>6}{'lambda':>9}{'AUC':>10}{'lowest':>10}{'highest':>10}{'exchanged':>12}{'EPS':>9}", flush=True)
    for batch in map(int, asked.batches.split(",")):
        _line(asked, batch, 1, 0)
        for every in map(int, asked.every.split(",")):
            _line(asked, batch, asked.trainers, every)


def _line(asked: argparse.Namespace, batch: int, trainers: int, every: int) -> None:
    options = with_flags(
        batch_size=batch // trainers, cache="lookahead", cache_window=asked.window, cache_average=max(1, every), dense_sync="allreduce",
        dense_optimizer="sgd" if asked.optimizer == "sgd" else "adagrad", sparse_optimizer=asked.optimizer,
        sparse_lr=asked.sparse_lr, dense_lr=asked.dense_lr,
    )  # fmt: skip
    found = [_run(asked, replace(options, seed=seed), trainers) for seed in range(asked.runs)]
    aucs, speeds = [auc for auc, _, _ in found], [eps for _, _, eps in found]
    exchanged = f"{found[0][1]:,.0f} B" if trainers > 1 else "-"
    name = str(every) if trainers > 1 else "one"
    print(
        f"{batch:>6}{name:>9}{median(aucs):>10.5f}{min(aucs):>10.5f}{max(aucs):>10.5f}{exchanged:>12}{median(speeds):>9,.0f}",
        flush=True,
    )


def _run(asked: argparse.Namespace, options: Options, trainers: int) -> tuple[float, float, float]:
    """AUC, bytes brought into averages per example of a trainer, and examples per second."""
    data = f"synthetic:?rows={asked.examples}&table_rows={asked.table_rows}"
    test = f"synthetic:?rows={asked.examples // 20}&table_rows={asked.table_rows}&first_block={TEST_BLOCK}"
    cluster = this_machine(groups=trainers, trainers=1, group_ps=0, sparse_ps=1)
    with tempfile.TemporaryDirectory() as folder:
        plan, run = Path(folder) / "plan", Path(folder) / "run"
        htrain.compile(MODEL, data=data, cluster=cluster, options=options).save(plan)
        result = htrain.run(plan, data=data, out=run, console=Console(quiet=True))
        totals = result.totals
        exchanged = totals.caches.bytes.get("averages", 0) / totals.examples
        return htrain.evaluate(run, data=test).auc, exchanged, totals.examples / result.train_seconds


if __name__ == "__main__":
    main()

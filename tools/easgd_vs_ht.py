"""EASGD against hierarchical training: two plans of one model, the same number of trainers, NE relative to PyTorch alone (HT 2.3, 5.1).

    python tools/easgd_vs_ht.py --trainers 16 --rows 200000

EASGD is `groups: N, trainers: 1, group_ps: 0`; HT is N/4 groups of 4 trainers with group PSs. All roles are threads of this process.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from baseline import train_and_evaluate
from rich.console import Console
from rich.table import Table

import htrain
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[1] / "models" / "wide_deep.py")


def reach(
    cluster: Cluster, options: Options, train: str, test: str, console: Console
) -> tuple[float, float, int, float]:
    """NE, AUC, the largest dense staleness and EPS of one plan after one pass over `train`."""
    with tempfile.TemporaryDirectory() as folder:
        plan = htrain.compile(MODEL, data=train, cluster=cluster, options=options)
        plan.save(Path(folder) / "plan")
        result = htrain.run(
            Path(folder) / "plan", data=train, out=Path(folder) / "run", hosting="threads", workers=1, console=console,
            deadline_seconds=300,
        )  # fmt: skip
        found = htrain.evaluate(Path(folder) / "run", data=test)
    return found.ne, found.auc, result.totals.max_staleness, result.totals.examples / result.train_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=16)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--sync-period", type=int, default=8)
    arguments = parser.parse_args()
    console = Console(stderr=True)
    torch.set_num_threads(1)
    options = with_flags(net_replicas=1, sync_period=arguments.sync_period)
    log = f"table_rows=2000&rows={arguments.rows}"
    train, test = f"synthetic:?{log}", f"synthetic:?{log}&first_block=1000000"
    plain = train_and_evaluate(MODEL, train, test, options)
    count = arguments.trainers
    plans = {
        f"EASGD, {count} groups of 1 trainer": this_machine(groups=count, trainers=1, group_ps=0),
        f"HT, {count // 4} groups of 4 trainers + 2 group PSs": this_machine(groups=count // 4, trainers=4, group_ps=2),
        f"HT, {count // 8} groups of 8 trainers + 2 group PSs": this_machine(groups=count // 8, trainers=8, group_ps=2),
    }
    table = Table("system", "NE (test)", "relative to PyTorch", "AUC", "staleness", "EPS")
    table.add_row("PyTorch alone", f"{plain.ne:.4f}", "", f"{plain.auc:.4f}", "", f"{plain.eps:,.0f}")
    for name, cluster in plans.items():
        ne, area, staleness, eps = reach(cluster, options, train, test, console)
        table.add_row(name, f"{ne:.4f}", f"{ne / plain.ne - 1:+.2%}", f"{area:.4f}", str(staleness), f"{eps:,.0f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

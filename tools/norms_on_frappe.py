"""Batch norms and dropouts on Frappe: AUC after an epoch, plain PyTorch beside plans of one trainer and of two groups of two trainers.

    python tools/norms_on_frappe.py --frappe ../shared/data/frappe.libfm.gz [--seeds 3] [--models fnn deepfm dcn]

Rows are shuffled with seed 0 and split 80/20. Each row of the table is a mean over seeds of first values and of draws, with the least and the most.
"""

import argparse
import gzip
import random
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from baseline import train_and_evaluate
from rich.console import Console
from rich.table import Table

import htrain
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.tree import with_flags

MODELS = str(Path(__file__).parent / "normed_models.py")
ONE = this_machine(group_ps=0, sparse_ps=0)
GROUPS = this_machine(groups=2, trainers=2, group_ps=1, sparse_ps=1)


def split(path: Path, folder: Path) -> tuple[str, str]:
    """Data of training and of test."""
    rows = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    random.Random(0).shuffle(rows)
    cut = len(rows) * 8 // 10
    parts = {"train": rows[:cut], "test": rows[cut:]}
    for name, lines in parts.items():
        (folder / f"{name}.libfm").write_bytes(b"".join(lines))
    train, test = (f"libfm:{folder}/{name}.libfm?rows=5382" for name in parts)
    return train, test


def plain(model: str, train: str, test: str, seed: int) -> float:
    """The AUC of PyTorch alone."""
    torch.manual_seed(seed)
    return train_and_evaluate(model, train, test, with_flags(seed=seed)).auc


def trained(model: str, train: str, test: str, seed: int, *, cluster: Cluster, nets: int) -> float:
    """The AUC of a run."""
    with tempfile.TemporaryDirectory() as folder:
        plan, run = Path(folder) / "plan", Path(folder) / "run"
        htrain.compile(model, data=train, cluster=cluster, options=with_flags(seed=seed, net_replicas=nets)).save(plan)
        htrain.run(plan, data=train, out=run, hosting="threads", console=Console(quiet=True))
        return htrain.evaluate(run, data=test).auc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=["fnn", "deepfm", "dcn"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("model", "system", "AUC, mean (least to most)", "behind PyTorch")
    with tempfile.TemporaryDirectory() as folder:
        train, test = split(arguments.frappe, Path(folder))
        for name in arguments.models:
            model = f"{MODELS}:{name}"
            systems: dict[str, Callable[[int], float]] = {
                "PyTorch": partial(plain, model, train, test),
                "one trainer": partial(trained, model, train, test, cluster=ONE, nets=1),
                "2 groups x (2 trainers x 2 net replicas)": partial(
                    trained, model, train, test, cluster=GROUPS, nets=2
                ),
            }
            means: list[float] = []
            for system, run in systems.items():
                found = [run(seed) for seed in range(arguments.seeds)]
                means.append(statistics.mean(found))
                spread = f"{means[-1]:.4f} ({min(found):.4f} to {max(found):.4f})"
                table.add_row(name, system, spread, f"{means[0] - means[-1]:+.4f}" if len(means) > 1 else "")
                Console(stderr=True).print(f"{name}, {system}: {spread}")
    Console(width=130).print(table)


if __name__ == "__main__":
    main()

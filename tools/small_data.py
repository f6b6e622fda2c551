"""How far groups are behind plain PyTorch where there is little data, and what each way of keeping them alike makes of it.

    python tools/small_data.py --frappe ../shared/data/frappe.libfm.gz --rows 23000

One epoch of Wide & Deep on the first rows of Frappe, shuffled; test AUC on the rest's fifth, over PyTorch's, median and range of `--repeats` runs. Processes
of one host; 2 groups of 2 trainers with 2 net replicas and a group PS, the default plan, unless a setting says otherwise.
"""

import argparse
import gzip
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from baseline import train_and_evaluate
from rich.console import Console
from rich.table import Table

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[1] / "models" / "wide_deep.py")
TWO: dict[str, Any] = {"groups": 2, "trainers": 2, "group_ps": 1}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "1 group, 1 trainer, 1 net replica": (
        {"groups": 1, "trainers": 1, "group_ps": 1},
        {"net_replicas": 1, "prefetch": False},
    ),
    "1 group, 1 trainer, 2 net replicas": ({"groups": 1, "trainers": 1, "group_ps": 1}, {"net_replicas": 2}),
    "1 group, 4 trainers": ({"groups": 1, "trainers": 4, "group_ps": 1}, {"net_replicas": 2}),
    "1 group, 2 trainers": ({"groups": 1, "trainers": 2, "group_ps": 1}, {"net_replicas": 2}),
    "the default plan of 2 groups": (TWO, {}),
    "EASGD": (TWO, {"dense_sync": "easgd"}),
    "EASGD, alpha 0.2": (TWO, {"dense_sync": "easgd", "sync_alpha": 0.2}),
    "EASGD, period 4": (TWO, {"dense_sync": "easgd", "sync_period": 4}),
    "EASGD, period 1": (TWO, {"dense_sync": "easgd", "sync_period": 1}),
    "EASGD, no prefetch": (TWO, {"dense_sync": "easgd", "prefetch": False}),
    "EASGD, 1 net replica": (TWO, {"dense_sync": "easgd", "net_replicas": 1}),
    "EASGD, dense rate x 1.5": (TWO, {"dense_sync": "easgd", "dense_lr": 0.0075}),
    "model averaging": (TWO, {"dense_sync": "model_averaging"}),
    "BMUF without Nesterov": (TWO, {"dense_sync": "bmuf", "sync_nesterov": False}),
    "BMUF, period 2": (TWO, {"dense_sync": "bmuf", "sync_period": 2}),
    "BMUF, int8": (TWO, {"dense_sync": "bmuf", "sync_dtype": "int8"}),
    "BMUF, top 5 %": (TWO, {"dense_sync": "bmuf", "sync_top_k": 0.05}),
}


def parts(data: Path, rows: int, folder: Path) -> tuple[str, str]:
    """Train and test URIs: rows shuffled with seed 0, the first to train, the last fifth to test."""
    lines = gzip.decompress(data.read_bytes()).splitlines(keepends=True)
    random.Random(0).shuffle(lines)
    (folder / "train.libfm").write_bytes(b"".join(lines[:rows]))
    (folder / "test.libfm").write_bytes(b"".join(lines[len(lines) * 8 // 10 :]))
    return f"libfm:{folder}/train.libfm?rows=5382", f"libfm:{folder}/test.libfm?rows=5382"


def auc_of(counts: dict[str, Any], flags: dict[str, Any], train: str, test: str, replica: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        cluster = this_machine(sparse_ps=1, **counts)
        htrain.compile(MODEL, data=train, cluster=cluster, options=with_flags(**{"net_replicas": 2, **flags})).save(
            Path(folder) / "plan"
        )
        htrain.run(Path(folder) / "plan", data=train, out=Path(folder) / "run", console=Console(quiet=True))
        return htrain.evaluate(Path(folder) / "run", data=test, replica=replica).auc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frappe", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=23_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="settings with one of these words")
    parser.add_argument("--replica", default="center")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("setting", "AUC", "over PyTorch", "least to most")
    with tempfile.TemporaryDirectory() as folder:
        train, test = parts(arguments.frappe, arguments.rows, Path(folder))
        plain = train_and_evaluate(MODEL, train, test, Options()).auc
        table.add_row("PyTorch", f"{plain:.4f}", "", "")
        for name, (counts, flags) in SETTINGS.items():
            if arguments.only and not any(word in name for word in arguments.only):
                continue
            aucs = [auc_of(counts, flags, train, test, arguments.replica) for _ in range(arguments.repeats)]
            middle = statistics.median(aucs)
            table.add_row(
                name, f"{middle:.4f}", f"{middle - plain:+.4f}", f"{min(aucs) - plain:+.4f} to {max(aucs) - plain:+.4f}"
            )
            Console(stderr=True).print(f"{name}: {middle - plain:+.4f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

"""CPU seconds per thousand examples, all roles together, of one group with a trainer, a group PS and a sparse PS against plain PyTorch.

    python tools/bench/ps_cpu.py [--batch 512 --batch 2048] [--runs 7]

The model has 26 tables of the Kaggle set's sizes, at most 10^5 rows x 16, bottom 512-256-64-16, top 512-256-1; fp32, SGD, one thread in every
role, roles as processes of this host. Both sides read the same packed file with htrain's reader. What is counted lies between two reports
of a run, behind the first steps. Runs alternate; a line gives medians, with the CPU of each role.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from history import append, summary
from kaggle_log import write_log
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from baseline import batches, build_model, optimizers, train_step

import htrain
from htrain.data import open_data
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py")
WARM = 20_000  # examples before counting begins


def train_htrain(data: str, folder: Path) -> dict[str, float]:
    """CPU seconds per thousand examples, by role, and `wall` seconds."""
    htrain.run(folder / "plan", data=data, out=folder / "run", console=Console(quiet=True))
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    totals = [(r["time"], r["examples"]) for r in records if r["role"] == "run"]
    end = max(examples for _, examples in totals)
    began, first = next(total for total in totals if total[1] >= WARM)
    ended, last = next(total for total in totals if total[1] == end)
    thousands = (last - first) / 1000
    spent = {r["role"]: r["cpu_seconds"] / thousands for r in records if r["role"] != "run" and r["time"] == ended}
    for record in records:
        if record["role"] in spent and record["time"] == began:
            spent[record["role"]] -= record["cpu_seconds"] / thousands
    return spent | {"wall": (ended - began) / thousands}


def train_eager(data: str, batch_size: int, line: Connection) -> None:
    """The same by plain PyTorch."""
    torch.set_num_threads(1)
    options = with_flags(batch_size=batch_size, dense_optimizer="sgd", sparse_optimizer="sgd")
    model = build_model(MODEL, open_data(data).schema, 0)
    steps = optimizers(model, options)
    examples = counted = 0
    cpu = wall = 0.0
    for batch in batches(data, batch_size):
        if examples >= WARM and not counted:
            counted, cpu, wall = examples, time.process_time(), time.perf_counter()
        train_step(model, steps, batch)
        examples += len(batch["label"])
    thousands = (examples - counted) / 1000
    line.send({"eager": (time.process_time() - cpu) / thousands, "wall": (time.perf_counter() - wall) / thousands})


def run_eager(data: str, batch_size: int) -> dict[str, float]:
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=train_eager, args=(data, batch_size, theirs))
    process.start()
    spent: dict[str, float] = mine.recv()
    process.join()
    return spent


def compare(data: str, batch_size: int, runs: int, folder: Path) -> dict[str, Any]:
    """Alternating runs of both sides; prints a line, and returns its figures: CPU seconds per thousand examples, and EPS."""
    cluster = this_machine(groups=1, trainers=1, group_ps=1, sparse_ps=1)
    options = with_flags(batch_size=batch_size, dense_optimizer="sgd", sparse_optimizer="sgd")
    htrain.compile(MODEL, data=data, cluster=cluster, options=options).save(folder / "plan")
    pairs = []
    for number in range(runs):
        run = folder / f"run{number}"
        run.mkdir()
        (run / "plan").symlink_to(folder / "plan")
        pairs.append((train_htrain(data, run), run_eager(data, batch_size)))
    figures = {
        "htrain": summary([_cpu(ours) for ours, _ in pairs]),
        "eager": summary([_cpu(eager) for _, eager in pairs]),
        "ratio": summary([_cpu(ours) / _cpu(eager) for ours, eager in pairs]),
        "htrain EPS": summary([1000 / ours["wall"] for ours, _ in pairs]),
        "eager EPS": summary([1000 / eager["wall"] for _, eager in pairs]),
    }
    htrain_cpu, eager_cpu, ratio, eps, eager_eps = figures.values()
    roles = {role: statistics.median(ours[role] for ours, _ in pairs) for role in pairs[0][0] if role != "wall"}
    print(
        f"batch {batch_size:5d}  CPU seconds per thousand examples: htrain {htrain_cpu['median']:.4f} "
        f"({', '.join(f'{role} {cpu:.4f}' for role, cpu in roles.items())}), eager {eager_cpu['median']:.4f}  "
        f"ratio {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}, n={runs})  "
        f"EPS {eps['median']:,.0f} and {eager_eps['median']:,.0f}",
        flush=True,
    )
    return figures | {role: {"median": cpu} for role, cpu in roles.items()}


def _cpu(spent: dict[str, float]) -> float:
    return sum(seconds for role, seconds in spent.items() if role != "wall")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--examples", type=int, default=200_000)
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as lines of JSON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        data = write_log(Path(made), asked.examples)
        for batch_size in asked.batch or [512, 2048]:
            folder = Path(made) / str(batch_size)
            folder.mkdir()
            figures = compare(data, batch_size, asked.runs, folder)
            if asked.history:
                append(asked.history, "ps_cpu", {**vars(asked), "batch": batch_size}, figures)


if __name__ == "__main__":
    main()

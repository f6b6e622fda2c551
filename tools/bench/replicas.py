"""Net replicas on one host: examples per second of one trainer with N of them over one with one.

    python tools/bench/replicas.py [--replicas 2] [--batch 2048 --batch 128] [--runs 7]

The model of tools/bench/single_process.py, no PS; a replica is a thread, in a process with the environment of a role. Prints the ratio of
alternating runs, and CPU seconds of the replicas per second: N where nothing holds them up, the GIL included. `processes` is what N trainers of one
replica each make that know nothing of each other: what the machine's cores and caches have room for.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from history import append, summary
from single_process import Htrain, Running, Side, sides_of

from htrain.executor.launch.environment import role_environment
from htrain.spec.options import Options
from htrain.spec.tree import with_flags


def compare(options: Options, replicas: int, runs: int) -> dict[str, Any]:
    """Alternating runs of one replica and of many; prints a line, and returns its figures."""
    steps = min(2000, max(24, 200_000 // options.batch_size))
    many = replace(options, net_replicas=replicas)
    with sides_of([Side(Htrain, many), *[Side(Htrain, options)] * replicas], steps, threads=1) as (other, one, *rest):
        rounds = [(one.train(), other.train(), together((one, *rest))) for _ in range(runs)]
    pairs = [(one, other) for one, other, _ in rounds]
    examples = steps * options.batch_size
    figures = {
        "1 replica EPS": summary([examples / one[0] for one, _ in pairs]),
        f"{replicas} replicas EPS": summary([examples / other[0] for _, other in pairs]),
        "ratio": summary([one[0] / other[0] for one, other in pairs]),
        "CPUs busy": summary([other[1] / other[0] for _, other in pairs]),
        "processes": summary([replicas * one[0] / seconds for one, _, seconds in rounds]),
    }
    one, other, ratio, busy, apart = figures.values()
    print(
        f"batch {options.batch_size:5d}  1 replica {one['median']:,.0f} EPS  {replicas} replicas {other['median']:,.0f} EPS  ratio {ratio['median']:.2f} "
        f"({ratio['min']:.2f} to {ratio['max']:.2f}, n={runs})  {busy['median']:.2f} CPUs busy; "
        f"{replicas} processes {apart['median']:.2f} ({apart['min']:.2f} to {apart['max']:.2f})",
        flush=True,
    )
    return figures


def together(sides: Sequence[Running]) -> float:
    """Seconds until the last has ended."""
    for side in sides:
        side.begin()
    return max(side.end()[0] for side in sides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as lines of JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.update(role_environment(1))  # for the processes of the sides
    for batch_size in asked.batch or [2048, 128]:
        options = with_flags(batch_size=batch_size, net_replicas=1, dense_optimizer="sgd", sparse_optimizer="sgd")
        figures = compare(options, asked.replicas, asked.runs)
        if asked.history:
            append(asked.history, "replicas", {**vars(asked), "batch": batch_size}, figures)


if __name__ == "__main__":
    main()

"""Lookups and updates through `htrain.client.HetEmbedding`, beside nn.Embedding(sparse=True): keys per second and per CPU second of the worker.

    python tools/bench/client.py [--rows 1000000] [--dim 32] [--zipf 1.05] [--capacity 100%] [--batch 2048] [--lookups 26] [--batches 60] [--rounds 5]

A step is forward(ids), backward with a gradient that is given, and the step of the rows by SGD. Servers are a process beside. Keys are counted with repeats;
what is announced is asked for while the step before computes. The two take turns, and figures are medians of rounds, with their range. torch runs one thread.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import htrain
from htrain.client import HetEmbedding, Tables, connect

sys.path.insert(0, str(Path(__file__).parents[1]))
from served import serving

STALENESS, RATE = 100, 0.01
FIRST = """
import sys, time, torch
began = time.perf_counter()
import htrain.client
with htrain.client.connect(sys.argv[1], worker="first") as tables:
    htrain.client.HetEmbedding(tables, *tables.served.tables)(torch.arange(1000))
    rows = time.perf_counter() - began
    tables.step()
    tables.warm()
    print(f"the first rows after {rows:.2f} s, a cache after {time.perf_counter() - began:.2f} s")
"""
Step = Callable[[list[torch.Tensor]], None]


class Model(nn.Module):
    """Something to be compiled that has a table."""

    def __init__(self, rows: int, dim: int, lookups: int) -> None:
        super().__init__()
        self.rows, self.linear = nn.Embedding(rows, dim), nn.Linear(lookups * dim, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.linear(self.rows(ids).flatten(1)).squeeze(1)


def make_plan(folder: Path, arguments: argparse.Namespace) -> Path:
    """A plan with a table behind a cache."""
    plan = htrain.compile(
        Model(arguments.rows, arguments.dim, arguments.lookups),
        example_inputs={"ids": torch.zeros(4, arguments.lookups, dtype=torch.int64)},
        options=htrain.Options(
            sparse_optimizer=htrain.Sgd(lr=RATE),
            cache=htrain.HetCache(capacity=arguments.capacity, staleness=STALENESS),
        ),
        cluster=htrain.Cluster(groups=1, trainers=1, group_ps=0, sparse_ps=1),
        self_check=False,
    )
    plan.save(folder / "plan")
    return folder / "plan"


def start(place: Path, folder: Path) -> str:
    """How long a new process takes until it has the rows of its first batch, and until its cache is there: in seconds, behind the import of torch.

    Numba has compiled nothing that it knows of.
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "numba")}
    run = subprocess.run(
        [sys.executable, "-c", FIRST, str(place)], env=environment, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def draw(random: np.random.Generator, arguments: argparse.Namespace) -> torch.Tensor:
    """A batch of ids: ranks by a Zipf law over the rows, spread over the table."""
    cumulated = np.cumsum(np.arange(1, arguments.rows + 1, dtype=np.float64) ** -arguments.zipf)
    ranks = np.searchsorted(cumulated, random.random((arguments.batch, arguments.lookups)) * cumulated[-1])
    return torch.from_numpy((ranks.astype(np.int64) * 618_033) % arguments.rows)


def behind(tables: Tables, gradient: torch.Tensor, *, announce: bool) -> Step:
    """Steps of a worker of the servers."""
    (name,) = tables.served.tables
    embedding = HetEmbedding(tables, name)

    def steps(batches: list[torch.Tensor]) -> None:
        for number, ids in enumerate(batches):
            soon = batches[:2] if number == 0 else batches[number + 1 : number + 2]
            for later in soon if announce else ():
                tables.announce({name: later})
            embedding(ids).backward(gradient)
            tables.step()

    return steps


def plain(arguments: argparse.Namespace, gradient: torch.Tensor) -> Step:
    """Steps of PyTorch alone."""
    embedding = nn.Embedding(arguments.rows, arguments.dim, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), RATE)

    def steps(batches: list[torch.Tensor]) -> None:
        for ids in batches:
            optimizer.zero_grad()
            embedding(ids).backward(gradient)
            optimizer.step()

    return steps


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in (
        ("rows", 1_000_000),
        ("dim", 32),
        ("batch", 2048),
        ("lookups", 26),
        ("batches", 60),
        ("rounds", 5),
    ):
        parser.add_argument(f"--{flag}", type=int, default=default)
    parser.add_argument("--zipf", type=float, default=1.05)
    parser.add_argument("--capacity", default="100%")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    batches = [draw(random, arguments) for _ in range(arguments.batches)]
    gradient = torch.randn(arguments.batch, arguments.lookups, arguments.dim) * 1e-3
    with (
        tempfile.TemporaryDirectory() as name,
        serving(make_plan(Path(name), arguments)) as folder,
        connect(folder) as tables,
    ):
        print(f"a process that no loop was compiled for: {start(folder, Path(name))}")
        tables.warm()
        kinds = {
            "HetEmbedding": behind(tables, gradient, announce=False),
            "  announced": behind(tables, gradient, announce=True),
            "nn.Embedding": plain(arguments, gradient),
        }
        for steps in kinds.values():
            steps(batches)
        before = tables.counts
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
        for _ in range(arguments.rounds):
            for name, steps in kinds.items():
                began, used = time.perf_counter(), time.process_time()
                steps(batches)
                found[name].append((time.perf_counter() - began, time.process_time() - used))
        after = tables.counts
    keys = arguments.batches * arguments.batch * arguments.lookups
    hits, misses = (after[what] - before[what] for what in ("hits", "misses"))
    distinct = np.mean([len(np.unique(ids)) for ids in batches]) / batches[0].numel()
    print(
        f"{distinct:.0%} of a batch's {batches[0].numel():,} keys are distinct, {hits / (hits + misses):.1%} of these hit; rows of {arguments.dim}"
    )
    for name, timed in found.items():
        wall, cpu = (sorted(keys / each[part] / 1e6 for each in timed) for part in (0, 1))
        print(f"{name:<13} {_median(cpu)} M keys per CPU second, {_median(wall)} M a second")


def _median(rates: list[float]) -> str:
    return f"{statistics.median(rates):5.2f} ({rates[0]:.2f} to {rates[-1]:.2f})"


if __name__ == "__main__":
    main()

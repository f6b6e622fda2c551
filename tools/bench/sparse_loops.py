"""The hot loops of embeddings, checks included, against numpy and torch.

    python tools/bench/sparse_loops.py [--batch 2048] [--lookups 26] [--rows 200000] [--dim 16] [--runs 99]

One line per loop: median and spread of its runs, the median of the floor (the same result by numpy or torch, one thread) and how much
faster the loop is. Runs of both alternate.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional as F

from htrain.ops import accelerated, sparse_loops, step_loops

LR, EPS = 0.01, 1e-10
Job = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """A loop, and what else gives the same."""

    name: str
    loop: Job
    floor_name: str
    floor: Job


@dataclass(frozen=True)
class Work:
    """A batch of n = batch x lookups Zipf ids on a table[R,D]: its distinct ids, places, bags, and gradients of both."""

    num_bags: int
    table: np.ndarray
    ids: np.ndarray
    grads: np.ndarray
    unique: np.ndarray = field(init=False)
    places: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        unique, places = sparse_loops.dedupe(self.ids, -1)
        object.__setattr__(self, "unique", unique)
        object.__setattr__(self, "places", places)


def draw(batch: int, lookups: int, rows: int, dim: int) -> Work:
    random = np.random.default_rng(0)
    popular = random.zipf(1.2, batch * lookups) % rows
    ids = random.permutation(rows)[popular].astype(np.int64)
    table, grads = (random.standard_normal((n, dim), np.float32) for n in (rows, batch * lookups))
    return Work(batch, table, ids, grads)


def lookups(work: Work) -> Iterator[Line]:
    """The loops that a trainer runs, and a sparse PS's lookup."""
    table, ids, unique, places = work.table, work.ids, work.unique, work.places
    rows, dy = sparse_loops.gather_rows(table, unique, 0), work.grads
    num_rows, num_bags = len(unique), work.num_bags
    offsets = np.arange(0, len(ids), len(ids) // num_bags)
    none = np.empty(0, np.float32)
    weights = np.ones(len(ids), np.float32)
    pooled_dy = dy[:num_bags]
    t_table, t_unique, t_places, t_rows, t_dy = map(torch.from_numpy, (table, unique, places, rows, dy))
    t_offsets, t_pooled_dy = torch.from_numpy(offsets), torch.from_numpy(pooled_dy)
    bag_of = torch.arange(num_bags).repeat_interleave(len(ids) // num_bags)

    def added(source: torch.Tensor) -> torch.Tensor:
        return torch.zeros(num_rows, dy.shape[1]).index_add_(0, t_places, source)

    yield Line("dedupe", lambda: sparse_loops.dedupe(ids, -1), "np.unique", lambda: np.unique(ids, return_inverse=True))
    yield Line(
        "gather_rows", lambda: sparse_loops.gather_rows(table, unique, 0),
        "torch.index_select", lambda: t_table.index_select(0, t_unique),
    )  # fmt: skip
    yield Line(
        "take_rows", lambda: sparse_loops.take_rows(rows, places),
        "torch.index_select", lambda: t_rows.index_select(0, t_places),
    )  # fmt: skip
    yield Line(
        "take_rows_gradient", lambda: sparse_loops.take_rows_gradient(dy, places, num_rows),
        "torch.index_add_", lambda: added(t_dy),
    )  # fmt: skip
    yield Line(
        "pool_rows", lambda: sparse_loops.pool_rows(rows, places, offsets, none, False),
        "F.embedding_bag", lambda: F.embedding_bag(t_places, t_rows, t_offsets, mode="sum"),
    )  # fmt: skip
    yield Line(
        "pool_rows_gradient", lambda: sparse_loops.pool_rows_gradient(pooled_dy, places, offsets, none, False, num_rows),
        "torch.index_add_", lambda: added(t_pooled_dy[bag_of]),
    )  # fmt: skip
    yield Line(
        "pool_rows, weighted", lambda: sparse_loops.pool_rows(rows, places, offsets, weights, False), "F.embedding_bag",
        lambda: F.embedding_bag(t_places, t_rows, t_offsets, mode="sum", per_sample_weights=torch.from_numpy(weights)),
    )  # fmt: skip
    yield Line(
        "pool_weights_gradient", lambda: sparse_loops.pool_weights_gradient(rows, pooled_dy, places, offsets),
        "torch, gather and sum", lambda: (t_rows[t_places] * t_pooled_dy[bag_of]).sum(1),
    )  # fmt: skip


def steps(work: Work) -> Iterator[Line]:
    """The optimizer steps of a sparse PS, on distinct ids."""
    unique, grads = work.unique, work.grads[: len(work.unique)]
    table, state, row_state = work.table.copy(), np.ones_like(work.table), np.ones(len(work.table), np.float32)
    t_unique, t_grads, t_table, t_state, t_row_state = map(torch.from_numpy, (unique, grads, table, state, row_state))

    def adagrad() -> None:
        total = t_state.index_select(0, t_unique).addcmul_(t_grads, t_grads)
        t_state.index_copy_(0, t_unique, total)
        t_table.index_add_(0, t_unique, t_grads / total.sqrt_().add_(EPS), alpha=-LR)

    def rowwise_adagrad() -> None:
        total = t_row_state.index_select(0, t_unique).add_(t_grads.square().mean(1))
        t_row_state.index_copy_(0, t_unique, total)
        t_table.index_add_(0, t_unique, t_grads / total.sqrt_().add_(EPS)[:, None], alpha=-LR)

    z_and_n = np.zeros((len(table), 2 * table.shape[1]), np.float32)
    t_z_and_n = torch.from_numpy(z_and_n.copy())

    def ftrl() -> None:
        accelerated.sparse_ftrl(t_table, t_z_and_n, t_unique, t_grads, lr=LR, beta=1.0, l1=0.1, l2=0.0, first_row=0)

    yield Line(
        "ftrl_rows",
        lambda: step_loops.ftrl_rows(table, z_and_n, ids=unique, grads=grads, first_row=0, lr=LR, beta=1.0, l1=0.1, l2=0.0),
        "torch, by rows", ftrl,
    )  # fmt: skip
    yield Line(
        "sgd_rows", lambda: step_loops.sgd_rows(table, unique, grads, 0, LR),
        "torch.index_add_", lambda: t_table.index_add_(0, t_unique, t_grads, alpha=-LR),
    )  # fmt: skip
    yield Line(
        "adagrad_rows", lambda: step_loops.adagrad_rows(table, state, unique, grads, 0, LR, EPS),
        "torch, by rows", adagrad,
    )  # fmt: skip
    yield Line(
        "rowwise_adagrad_rows", lambda: step_loops.rowwise_adagrad_rows(table, row_state, unique, grads, 0, LR, EPS),
        "torch, by rows", rowwise_adagrad,
    )  # fmt: skip


def microseconds(job: Job) -> float:
    begin = time.perf_counter()
    job()
    return (time.perf_counter() - begin) * 1e6


def report(line: Line, runs: int) -> str:
    jobs = (line.loop, line.floor)
    for job in jobs:
        job()
    times = [[microseconds(job) for job in jobs] for _ in range(runs)]
    loop, floor = (statistics.median(column) for column in zip(*times, strict=True))
    spread = statistics.median(abs(t[0] - loop) for t in times) / loop
    return f"{line.name:22} {loop:8.1f} us +-{spread:3.0%} (n={runs})  {line.floor_name:21} {floor:8.1f} us  {floor / loop:5.1f} x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--lookups", type=int, default=26, help="ids per example")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--runs", type=int, default=99)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    work = draw(arguments.batch, arguments.lookups, arguments.rows, arguments.dim)
    print(
        f"{work.ids.size} ids, {work.unique.size} distinct, table[{arguments.rows},{arguments.dim}], one thread, {os.cpu_count()} cores"
    )
    for line in (*lookups(work), *steps(work)):
        print(report(line, arguments.runs))


if __name__ == "__main__":
    main()

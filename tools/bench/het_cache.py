"""The HET client alone: keys looked up and updated per second on a warm cache, by policy, with CPU seconds.

    python tools/bench/het_cache.py [--rows 1000000] [--dim 32] [--zipf 1.05] [--capacity 0.1] [--batch 2048] [--lookups 26] [--batches 60]

A step finds the batch's distinct ids, asks, takes the answers of a server that hands out prepared rows, reads and writes. What the
server and the network would do is not timed. Keys are counted twice: as looked up (with repeats, as TorchRec and others count), and distinct.
One core: NUMBA and torch run one thread.
"""

import argparse
import os
import statistics
import time

import numpy as np

from htrain.ops.sparse_loops import dedupe
from htrain.sync.het.client import HetCache
from htrain.sync.het.messages import Answer
from htrain.sync.het.policy import POLICIES
from htrain.sync.request import Request
from htrain.sync.row_steps import SparseStep
from htrain.sync.territory import Territory

WARM_BATCHES = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--zipf", type=float, default=1.05)
    parser.add_argument("--capacity", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--lookups", type=int, default=26)
    parser.add_argument("--batches", type=int, default=60)
    arguments = parser.parse_args()
    for policy in POLICIES:
        run(policy, arguments)


def run(policy: str, arguments: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    draws = [draw(random, arguments) for _ in range(WARM_BATCHES + arguments.batches)]
    capacity = int(arguments.rows * arguments.capacity)
    territory = Territory([0], [0], [0], arguments.rows)
    cache = HetCache(
        territory, arguments.dim, capacity=capacity, staleness=100, policy=policy, step=SparseStep("sgd", 0.01)
    )
    gradients = random.standard_normal((arguments.batch * arguments.lookups, arguments.dim), np.float32)
    rates, keys, distinct, cpu = [], 0, 0, 0.0
    for number, ids in enumerate(draws):
        if number == WARM_BATCHES:
            hits, misses = cache.counts.hits, cache.counts.misses
        began, began_cpu = time.perf_counter(), time.process_time()
        unique, _ = dedupe(ids, -1)
        slots, requests = cache.ask(unique)
        seconds, used = time.perf_counter() - began, time.process_time() - began_cpu
        answers = [answer(request, arguments.dim) for request in requests]
        began, began_cpu = time.perf_counter(), time.process_time()
        cache.read(slots, answers)
        cache.write(slots, gradients[: unique.size])
        cache.trim()
        seconds += time.perf_counter() - began
        used += time.process_time() - began_cpu
        if number >= WARM_BATCHES:
            rates.append(ids.size / seconds)
            keys, distinct, cpu = keys + ids.size, distinct + unique.size, cpu + used
    hit_rate = (cache.counts.hits - hits) / (cache.counts.hits - hits + cache.counts.misses - misses)
    spread = (max(rates) - min(rates)) / 2 / statistics.median(rates)
    print(
        f"{policy:<10} {statistics.median(rates) / 1e6:6.2f} M keys/s +-{spread:.0%} (n={len(rates)})  "
        f"{keys / cpu / 1e6:6.2f} M keys and {distinct / cpu / 1e6:5.2f} M distinct ones per CPU second  "
        f"{distinct / keys:.0%} distinct, {hit_rate:.1%} of these hit  {cpu:.2f} CPU s"
    )


def draw(random: np.random.Generator, arguments: argparse.Namespace) -> np.ndarray:
    """A batch of ids: ranks by a Zipf law over the rows, spread over the table."""
    weights = np.arange(1, arguments.rows + 1, dtype=np.float64) ** -arguments.zipf
    cumulated = np.cumsum(weights)
    ranks = np.searchsorted(cumulated, random.random(arguments.batch * arguments.lookups) * cumulated[-1])
    return (ranks.astype(np.int64) * 618_033) % arguments.rows


def answer(request: Request, dim: int) -> Answer:
    fetched = int(request.counts[1])
    return Answer(np.zeros((fetched, dim), np.float32), np.zeros(fetched, np.int32), np.empty(0, np.int32))


if __name__ == "__main__":
    os.environ["NUMBA_NUM_THREADS"] = "1"
    main()

"""Net replicas on one host: examples per second of one trainer with N of them over one with one.

    python tools/bench/replicas.py [--replicas 2] [--batch 2048 --batch 128] [--runs 7]

The model of tools/bench/single_process.py, no PS; a replica is a thread. Prints the ratio of alternating runs, and CPU seconds of the
replicas per second: N where nothing holds them up, the GIL included.
"""

import argparse
import statistics
from dataclasses import replace

import torch
from single_process import Htrain, Side, sides_of

from htrain.options import Options


def compare(options: Options, replicas: int, runs: int) -> None:
    steps = max(24, 50_000 // options.batch_size)
    many = replace(options, net_replicas=replicas)
    with sides_of([Side(Htrain, options), Side(Htrain, many)], steps, threads=1) as sides:
        pairs = [[side.train() for side in sides] for _ in range(runs)]
    ratios = [one[0] / other[0] for one, other in pairs]
    shares = [other[1] / other[0] for _, other in pairs]
    one, other = (statistics.median(steps * options.batch_size / pair[k][0] for pair in pairs) for k in (0, 1))
    print(
        f"batch {options.batch_size:5d}  1 replica {one:,.0f} EPS  {replicas} replicas {other:,.0f} EPS  ratio {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}, n={runs})  {statistics.median(shares):.2f} CPUs busy",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--runs", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for batch_size in asked.batch or [2048, 128]:
        options = Options(batch_size=batch_size, net_replicas=1, dense_optimizer="sgd", sparse_optimizer="sgd")
        compare(options, asked.replicas, asked.runs)


if __name__ == "__main__":
    main()

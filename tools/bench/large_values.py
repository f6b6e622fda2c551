"""What it costs that a step's largest values are made of fresh pages, and what keeping them saves (htrain.executor.host.memory).

    python tools/bench/large_values.py [--mib 20 --mib 42 --mib 128] [--runs 9]

An op that reads a value and makes another of so many MiB, again and again, as the ops of steps do: CPU milliseconds, medians, with freed memory kept up to
32 MiB, and with all of it kept; each in a process of its own. glibc gives back what exceeds 32 MiB as soon as it is free, whatever it is told of
thresholds.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch

from htrain.executor.host.memory import keep_large, keep_pages


def measured(kept: bool, sizes: Sequence[int], runs: int, found: Connection) -> None:
    """Medians of CPU milliseconds for values of these MiB."""
    torch.set_num_threads(1)
    keep_pages()
    if kept:
        keep_large(max(sizes) << 20)
    found.send([statistics.median(_milliseconds(mib, runs)) for mib in sizes])


def _milliseconds(mib: int, runs: int) -> list[float]:
    value, spent = torch.ones(mib << 18), []
    for _ in range(3 + runs):
        began = time.process_time()
        made = value * 2
        spent.append((time.process_time() - began) * 1e3)
        del made
    return spent[3:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, action="append", default=[])
    parser.add_argument("--runs", type=int, default=9)
    asked = parser.parse_args()
    sizes = asked.mib or [20, 42, 128]
    context = multiprocessing.get_context("spawn")
    rows = []
    for kept in (False, True):
        ours, theirs = context.Pipe()
        process = context.Process(target=measured, args=(kept, sizes, asked.runs, theirs))
        process.start()
        rows.append(ours.recv())
        process.join()
    for size, given_back, kept_too in zip(sizes, *rows, strict=True):
        print(f"{size:4d} MiB: {given_back:7.2f} ms, kept {kept_too:7.2f} ms")


if __name__ == "__main__":
    main()

"""Steps of SGD on rows of large tables, their memory in large pages (htrain.executor.host.memory) and in the system's small ones.

    python tools/bench/pages.py [--tables 26] [--rows 100000] [--width 64]

Prints millions of rows per second of one thread, and the ratio of alternating runs: median, least and largest.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from htrain.executor.host.memory import empty
from htrain.ops.step_loops import sgd_rows

BATCH = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tables", 26), ("rows", 100_000), ("width", 64), ("runs", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    shape, draw = (asked.rows, asked.width), np.random.default_rng(1)
    makers = (empty, torch.empty)
    sides = [[make(shape, dtype=torch.float32).zero_().numpy() for _ in range(asked.tables)] for make in makers]
    gradients = np.zeros((BATCH, asked.width), np.float32)
    rates: list[list[float]] = []
    _seconds(sides[0], [np.arange(1)] * asked.tables, gradients)  # compiles the loop
    for _ in range(asked.runs):
        ids = [draw.permutation(asked.rows)[:BATCH] for _ in range(asked.tables)]
        rates.append([asked.tables * BATCH * 1e-6 / _seconds(tables, ids, gradients) for tables in sides])
    large, small = (statistics.median(rate) for rate in zip(*rates, strict=True))
    ratios = [a / b for a, b in rates]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}, n={asked.runs}"
    print(
        f"large pages {large:.1f} M rows/s  small {small:.1f} M rows/s  ratio {statistics.median(ratios):.2f} ({spread})"
    )


def _seconds(tables: list[np.ndarray], ids: list[np.ndarray], gradients: np.ndarray) -> float:
    began = time.perf_counter()
    for table, rows in zip(tables, ids, strict=True):
        sgd_rows(table, rows, gradients[: rows.size], 0, 1e-9)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

"""Hit rate of the look-ahead cache over window and sets, on ids of the Terabyte set's shape (cDLRM 7.1, Figure 3c).

    python tools/lookahead_hits.py [--windows 100,500,1000,3000] [--sets 1000,5000,25000,50000,150000] [--batches 3000]

26 tables of the Terabyte set's sizes (at most `--most-rows`), ids by a power law with exponent `--skew`, batches of `--batch`, 16 ways. The
last line of a window, `recommended`, is the number of sets that `htrain compile` takes by itself. `largest` is the table with most victims.
"""

import argparse
from collections.abc import Iterator

import numpy as np

from htrain.net.placement import CacheGeometry
from htrain.ops.sparse_loops import dedupe
from htrain.spec.cache import LookAheadCache
from htrain.strategies.lookahead import geometry_of
from htrain.sync.lookahead.occupancy import Occupancy

TERABYTE_ROWS = (
    45_833_188, 36_746, 17_245, 7_413, 20_243, 3, 7_114, 1_441, 62, 29_275_261, 1_572_176, 345_138, 10, 2_209, 11_267, 128, 4, 974, 14,
    48_937_457, 11_316_796, 40_094_537, 452_104, 12_606, 104, 35,
)  # fmt: skip


def drawn(rows: int, skew: float, count: int, random: np.random.Generator) -> np.ndarray:
    """ids[count]: the id of popularity k is drawn about k^-skew times as often as the first; popular ids are spread over the table."""
    u = random.random(count)
    ranks = ((rows ** (1 - skew) - 1) * u + 1) ** (1 / (1 - skew))
    step = int(rows * 0.6180339887) | 1
    while np.gcd(step, rows) > 1:
        step += 2
    return np.minimum(ranks.astype(np.int64), rows) * step % rows


class TableRun:
    """One table's look-ups through its cache: hits and distinct ids of all batches."""

    def __init__(self, geometry: CacheGeometry) -> None:
        self.occupancy = Occupancy(geometry, 0)
        self.hits = self.asked = 0

    def window(self, batches: list[np.ndarray]) -> None:
        self.occupancy.place(dedupe(np.concatenate(batches), -1)[0])
        for ids in batches:
            self.hits += int((self.occupancy.find(ids) >= 0).sum())
            self.asked += ids.size


def windows_of(rows: int, skew: float, batch: int, window: int, batches: int, seed: int) -> Iterator[list[np.ndarray]]:
    random = np.random.default_rng(seed)
    for first in range(0, batches, window):
        ids = drawn(rows, skew, batch * min(window, batches - first), random)
        yield [dedupe(part, -1)[0] for part in ids.reshape(-1, batch)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", default="100,500,1000,3000")
    parser.add_argument("--sets", default="1000,5000,25000,50000,150000")
    parser.add_argument("--ways", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--batches", type=int, default=3000)
    parser.add_argument("--skew", type=float, default=1.1)
    parser.add_argument("--most-rows", type=int, default=10_000_000)
    asked = parser.parse_args()
    tables = [min(rows, asked.most_rows) for rows in TERABYTE_ROWS]
    print(f"{'window':>7}{'sets':>13}{'slots, M':>10}{'hit rate':>11}{'largest':>10}")
    for window in map(int, asked.windows.split(",")):
        for sets in [*map(int, asked.sets.split(",")), 0]:
            cache = LookAheadCache(window=window, sets=sets or "auto", ways=asked.ways)
            runs = [TableRun(geometry_of(rows, asked.batch * window, cache)) for rows in tables]
            for number, (rows, run) in enumerate(zip(tables, runs, strict=True)):
                for batches in windows_of(rows, asked.skew, asked.batch, window, asked.batches, number):
                    run.window(batches)
            hits, total = sum(run.hits for run in runs), sum(run.asked for run in runs)
            slots = sum(run.occupancy.geometry.num_slots for run in runs) / 1e6
            worst = min(run.hits / run.asked for run in runs)
            print(
                f"{window:>7}{sets or 'recommended':>13}{slots:>10.1f}{hits / total:>11.3%}{worst:>10.3%}", flush=True
            )


if __name__ == "__main__":
    main()

"""A map of a billion rows: what it takes in memory, how long it takes to open, and how many ids a second one core translates (HET-GMP 5.2).

    python tools/bench/numbering.py [--rows 1000000000] [--seen 0.03] [--workers 8] [--tables 1]

Rows that are seen, and who owns them, are drawn. The file is written, and read from the page cache; opening checks that no bit of it has changed. Ids are
drawn of the seen rows, and of all. A line for each figure: the best of five runs, and all of them, by CPU seconds; the loops run on one core.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from htrain.data.identity import DataIdentity
from htrain.data.numbering import Numbering, open_numbering
from htrain.data.partition_file import VERSION, Facts, PartitionFile, sealed, write_partition

_IDS, _RUNS = 5_000_000, 5


def drawn(asked: argparse.Namespace) -> PartitionFile:
    """A partition without examples."""
    random = np.random.default_rng(0)
    sizes = tuple(asked.rows * (t + 1) // asked.tables - asked.rows * t // asked.tables for t in range(asked.tables))
    words = np.zeros(-(-asked.rows // 64), np.uint64)
    keys = np.unique(random.integers(0, asked.rows, int(asked.rows * -np.log1p(-asked.seen))))
    np.bitwise_or.at(words, keys >> 6, np.uint64(1) << (keys & 63).astype(np.uint64))
    k, nothing = asked.workers, np.zeros(0, np.int32)
    none = ((0.0,) * k,) * k
    facts = Facts(
        version=VERSION, uri="drawn", data=DataIdentity(1, "drawn", {}, ()), inputs=(), tables=tuple(f"t{t}" for t in range(asked.tables)),
        table_rows=sizes, num_examples=0, num_seen=len(keys), num_edges=0, num_workers=k, batch_size=128, seed=0, begun="drawn", rows=none,
        replicated=none, uses=none, scattered_rows=0.0, scattered_uses=0.0, most_used=(), digests={}, digest="",
    )  # fmt: skip
    owners = random.integers(0, k, len(keys)).astype(np.uint16 if k > 256 else np.uint8)
    updates = np.ones(len(keys), np.float16)
    return sealed(PartitionFile(facts, np.zeros(0, np.uint8), words, owners, updates, (nothing,) * k))


def timed(work: Callable[[], object]) -> list[float]:
    """CPU seconds of several runs, the best first."""
    seconds = []
    for _ in range(_RUNS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return sorted(seconds)


def tell(name: str, numbers: list[float], unit: str) -> None:
    """The best, and all."""
    print(f"{name:<34}{numbers[0]:>8.2f} {unit:<14}{'  '.join(f'{number:.2f}' for number in numbers)}", flush=True)


def held_bytes(numbering: Numbering) -> int:
    """What the arrays of a map take."""
    lines, owners = numbering._lines, numbering._owners
    return int(lines.nbytes + owners.records.nbytes + owners.far.nbytes)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--seen", type=float, default=0.03, help="share of the rows that are seen")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tables", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.partition"
        write_partition(path, drawn(asked))
        numbering = open_numbering(path)  # Numba compiles
        seen = numbering.facts.num_seen
        print(
            f"{asked.rows:,} rows of {asked.tables} tables, {seen:,} seen, {asked.workers} workers: {path.stat().st_size / 1e6:.0f} MB on the disk"
        )
        print(f"{'held in memory':<34}{held_bytes(numbering) / 1e6:>8.1f} MB")
        tell("opened, CPU", timed(lambda: open_numbering(path)), "s")
        began = time.perf_counter()
        open_numbering(path)
        print(f"{'opened, by the clock':<34}{time.perf_counter() - began:>8.2f} s")
        translate(numbering)


def translate(numbering: Numbering) -> None:
    """Ids of the largest table, to new numbers and back."""
    random, name = np.random.default_rng(1), numbering.tables.names[0]
    num_rows, bounds, owned = numbering.tables.rows_of(name), numbering.bounds(name), numbering.owned(name)
    known = np.concatenate([numbering.originals(name, b, b + n) for b, n in zip(bounds, owned, strict=False)])
    for what, ids in (("seen rows", random.choice(known, _IDS)), ("all rows", random.integers(0, num_rows, _IDS))):
        numbering.renumber(name, ids[:10])
        seconds = timed(lambda ids=ids: numbering.renumber(name, ids))
        tell(f"ids of {what}, a core", sorted((_IDS / s / 1e6 for s in seconds), reverse=True), "million/s")
    seconds = timed(lambda: numbering.originals(name, 0, min(num_rows, _IDS)))
    tell("new rows in order to ids, a core", sorted((_IDS / s / 1e6 for s in seconds), reverse=True), "million/s")


if __name__ == "__main__":
    main()

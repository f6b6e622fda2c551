"""Reading Criteo's format as a trainer does, from the bytes of a file to batches: MB/s and examples per second of one core.

    python tools/bench/reader.py [--megabytes 200] [--batch 2048] [--runs 7] [--history FILE]

Makes a TSV file with values missing about as often as in Criteo's own, compresses it (.gz), packs it (`htrain data pack`), and reads all three, out of the
page cache. MB are those of the TSV, whatever is read; `decompressing` is the reading of the .gz without its parsing, by what htrain has for it and by
Python's own. A line gives the median of the runs, their least and largest.
"""

import argparse
import gzip
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from history import append, summary

from htrain.data import START, Malformed, open_data
from htrain.data.gzipped import open_gzip
from htrain.data.pack import pack
from htrain.data.text import MIN_CHUNK_BYTES

# How often a value is missing, in per cent, and how often I2 is negative: as in the first rows of Criteo's file.
MISSING = [45, 0, 17, 18, 3, 25, 5, 0, 5, 45, 5, 78, 18]
MISSING += [0, 0, 4, 4, 0, 16, 0, 0, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 41, 41, 4, 79, 0, 4, 41, 41]
NEGATIVE = 0.08
# Counts are drawn as exp(normal): the logarithms' mean and deviation, by column.
COUNTS = [(0.8, 1.2), (1.5, 2), (2, 1.5), (1.7, 1), (8, 2), (3.5, 1.6), (1.8, 1.4), (2.3, 1), (4, 1.3), (0.3, 0.5)]
COUNTS += [(0.8, 0.9), (0.2, 0.5), (1.9, 1)]
DISTINCT_ROWS = 100_000


def write_tsv(path: Path, megabytes: int) -> None:
    """A file of so many megabytes of whole lines; the same rows again after so many of them that no cache knows them."""
    block = b"".join(lines(np.random.default_rng(0), min(DISTINCT_ROWS, 5000 * megabytes)))  # a row has about 240 bytes
    whole, rest = divmod(megabytes * 1_000_000, len(block))
    with path.open("wb") as file:
        for _ in range(whole):
            file.write(block)
        file.write(block[: block.find(b"\n", rest) + 1])


def lines(random: np.random.Generator, count: int) -> Iterator[bytes]:
    label = (random.random(count) < 0.26).astype(int).astype(str)
    counts = [np.exp(random.normal(mean, deviation, count)).astype(int).astype(str) for mean, deviation in COUNTS]
    counts[1] = np.where(random.random(count) < NEGATIVE, "-1", counts[1])
    # Few categories are frequent: half of a column's values come from 64 of its 2^32.
    popular = random.integers(2**32, size=(26, 64))
    drawn = [random.integers(2**32, size=count) for _ in range(26)]
    often = [random.random(count) < 0.5 for _ in range(26)]
    ids = [np.where(o, p[random.integers(64, size=count)], d) for o, p, d in zip(often, popular, drawn, strict=True)]
    columns = [label.tolist()] + [c.tolist() for c in counts] + [[f"{i:08x}" for i in c.tolist()] for c in ids]
    gone = [[False] * count] + [(random.random(count) * 100 < share).tolist() for share in MISSING]
    for row in range(count):
        yield "\t".join("" if g[row] else c[row] for c, g in zip(columns, gone, strict=True)).encode() + b"\n"


def read(uri: str, batch: int) -> tuple[int, float, float]:
    """Read all batches: the number of examples, CPU seconds and wall seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    batches = open_data(uri).batches(
        batch_size=batch, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()
    )
    examples = sum(b.num_examples for b in batches)
    return examples, time.process_time() - cpu, time.perf_counter() - wall


def measure(uri: str, megabytes: float, batch: int, runs: int) -> dict[str, dict[str, float]]:
    """Rates of reading `uri`: MB/s and examples per second, by CPU and wall seconds."""
    read(uri, batch)  # compiles the loops, and brings the file into memory
    found = [read(uri, batch) for _ in range(runs)]
    return {
        "megabytes_per_cpu_second": summary([megabytes / cpu for _, cpu, _ in found]),
        "megabytes_per_second": summary([megabytes / wall for _, _, wall in found]),
        "examples_per_cpu_second": summary([examples / cpu for examples, cpu, _ in found]),
    }


def decompressing(opened: Callable[[Path], BinaryIO], path: Path, megabytes: float, runs: int) -> dict[str, float]:
    """MB/s of CPU of reading a compressed file in the pieces that readers take."""
    found = []
    for _ in range(runs):
        cpu = time.process_time()
        with opened(path) as file:
            while file.read(MIN_CHUNK_BYTES):
                pass
        found.append(megabytes / (time.process_time() - cpu))
    return summary(found)


def line(name: str, figures: dict[str, dict[str, float]]) -> str:
    cpu, wall, examples = figures.values()
    return (
        f"{name:8} {cpu['median']:7,.0f} MB/s of CPU ({cpu['min']:,.0f} to {cpu['max']:,.0f}, n={cpu['n']})  "
        f"{wall['median']:7,.0f} MB/s of wall  {examples['median']:11,.0f} examples/s of CPU"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--history", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.tsv"
        write_tsv(path, asked.megabytes)
        megabytes = path.stat().st_size / 1e6
        figures = {"tsv": measure(f"criteo:{path}", megabytes, asked.batch, asked.runs)}
        print(line("tsv", figures["tsv"]), flush=True)
        compressed = Path(folder) / "train.tsv.gz"
        with path.open("rb") as plain, gzip.open(compressed, "wb", 6) as file:
            shutil.copyfileobj(plain, file, 1 << 20)
        figures["tsv.gz"] = measure(f"criteo:{compressed}", megabytes, asked.batch, asked.runs)
        print(line("tsv.gz", figures["tsv.gz"]), flush=True)
        by: dict[str, Callable[[Path], BinaryIO]] = {"htrain": open_gzip, "gzip": gzip.open}
        rates = {name: decompressing(opened, compressed, megabytes, asked.runs) for name, opened in by.items()}
        said = ", ".join(f"{name} {rate['median']:,.0f} MB/s of CPU" for name, rate in rates.items())
        print(f"decompressing: {said}", flush=True)
        packed = Path(folder) / "train.packed"
        pack(f"criteo:{path}", packed, malformed=Malformed())
        figures["packed"] = measure(f"packed:{packed}", megabytes, asked.batch, asked.runs)
        print(line("packed", figures["packed"]), f"  {packed.stat().st_size / path.stat().st_size:.2f} of the size")
    if asked.history:
        append(asked.history, "reader", {"megabytes": asked.megabytes, "batch": asked.batch}, figures)


if __name__ == "__main__":
    main()

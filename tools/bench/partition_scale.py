"""Seconds and memory of partitions of ever larger graphs, whose samples are made while they are read (HET-GMP 5.2).

    python tools/bench/partition_scale.py --edges 1.3e6 --edges 26e6 --edges 1e8 [--workers 8] [--batch 128] [--locality 0.5]

A line for each: samples of htrain's synthetic log, 26 ids each, half of them of one of 64 communities, with a fifth as many rows in a table. Each is read
and partitioned by a process of its own. Its bytes are the most memory that it holds at once, while it reads and then while it partitions, less what it
held before, when all is imported and compiled, over the edges. Seconds of the partition are without those of reading, which are those of making the samples.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from htrain.data.malformed import Malformed
from htrain.data.source import open_data
from htrain.tagging.bigraph import Bigraph, Request, fetches, partition
from htrain.tagging.bigraph.of_data import read_bigraph

_FIELDS = 26
_STATUS = Path("/proc/self/status")


def data_of(num_edges: int, locality: float) -> str:
    """The URI of a log with so many ids."""
    samples = num_edges // _FIELDS
    return f"synthetic:?rows={samples}&table_rows={max(2000, samples // 5)}&locality={locality}&communities=64"


def held_bytes(name: str) -> int:
    """Memory of this process: VmRSS, what it holds; VmHWM, the most that it has held."""
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """VmHWM begins anew."""
    Path("/proc/self/clear_refs").write_text("5")


def warm_up(asked: argparse.Namespace) -> None:
    """Numba compiles: a small graph, and one that is partitioned by a part of it."""
    for edges in (50_000, 1_200_000):
        partition(read_bigraph(open_data(data_of(edges, 0.5)), Malformed(0.0))[0], Request(asked.workers, asked.batch))


def measured(asked: argparse.Namespace, num_edges: int) -> dict[str, float | str]:
    """Read and partition one graph in this process."""
    warm_up(asked)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or the graph would lie in what the warm-up has left
    before = held_bytes("VmRSS")
    forget_peak()
    began = time.perf_counter()
    graph, _ = read_bigraph(open_data(data_of(num_edges, asked.locality)), Malformed(0.0))
    read_seconds, read_bytes = time.perf_counter() - began, held_bytes("VmHWM") - before
    forget_peak()
    began, cpu = time.perf_counter(), time.process_time()
    found = partition(graph, Request(asked.workers, asked.batch))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = held_bytes("VmHWM") - before
    return {
        "edges": len(graph.rows), "rows": graph.num_rows, "read": read_seconds, "read_bytes": read_bytes,
        "seconds": seconds, "cpu": cpu, "bytes": peak, "begun": found.begun, "saved": saved(graph, found.fetches.per_batch, asked),
    }  # fmt: skip


def saved(graph: Bigraph, per_batch: float, asked: argparse.Namespace) -> float:
    """Beside samples and rows anywhere."""
    random, k = np.random.default_rng(0), asked.workers
    anywhere = random.permutation(graph.num_samples) % k, random.permutation(graph.num_rows) % k
    return 1 - per_batch / fetches(graph, *anywhere, num_workers=k, batch_size=asked.batch).per_batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=lambda text: int(float(text)), action="append", required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--locality", type=float, default=0.5)
    parser.add_argument("--alone", action="store_true", help="in this process, as JSON")
    asked = parser.parse_args()
    if asked.alone:
        print(json.dumps(measured(asked, asked.edges[0])))
        return
    heads = (
        "edges",
        "rows",
        "reading s",
        "bytes/edge",
        "partition s",
        "CPU s",
        "M edges/s",
        "CPU ns/edge",
        "bytes/edge",
        "F_B saved",
    )
    print("".join(f"{head:>13}" for head in heads))
    for num_edges in asked.edges:
        flags = [
            "--alone",
            "--edges",
            str(num_edges),
            "--workers",
            str(asked.workers),
            "--batch",
            str(asked.batch),
            "--locality",
            str(asked.locality),
        ]
        done = subprocess.run([sys.executable, __file__, *flags], stdout=subprocess.PIPE, check=True, text=True)
        got = json.loads(done.stdout)
        edges = got["edges"]
        print(
            f"{edges:>13,}{got['rows']:>13,}{got['read']:>13.1f}{got['read_bytes'] / edges:>13.1f}{got['seconds']:>13.2f}{got['cpu']:>13.2f}"
            f"{edges / got['seconds'] / 1e6:>13.2f}{got['cpu'] / edges * 1e9:>13.0f}{got['bytes'] / edges:>13.1f}{got['saved']:>13.1%}  {got['begun']}",
            flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()

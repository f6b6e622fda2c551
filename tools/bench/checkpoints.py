"""What a checkpoint costs a run that trains on: for how long training stands still, how long it is written, how large it is, and how many examples that costs.

    python tools/bench/checkpoints.py [--gib 1 8] [--every 20] [--checkpoints 5] [--zipf 1.05] [--history FILE]

A DLRM whose 26 tables have so many GiB, with row-wise Adagrad, on a trainer, a group PS and a sparse PS, as processes, batch 512, ids by Zipf's law.
The examples that a checkpoint costs are told as seconds of training, and as a share of a minute: by so much one checkpoint a minute slows a run. EPS
are those of the seconds in which none is written; the first checkpoint is left out.
"""

import argparse
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from history import append

import htrain
from htrain.executor.record.checkpoint import read_manifest
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py")
_TABLES, _ROW_BYTES = 26, 64  # of 16 numbers each
_NEWS = re.compile(r"checkpoint (\S+) \(training stood still for ([0-9.]+) s, written after ([0-9.]+) s")


@dataclass(frozen=True)
class Made:
    """A checkpoint: when it was told of, for how many seconds training stood still, after how many it was written, and its bytes."""

    at: float
    still: float
    written: float
    num_bytes: int
    is_delta: bool


def told(process: "subprocess.Popen[str]", found: list[Made]) -> None:
    """Keep what a run tells of its checkpoints."""
    assert process.stderr
    for line in process.stderr:
        if news := _NEWS.search(line):
            manifest = read_manifest(Path(news[1]))
            num_bytes = sum(file.num_bytes for file in manifest.files.values())
            found.append(Made(time.time(), float(news[2]), float(news[3]), num_bytes, bool(manifest.needs)))


def measured(gib: float, zipf: float, folder: Path, every: float, count: int) -> dict[str, float]:
    """The figures of a run of this size."""
    rows = int(gib * 2**30 / _TABLES / _ROW_BYTES)
    data = f"synthetic:?rows=20000000&table_rows={rows}&zipf={zipf}"
    cluster = replace(this_machine(trainers=1, group_ps=1, sparse_ps=1), sparse_ps_memory=int((1.3 * gib + 1) * 2**30))
    plan = htrain.compile(
        MODEL, data=data, cluster=cluster, options=with_flags(batch_size=512, sparse_optimizer="rowwise_adagrad")
    )
    plan.save(folder / "plan")
    command = [
        sys.executable,
        "-m",
        "htrain",
        "run",
        str(folder / "plan"),
        "--data",
        data,
        "--out",
        str(folder / "run"),
    ]
    process = subprocess.Popen([*command, "--checkpoint-seconds", str(every)], stderr=subprocess.PIPE, text=True)
    found: list[Made] = []
    threading.Thread(target=told, args=(process, found), daemon=True).start()
    while len(found) < count + 1 and process.poll() is None:
        time.sleep(0.1)
    time.sleep(every / 2)
    process.send_signal(signal.SIGINT)
    process.wait(300)
    return figures(folder / "run", found[: count + 1])


def figures(run: Path, found: list[Made]) -> dict[str, float]:
    """What the checkpoints behind the first have cost."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"role": "run"' in line)
    reports = [(line["time"], line["examples"]) for line in lines]
    first, *later = found
    begin, end = first.at + 2, later[-1].at + 2
    span = [(at, examples) for at, examples in reports if begin <= at <= end]
    windows = [(each.at - each.written - 0.5, each.at + 2) for each in later]
    quiet = [
        (b - a, y - x)
        for (a, x), (b, y) in itertools.pairwise(span)
        if not any(a < until and b > since for since, until in windows)
    ]
    eps = sum(examples for _, examples in quiet) / sum(seconds for seconds, _ in quiet)
    lost = (span[-1][0] - span[0][0]) - (span[-1][1] - span[0][1]) / eps
    return {
        "EPS": eps,
        "still s median": statistics.median(each.still for each in later),
        "still s worst": max(each.still for each in later),
        "written s": statistics.median(each.written for each in later),
        "MB whole": max(each.num_bytes for each in found if not each.is_delta) / 1e6,
        "MB median": statistics.median(each.num_bytes for each in later) / 1e6,
        "MB worst": max(each.num_bytes for each in later) / 1e6,
        "lost s a checkpoint": lost / len(later),
        "% of a minute": 100 * lost / len(later) / 60,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 8], help="of tables")
    parser.add_argument("--every", type=float, default=20, help="seconds between two checkpoints")
    parser.add_argument("--checkpoints", type=int, default=5)
    parser.add_argument("--zipf", type=float, default=1.05, help="the exponent of the law that ids follow")
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as a line of JSON")
    asked = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for gib in asked.gib:
        with tempfile.TemporaryDirectory() as folder:
            found[f"{gib:g} GiB"] = values = measured(gib, asked.zipf, Path(folder), asked.every, asked.checkpoints)
        print(f"{gib:g} GiB: " + ", ".join(f"{name} {value:,.3f}" for name, value in values.items()), flush=True)
    if asked.history:
        append(asked.history, "checkpoints", {"every": asked.every, "checkpoints": asked.checkpoints}, found)


if __name__ == "__main__":
    main()

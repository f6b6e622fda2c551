"""What a checkpoint costs a run that trains on: for how long training stands still, how long it is written, and how many examples that costs.

    python tools/bench/checkpoints.py [--gib 1 8] [--every 20] [--checkpoints 5] [--history FILE]

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
from dataclasses import replace
from pathlib import Path

from history import append

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[2] / "models" / "dlrm.py")
_TABLES, _ROW_BYTES = 26, 64  # of 16 numbers each
_NEWS = re.compile(r"stood still for ([0-9.]+) s, written after ([0-9.]+) s")


def told(process: "subprocess.Popen[str]", found: list[tuple[float, float, float]]) -> None:
    """Keep when a run tells of a checkpoint, its seconds of standstill, and until it was written."""
    assert process.stderr
    for line in process.stderr:
        if news := _NEWS.search(line):
            found.append((time.time(), float(news[1]), float(news[2])))


def measured(gib: float, folder: Path, every: float, count: int) -> dict[str, float]:
    """The figures of a run of this size."""
    rows = int(gib * 2**30 / _TABLES / _ROW_BYTES)
    data = f"synthetic:?rows=20000000&table_rows={rows}&zipf=1.05"
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
    found: list[tuple[float, float, float]] = []
    threading.Thread(target=told, args=(process, found), daemon=True).start()
    while len(found) < count + 1 and process.poll() is None:
        time.sleep(0.1)
    time.sleep(every / 2)
    process.send_signal(signal.SIGINT)
    process.wait(300)
    return figures(folder / "run", found[: count + 1], every)


def figures(run: Path, found: list[tuple[float, float, float]], every: float) -> dict[str, float]:
    """What the checkpoints behind the first have cost."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"role": "run"' in line)
    reports = [(line["time"], line["examples"]) for line in lines]
    (first, *_), *later = found
    begin, end = first + 2, later[-1][0] + 2
    span = [(at, examples) for at, examples in reports if begin <= at <= end]
    windows = [(at - written - 0.5, at + 2) for at, _, written in later]
    quiet = [
        (b - a, y - x)
        for (a, x), (b, y) in itertools.pairwise(span)
        if not any(a < until and b > since for since, until in windows)
    ]
    eps = sum(examples for _, examples in quiet) / sum(seconds for seconds, _ in quiet)
    lost = (span[-1][0] - span[0][0]) - (span[-1][1] - span[0][1]) / eps
    return {
        "EPS": eps,
        "still s median": statistics.median(still for _, still, _ in later),
        "still s worst": max(still for _, still, _ in later),
        "written s": statistics.median(written for *_, written in later),
        "lost s a checkpoint": lost / len(later),
        "% of a minute": 100 * lost / len(later) / 60,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 8], help="of tables")
    parser.add_argument("--every", type=float, default=20, help="seconds between two checkpoints")
    parser.add_argument("--checkpoints", type=int, default=5)
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as a line of JSON")
    asked = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for gib in asked.gib:
        with tempfile.TemporaryDirectory() as folder:
            found[f"{gib:g} GiB"] = values = measured(gib, Path(folder), asked.every, asked.checkpoints)
        print(f"{gib:g} GiB: " + ", ".join(f"{name} {value:,.3f}" for name, value in values.items()), flush=True)
    if asked.history:
        append(asked.history, "checkpoints", {"every": asked.every, "checkpoints": asked.checkpoints}, found)


if __name__ == "__main__":
    main()

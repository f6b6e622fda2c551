"""Whether roles that are killed change what is learnt: NE of runs with kills beside that of runs that nobody has disturbed.

    python tools/kills_quality.py [--kills 20] [--runs 3] [--rows 1500000] [--retry alone] [--constant]

Two groups of two trainers with two net replicas and two group PSs, two sparse PSs and a dense PS train DLRM for an epoch of planted Criteo-like data; NE is
that of other examples of the same model. Pairs of runs, by turns; a role is killed at random (SIGKILL) each time that so many examples have been trained
since the last kill. Undisturbed runs differ, too, as steps do not come in the same order: the spread is printed. Rates fall linearly to 0 over the epoch, as
where models are trained for use, unless they are to be --constant: then the last steps, in whatever order they come, make most of the spread.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

MODEL = str(Path(__file__).parents[1] / "models" / "dlrm.py")
_TABLE_ROWS, _TEST_ROWS, _BATCH = 5000, 200_000, 128
_MOST_SECONDS = 1800


def trained(run: Path) -> int:
    """Examples that a run has trained so far."""
    log = run / "metrics.jsonl"
    with suppress(OSError):
        lines = [line for line in log.read_text().rpartition("\n")[0].splitlines()[-50:] if '"role": "run"' in line]
        return int(json.loads(lines[-1])["examples"]) if lines else 0
    return 0


def kill_one(launcher: int, run: Path, draw: random.Random) -> bool:
    """Kill a role of a run that lives, if there is one."""
    with suppress(OSError, ValueError, psutil.Error):
        places = json.loads((run / "roles.json").read_text())
        alive = {each.pid for each in psutil.Process(launcher).children(recursive=True)}
        if victims := sorted(name for name, place in places.items() if place["pid"] in alive):
            os.kill(places[draw.choice(victims)]["pid"], signal.SIGKILL)
            return True
    return False


def run_to_end(plan: Path, data: str, run: Path, kills: int, asked: argparse.Namespace, draw: random.Random) -> int:
    """Train an epoch; how many roles were killed meanwhile."""
    command = [sys.executable, "-m", "htrain", "run", str(plan), "--data", data, "--out", str(run)]
    command += ["--checkpoint-seconds", "2", "--retries", "1000", "--retry", asked.retry]
    with (run.parent / f"{run.name}.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
    killed, until = 0, time.monotonic() + _MOST_SECONDS
    try:
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
            if killed < kills and trained(run) > (killed + 1) * asked.rows / (kills + 1):
                killed += kill_one(process.pid, run, draw)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        sys.exit(f"a run with {killed} kills ended with {process.returncode}: see {log.name}")
    return killed


def options_of(asked: argparse.Namespace) -> htrain.Options:
    """Those of the plan. A group updates its weights once for each batch of its trainers, a sparse PS its tables once for each batch."""
    options = with_flags(batch_size=_BATCH, net_replicas=2)
    if asked.constant:
        return options
    steps = asked.rows // _BATCH
    return replace(
        options, dense_schedule=htrain.LinearDecay(decay=steps // 2), sparse_schedule=htrain.LinearDecay(decay=steps)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3, help="of each kind")
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--retry", default="alone", choices=("alone", "partial", "whole"))
    parser.add_argument("--constant", action="store_true", help="rates stay")
    asked = parser.parse_args()
    data = f"synthetic:?rows={asked.rows}&table_rows={_TABLE_ROWS}"
    test = f"synthetic:?rows={_TEST_ROWS}&table_rows={_TABLE_ROWS}&first_block=100000"
    cluster = this_machine(groups=2, trainers=2, group_ps=2, sparse_ps=2, dense_ps=1)
    found: dict[str, list[float]] = {"undisturbed": [], "killed": []}
    with tempfile.TemporaryDirectory() as scratch:
        plan = Path(scratch) / "plan"
        htrain.compile(MODEL, data=data, cluster=cluster, options=options_of(asked)).save(plan)
        for number in range(asked.runs):
            for kind, kills in (("undisturbed", 0), ("killed", asked.kills)):
                run = Path(scratch) / f"{kind}{number}"
                done = run_to_end(plan, data, run, kills, asked, random.Random(number))
                found[kind].append(ne := htrain.evaluate(run, data=test).ne)
                print(f"{kind}: {done} kills, NE {ne:.5f}", flush=True)
    means = {kind: statistics.mean(values) for kind, values in found.items()}
    for kind, values in found.items():
        print(f"{kind}: NE {means[kind]:.5f} ({min(values):.5f} to {max(values):.5f}, n={len(values)})")
    print(f"killed over undisturbed: {100 * (means['killed'] / means['undisturbed'] - 1):+.3f} %")


if __name__ == "__main__":
    main()

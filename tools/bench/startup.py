"""Seconds until something happens: `htrain --help`, a model compiled, a run's first step, with Numba's cache empty and full; and a run's CPU seconds.

    python tools/bench/startup.py [--runs 3] [--history FILE]

Each in a process of its own; with `--history`, the figures are added to a file as a line of JSON.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from history import append, summary

HTRAIN = str(Path(sys.executable).parent / "htrain")
MODELS = Path(__file__).parents[2] / "models"
ZOO = ("dlrm.py", "wide_deep.py", "deepfm.py", "dcn.py")


def seconds_of(*words: str, cache: Path | None = None) -> float:
    """Of one command. Raises CalledProcessError when it fails."""
    places = {"NUMBA_CACHE_DIR": str(cache)} if cache else {}
    began = time.perf_counter()
    subprocess.run([HTRAIN, *words], check=True, capture_output=True, env={**os.environ, **places})
    return time.perf_counter() - began


def cpu_seconds() -> float:
    """Of all commands that have ended, with the processes that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds_to_the_first_step(plan: Path, out: Path, cache: Path) -> float:
    """From the command to the first report of trained examples: a run of one group, its processes included."""
    began = time.time()
    seconds_of("run", str(plan), "--data", "synthetic:?rows=2000", "--out", str(out), cache=cache)
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return float(next(r["time"] for r in records if r["role"] == "run" and r["examples"])) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as a line of JSON")
    asked = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for number in range(asked.runs):
            found.setdefault("help", []).append(seconds_of("--help"))
            for model in ZOO:
                out = folder / f"{model}{number}"
                found.setdefault(f"compile {model}", []).append(
                    seconds_of("compile", str(MODELS / model), "--out", str(out))
                )
            for state in ("cache empty", "cache full"):
                run = folder / f"{state} {number}"
                before = cpu_seconds()
                first = seconds_to_the_first_step(folder / f"{ZOO[0]}{number}", run, folder / f"cache{number}")
                found.setdefault(f"first step, {state}", []).append(first)
                found.setdefault(f"CPU of a run, {state}", []).append(cpu_seconds() - before)
    figures = {name: summary(seconds) for name, seconds in found.items()}
    for name, figure in figures.items():
        print(f"{name:<26}{figure['median']:6.2f} s  ({figure['min']:.2f} to {figure['max']:.2f}, n={asked.runs})")
    if asked.history:
        append(asked.history, "startup", {"runs": asked.runs}, figures)


if __name__ == "__main__":
    main()

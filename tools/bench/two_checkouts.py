"""Another checkout of this repository beside this one: what a change has done to speed, memory, start-up and compile time, in one run.

    git worktree add /somewhere/else COMMIT
    python tools/bench/two_checkouts.py /somewhere/else [--runs 9] [--only NAME ...] [--history FILE]

Each round runs each benchmark once in either checkout, one behind the other, each checkout's own code and its own benchmarks; who is first changes
with the rounds. A first round that is not counted fills the caches of compiled code. A line a figure: the medians, and the median of the rounds'
ratios with their range, above 1 where this checkout is worse (slower, or larger). Figures that the other checkout does not print are left out.
Wants a quiet machine; a round takes some two minutes for each checkout.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from history import append, summary

HERE = Path(__file__).parents[2]
BENCHMARKS = {
    "single_process": ("single_process.py", "--runs", "1"),
    "ps_cpu": ("ps_cpu.py", "--runs", "1"),
    "sparse_ps": ("sparse_ps.py", "--runs", "1"),
    "startup": ("startup.py", "--runs", "1"),
}
RATES = ("htrain EPS", "serve")  # more is better
COSTS = ("htrain", "help", "compile", "first step", "peak MiB")


def measured(checkout: Path, name: str) -> dict[str, float]:
    """Each figure of one run of a benchmark in a checkout. Raises SystemExit where it fails."""
    script, *words = BENCHMARKS[name]
    with tempfile.TemporaryDirectory() as made:
        history = Path(made) / "history"
        command = [sys.executable, f"tools/bench/{script}", *words, "--history", str(history)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        process = subprocess.Popen(
            command, cwd=checkout, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        said = process.stderr.read() if process.stderr else b""
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{checkout}: {' '.join(command)} failed: {said.decode()[-2000:]}")
        lines = [json.loads(line) for line in history.read_text().splitlines()]
    found = {"peak MiB": used.ru_maxrss / 1024}
    for line in lines:
        batch = line["arguments"].get("batch")
        for figure, value in line["figures"].items():
            if figure.startswith((*RATES, *COSTS)):
                found[figure if batch is None else f"{figure}, batch {batch}"] = value["median"]
    return found


def worse_by(figure: str, there: float, here: float) -> float:
    """Above 1 where this checkout is worse."""
    return there / here if figure.startswith(RATES) else here / there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other checkout, the base")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--only", choices=BENCHMARKS, action="append")
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as a line of JSON")
    asked = parser.parse_args()
    other = asked.other.resolve()
    if not (other / "tools" / "bench").is_dir():
        parser.error(f"{asked.other} is no checkout of this repository: it has no tools/bench")
    figures = {}
    for name in asked.only or BENCHMARKS:
        rounds = []
        for number in range(asked.runs + 1):
            sides = (other, HERE) if number % 2 else (HERE, other)
            found = {side: measured(side, name) for side in sides}
            if number:
                rounds.append((found[other], found[HERE]))
        for figure in rounds[0][1]:
            if figure not in rounds[0][0]:
                continue
            ratio = summary([worse_by(figure, there[figure], here[figure]) for there, here in rounds])
            there, here = (statistics.median(side[figure] for side in sides) for sides in zip(*rounds, strict=True))
            print(
                f"{name:<15}{figure:<28}{there:14,.4g} -> {here:14,.4g}   {ratio['median']:.3f} "
                f"({ratio['min']:.3f} to {ratio['max']:.3f}, n={len(rounds)})",
                flush=True,
            )
            figures[f"{name}: {figure}"] = {**ratio, "there": there, "here": here}
    if asked.history:
        append(asked.history, "two_checkouts", {"other": asked.other, "runs": asked.runs}, figures)


if __name__ == "__main__":
    main()

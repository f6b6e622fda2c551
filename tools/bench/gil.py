"""How much of its time a net replica holds the GIL, and so how many of them a process has room for: a sampled profile.

    pip install py-spy
    python tools/bench/gil.py [--batch 2048 --batch 128] [--seconds 10]

The model of single_process.py in one replica, as a process of its own that py-spy looks into, by default 500 times a second. Prints the
share of samples in which a thread held the GIL, one over it, which is how many replicas would be needed to fill it, and the functions that were
seen to hold it most. Kernels of torch and Numba run without it. What a run begins with, such as filling the tables, is in the share.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from history import append
from single_process import Htrain, Side, sides_of

from htrain.spec.options import Options
from htrain.spec.tree import with_flags

EXAMPLES = 25_000  # of one run over the batches


def profile(options: Options, seconds: float, rate: int) -> dict[str, Any]:
    """Prints the share and who holds it; returns the figures."""
    steps = max(12, EXAMPLES // options.batch_size)
    with sides_of([Side(Htrain, options)], steps, threads=1) as (side,), tempfile.TemporaryDirectory() as folder:
        spent = side.train()[0]
        runs = round(seconds / spent) + 2  # one to begin with, and one more than are sampled
        stacks = Path(folder) / "stacks"
        words = [
            spy(),
            "record",
            "--gil",
            "--nonblocking",
            "--format",
            "raw",
            "--rate",
            str(rate),
            "--duration",
            str(max(1, round(seconds))),
        ]
        with subprocess.Popen(
            [*words, "--output", stacks, "--pid", str(side.pid)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as looking:
            for _ in range(runs):
                side.train()
                if looking.poll() is not None:
                    break
            said = looking.communicate()[1]
        if looking.returncode:
            sys.exit(f"gil: py-spy: {said.strip().splitlines()[-1] if said.strip() else 'it failed'}")
        seen = Counter[str]()
        for line in stacks.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            seen[stack.rpartition(";")[2]] += int(count)
    share = seen.total() / (rate * max(1, round(seconds)))
    print(
        f"batch {options.batch_size}: the GIL is held {share:.1%} of the time; {1 / max(share, 1e-4):,.0f} replicas fill it"
    )
    for function, count in seen.most_common(6):
        print(f"  {count / seen.total():6.1%}  {function}", flush=True)
    return {"share": share, "samples": seen.total()}


def spy() -> str:
    found = shutil.which("py-spy", path=f"{Path(sys.executable).parent}") or shutil.which("py-spy")
    if found is None:
        sys.exit("gil: no py-spy here: pip install py-spy")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=500, help="samples per second")
    parser.add_argument("--history", type=Path, help="a file to which the figures are added as lines of JSON")
    asked = parser.parse_args()
    for batch_size in asked.batch or [2048, 128]:
        options = with_flags(batch_size=batch_size, net_replicas=1, dense_optimizer="sgd", sparse_optimizer="sgd")
        figures = profile(options, asked.seconds, asked.rate)
        if asked.history:
            append(asked.history, "gil", {**vars(asked), "batch": batch_size}, figures)


if __name__ == "__main__":
    main()

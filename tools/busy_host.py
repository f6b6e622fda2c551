"""Starts of whole runs on a host that is far too busy: none may be given up, and none may report a role that is healthy as lost.

    python tools/busy_host.py --starts 50 --load 16

As many other processes compute as it takes to reach the load; runs start beside them, some at once, each with all its processes, and train a few steps.
Prints a line for each start that went wrong, then their count, the seconds that a start took, and the load that was seen.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

BURN = "while True: pass"
DATA = "synthetic:?rows=4096&table_rows=200"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--load", type=int, default=16, help="threads that want a core, beside those of the runs")
    parser.add_argument("--at-once", type=int, default=2, help="runs that start at once")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cluster = this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=1)
        model = str(Path(__file__).parent.parent / "models" / "dlrm.py")
        htrain.compile(model, data=DATA, cluster=cluster, options=Options(batch_size=64)).save(Path(scratch) / "plan")
        burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(wanted.load)]
        try:
            with ThreadPoolExecutor(wanted.at_once) as pool:
                ends = list(pool.map(lambda number: start(Path(scratch), number), range(wanted.starts)))
        finally:
            for burner in burners:
                burner.kill()
    seconds, wrong = [each[0] for each in ends], sum(each[1] for each in ends)
    print(
        f"{wrong} of {wanted.starts} starts went wrong; a start took {statistics.median(seconds):.0f} s in the median, {max(seconds):.0f} s at most"
    )
    print(f"load {os.getloadavg()[0]:.1f} over the last minute, {os.cpu_count()} cores")
    sys.exit(wrong > 0)


def start(scratch: Path, number: int) -> tuple[float, bool]:
    """Seconds that a run took, and whether it went wrong: it ended otherwise than well, or called a role silent."""
    command = [
        sys.executable,
        "-m",
        "htrain",
        "run",
        str(scratch / "plan"),
        "--data",
        DATA,
        "--out",
        str(scratch / f"run{number}"),
    ]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wrong = done.returncode != 0 or "silent" in done.stderr
    if wrong:
        print(f"start {number}: status {done.returncode}: {done.stderr.strip().splitlines()[-3:]}", flush=True)
    return time.monotonic() - began, wrong


if __name__ == "__main__":
    main()

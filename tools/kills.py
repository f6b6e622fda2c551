"""Every combination of a run's processes killed at once: no other may be left 15 seconds later.

    python tools/kills.py

The launcher, the supervisor of roles, a trainer, a group PS and a sparse PS: 31 combinations. Prints a line for each: the seconds until the last process
was gone, and what the launcher said where it lived.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

DATA = "synthetic:?rows=100000&table_rows=200"
VICTIMS = ("launcher", "supervisor", "trainer:0:0", "group_ps:0:0", "sparse_ps:0")
ENDLESS = ("--epochs", "1000000000")  # whoever is killed, the run has not ended before
MOST_SECONDS = 15.0


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        cluster = this_machine(groups=1, trainers=1, group_ps=1, sparse_ps=1)
        model = str(Path(__file__).parent.parent / "models" / "dlrm.py")
        htrain.compile(model, data=DATA, cluster=cluster, options=Options(batch_size=64)).save(Path(scratch) / "plan")
        combinations = [c for size in range(1, len(VICTIMS) + 1) for c in itertools.combinations(VICTIMS, size)]
        left = sum(not killed(Path(scratch), number, victims) for number, victims in enumerate(combinations))
    print(f"{len(combinations)} combinations, {left} with processes left after {MOST_SECONDS:.0f} s")
    sys.exit(left > 0)


def killed(scratch: Path, number: int, victims: tuple[str, ...]) -> bool:
    """Start a run, kill `victims` of it together; whether all else ended in time. What is left is ended."""
    folder = scratch / f"run{number}"
    command = [
        sys.executable,
        "-m",
        "htrain",
        "run",
        str(scratch / "plan"),
        "--data",
        DATA,
        "--out",
        str(folder),
        *ENDLESS,
        *("--retries", "0"),  # what goes on by itself is held by tools/recovery.py
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for_steps(folder, process)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    pids = {"launcher": process.pid, "supervisor": psutil.Process(process.pid).children()[0].pid}
    pids |= {role: place["pid"] for role, place in json.loads((folder / "roles.json").read_text()).items()}
    began = time.monotonic()
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=MOST_SECONDS)
    seconds = time.monotonic() - began
    for each in alive:
        each.kill()
    _, said = process.communicate()
    last = (said.strip().splitlines() or [""])[-1] if "launcher" not in victims else ""
    print(f"{' + '.join(victims):<60} {seconds:5.1f} s  {len(alive)} left  {last}", flush=True)
    return not alive


def wait_for_steps(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until the run has trained something."""
    log = folder / "metrics.jsonl"
    while process.poll() is None and not (
        log.exists() and any(json.loads(line).get("examples") for line in _whole_lines(log))
    ):
        time.sleep(0.1)
    if process.returncode is not None:
        sys.exit(f"the run ended before it was killed: {process.communicate()[1]}")


def _whole_lines(log: Path) -> list[str]:
    """Without one that is being written."""
    return log.read_text().rpartition("\n")[0].splitlines()


if __name__ == "__main__":
    main()

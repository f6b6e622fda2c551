"""What benchmarks measured, kept: a JSON line for each run, so that a later run can be held against earlier ones."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_CPUS = Path("/proc/cpuinfo")


def append(file: Path, name: str, arguments: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """Add a line to `file`: the time (UTC), the machine, the commit ("" without git), the benchmark and its arguments, and its figures.

    A line is written at once, so that benchmarks which run at the same time do not mix theirs.
    """
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count()},
        "commit": commit(),
        "benchmark": name,
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in arguments.items()},
        "figures": dict(figures),
    }
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def summary(values: Sequence[float]) -> dict[str, float]:
    """A figure of several runs: its median, its least and its largest value, and of how many."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def cpu_model() -> str:
    """What the system calls its processor; its architecture where the system does not say."""
    lines = _CPUS.read_text().splitlines() if _CPUS.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """The commit of the tree that this file is in, with + behind it where the tree was changed since; "" without git."""
    here = Path(__file__).parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=here, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""

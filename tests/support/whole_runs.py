"""Runs as a user starts them: `htrain` as a process, its data, and what it leaves."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
WIDE_DEEP = str(ROOT / "models" / "wide_deep.py")
HTRAIN = str(Path(sys.executable).with_name("htrain"))


def libfm(path: Path, rows: int, *, fields: int = 4, ids: int = 50) -> str:
    """A libFM file of random rows; its URI."""
    draw = random.Random(0)
    lines = (
        f"{draw.choice((1, -1))} " + " ".join(f"{draw.randrange(ids)}:1" for _ in range(fields)) for _ in range(rows)
    )
    path.write_text("\n".join(lines) + "\n")
    return f"libfm:{path}?rows={ids}"


def start(plan: Path, data: str, *arguments: str) -> subprocess.Popen[str]:
    command = [HTRAIN, "run", str(plan), "--data", data, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_examples(run: Path, process: subprocess.Popen[str], count: int) -> None:
    """Until the run's metrics tell of `count` examples."""
    log = run / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        whole, _, _ = (
            log.read_text().rpartition("\n") if log.exists() else ("", "", "")
        )  # a reader may meet a page that is written
        records = [json.loads(line) for line in whole.splitlines()]
        if any(r["role"] == "run" and r["examples"] >= count for r in records):
            return
        time.sleep(0.05)
    raise AssertionError(f"the run did not get to {count} examples: {process.communicate()}")


def wait_for_a_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
    """Until the run has its first checkpoint."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if list(run.glob("checkpoints/*/manifest.json")):
            return
        time.sleep(0.02)
    raise AssertionError(f"the run has made no checkpoint: {process.communicate()}")


def kill(victim: str, run: Path, process: subprocess.Popen[str]) -> None:
    """Kill a role of a run: it must end in time, with an error that names the role, and leave nobody behind."""
    pid = json.loads((run / "roles.json").read_text())[victim]["pid"]
    family = psutil.Process(process.pid).children(recursive=True)
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - killed < 15
    assert process.returncode == 1, said
    assert said.splitlines()[-1].startswith(f"htrain: {victim} (process {pid}) was killed by signal 9")
    assert "Traceback" not in said
    assert not psutil.wait_procs(family, timeout=5)[1]


def parameters(run: Path) -> dict[str, torch.Tensor]:
    """Everything that a run's last checkpoint holds."""
    folder = max((run / "checkpoints").iterdir())
    return {
        f"{file.stem} {name}": value
        for file in sorted(folder.glob("*.safetensors"))
        for name, value in load_file(file).items()
    }

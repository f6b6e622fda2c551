"""Runs as a user starts them: `htrain` as a process, its data, and what it leaves.

Their processes are forked from one that has imported everything (forked.py), but for those of `start_anew`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from forked import Started, shared_commands
from safetensors.torch import load_file

from htrain.executor.record.kept import find_checkpoints

ROOT = Path(__file__).parents[2]
WIDE_DEEP = str(ROOT / "models" / "wide_deep.py")
HTRAIN = str(Path(sys.executable).with_name("htrain"))
Process = Started | subprocess.Popen[str]
ENDLESS = (
    "--epochs",
    "1000000000",
)  # for what happens to a run before its end: no machine is so fast that it comes too late


def libfm(path: Path, rows: int, *, fields: int = 4, ids: int = 50) -> str:
    """A libFM file of random rows; its URI."""
    draw = random.Random(0)
    lines = (
        f"{draw.choice((1, -1))} " + " ".join(f"{draw.randrange(ids)}:1" for _ in range(fields)) for _ in range(rows)
    )
    path.write_text("\n".join(lines) + "\n")
    return f"libfm:{path}?rows={ids}"


ENDS = ("--retries", "0")  # a run that loses a role ends, unless a test says more: recovery has tests of its own


def start(plan: Path, data: str, *arguments: str) -> Started:
    return shared_commands().start(["run", str(plan), "--data", data, *ENDS, *arguments])


def train(plan: Path, data: str, *arguments: str) -> dict[str, Any]:
    """Such a run to its end, with a process a role; what it says."""
    process = start(plan, data, *arguments, "--json")
    said, told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    return dict(json.loads(said))


def start_anew(plan: Path, data: str, *arguments: str) -> subprocess.Popen[str]:
    """The same as a process that imports all for itself, as a shell starts it."""
    command = [HTRAIN, "run", str(plan), "--data", data, *ENDS, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start_held(places: str, plan: Path, data: str, *arguments: str, out: Path) -> Started:
    """A run into `out` whose trainers stop at `places`, such as `40,90!` (tests/support/held.py)."""
    _held_folder(out).mkdir()
    words = ["run", str(plan), "--data", data, "--out", str(out), *ENDS, *arguments]
    return shared_commands().start(words, held=(_held_folder(out), places))


def held_command(places: str, plan: Path, data: str, *arguments: str, out: Path) -> list[str]:
    """The command of such a run, for a process that is started anew."""
    _held_folder(out).mkdir()
    held = [sys.executable, str(ROOT / "tests" / "support" / "held.py"), str(_held_folder(out)), places]
    return [*held, "run", str(plan), "--data", data, "--out", str(out), *arguments]


def let_go(run: Path) -> None:
    """Trainers that stop at a place without `!` go on."""
    (_held_folder(run) / "go").touch()


def _held_folder(run: Path) -> Path:
    return run.with_name(f"{run.name}.held")


def wait_until_held(run: Path, process: Process, place: str, *, trainers: int = 1) -> None:
    """Until as many trainers have stopped at a place."""
    wait_until(lambda: len(list(_held_folder(run).glob(f"* {place}"))) == trainers, process, f"stopped at {place}")


def wait_for_examples(run: Path, process: Process, count: int) -> None:
    """Until the run's metrics, which are written about twice a second, tell of `count` examples: for runs that do not end by themselves."""
    wait_until(lambda: num_trained(run) >= count, process, f"{count} examples")


def num_trained(run: Path) -> int:
    """The examples that the run's metrics tell of."""
    return max(_examples(run / "metrics.jsonl"), default=0)


def wait_until_all_train(run: Path, process: Process, *trainers: str) -> None:
    """Until the run's metrics tell of a step of each trainer: before that the launcher waits longer for a role that is silent."""
    wait_until(lambda: _stepped(run).issuperset(trainers), process, f"steps of {trainers}")


def _examples(log: Path) -> list[int]:
    return [record["examples"] for record in _records(log) if record["role"] == "run"]


def _stepped(run: Path) -> set[str]:
    records = _records(run / "metrics.jsonl")
    return {record["role"] for record in records if record["role"].startswith("trainer:") and record["steps"]}


def _records(log: Path) -> list[dict[str, Any]]:
    whole, _, _ = log.read_text().rpartition("\n") if log.exists() else ("", "", "")  # a line may be half written
    return [json.loads(line) for line in whole.splitlines()]


def wait_for_a_checkpoint(run: Path, process: Process) -> None:
    """Until the run has its first checkpoint: for runs that do not end by themselves."""
    wait_until(lambda: bool(list(run.glob("checkpoints/*/manifest.json"))), process, "a checkpoint")


def another_checkpoint(run: Path, process: Process) -> None:
    """Until the run has a newer checkpoint than it has now."""
    before = last_checkpoint(run)
    wait_until(lambda: last_checkpoint(run) != before, process, "another checkpoint")


def last_checkpoint(run: Path) -> str:
    """The name of the newest, "" where there is none."""
    complete = find_checkpoints(run).complete
    return complete[0][0].name if complete else ""


def places(run: Path) -> dict[str, int]:
    """The process of each role."""
    return {role: place["pid"] for role, place in json.loads((run / "roles.json").read_text()).items()}


def stopped(process: Process) -> str:
    """What a run has said in the end that is asked to stop, and does."""
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    return said


def wait_until(happened: Callable[[], bool], process: Process, what: str) -> None:
    """Until something has happened to a process that lives."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if happened():
            return
        time.sleep(0.02)
    process.kill()
    raise AssertionError(f"the run has not come to this: {what}; {process.communicate()}")


def kill(victim: str, run: Path, process: Process) -> None:
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


@contextmanager
def runs(*common: str) -> Iterator[Callable[..., Started]]:
    """What starts runs of `start`'s arguments with some that are `common` to all, and one thread for each PS: several that step one row at once may lose a step
    of it (Hogwild). None is left."""
    started: list[Started] = []

    def begin(plan: Path, data: str, *arguments: str) -> Started:
        started.append(start(plan, data, "--workers", "1", *common, *arguments))
        return started[-1]

    try:
        yield begin
    finally:
        for process in started:
            process.kill()
            process.communicate()


def follow(victim: str, run: Path, process: Process, *, along: str | None = None) -> None:
    """Kill a role, and wait until another process plays it; those whose names begin with `along`, too, and no others where that is said."""
    others = _begun_beside(victim, run, process, along)
    if along is not None and others:
        process.kill()
        raise AssertionError(f"{victim} was killed, and {others} have not gone on; {process.communicate()}")


def follow_alone(victim: str, run: Path, process: Process, *, along: str, at: Callable[[], None], most: int = 5) -> int:
    """The same of a role that takes all back at some moments, as while a checkpoint is written: `at` waits for one that is none of them, which a busy host may
    come too late to. It is killed until the others go on; how often all were begun again before."""
    for taken_back in range(most):
        at()
        if not _begun_beside(victim, run, process, along):
            return taken_back
    process.kill()
    raise AssertionError(f"{victim} was killed {most} times, and took all back each time; {process.communicate()}")


def _begun_beside(victim: str, run: Path, process: Process, along: str | None) -> list[str]:
    """Kill a role, and wait until another process plays it, and those `along`; which others have another by then."""
    before = places(run)
    os.kill(before[victim], signal.SIGKILL)
    again = {role for role in before if role == victim or (along and role.startswith(along))}

    def is_back() -> bool:
        now = places(run)
        return now.keys() == before.keys() and all(now[role] != before[role] for role in again)

    wait_until(is_back, process, f"another {victim}")
    now = places(run)
    return sorted(role for role in before if role not in again and now[role] != before[role])

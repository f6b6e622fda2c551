"""A deterministic run that is killed again and again, and goes on each time: it ends with the very bits of one that nobody has disturbed."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

import htrain
from htrain.executor.record.kept import find_checkpoints
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from tests.support.ledger import last_begun
from tests.support.whole_runs import ENDLESS, WIDE_DEEP, Process

ROWS = 2000  # of an epoch
_GONE_SECONDS = 30.0  # for the processes of a launcher that was killed
_END_SECONDS = 60  # for the rest of an epoch, and one more
Start = Callable[..., Process]


def cycles_plan(folder: Path, data: str) -> Path:
    """A trainer, a group PS and a sparse PS with their Adagrad: in a fixed order all of it repeats bit for bit."""
    cluster = this_machine(groups=1, trainers=1, group_ps=1, sparse_ps=1)
    htrain.compile(WIDE_DEEP, data=data, cluster=cluster, options=Options(batch_size=32)).save(folder)
    return folder


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    """All that the last checkpoint of a run holds, by role and name."""
    folder, _ = find_checkpoints(run).complete[0]
    return {
        f"{file.stem} {name}": value
        for file in sorted(folder.glob("*.safetensors"))
        for name, value in load_file(file).items()
    }


def differing(one: Path, other: Path) -> list[str]:
    """The tensors of two runs that are not the same bit for bit."""
    first, second = tensors_of(one), tensors_of(other)
    same = lambda name: name in first and name in second and torch.equal(first[name], second[name])  # noqa: E731
    return [name for name in sorted(first.keys() | second.keys()) if not same(name)]


def kill_one(process: Process, run: Path, draw: random.Random) -> str:
    """Kill the launcher, or a role; who it was. Behind it, all of its processes are gone."""
    family = psutil.Process(process.pid).children(recursive=True)
    places = json.loads((run / "roles.json").read_text()) if (run / "roles.json").exists() else {}
    alive = {each.pid for each in family}
    victims = ["launcher", *(role for role, place in places.items() if place["pid"] in alive)]
    victim = draw.choice(victims)
    os.kill(process.pid if victim == "launcher" else places[victim]["pid"], signal.SIGKILL)
    process.communicate(timeout=60)
    _, left = psutil.wait_procs(family, timeout=_GONE_SECONDS)
    assert not left, f"{victim} was killed, and left {left}"
    return victim


def killed_and_resumed(
    start: Start, run: Path, cycles: int, draw: random.Random, told: Callable[[str], None]
) -> tuple[int, int]:
    """A run without an end, whose processes are killed at any time in so many cycles, and which then goes to the end of an epoch, and of one more.

    How many cycles had a checkpoint more than that before, and how many epochs were trained: what machine this is has no part in what is compared.
    """
    further, known = 0, 0
    for cycle in range(cycles):
        process = start("--out", str(run), "--or-resume", *ENDLESS)
        time.sleep(draw.uniform(0.0, 0.6))
        if draw.random() < 0.7:  # in the middle of training, else wherever it is
            _await(lambda known=known: _sequence(run) > known, process)
            time.sleep(draw.uniform(0.0, 0.3))
        if process.poll() is not None:
            raise AssertionError(f"cycle {cycle}: the run has ended: {process.communicate()}")
        victim = kill_one(process, run, draw)
        further += _sequence(run) > known
        known = _sequence(run)
        told(f"cycle {cycle + 1}: {victim} killed; checkpoints so far {known}")
    epochs = last_begun(run) + 2 if known else 1
    process = start("--out", str(run), "--or-resume", "--epochs", str(epochs))
    _, said = process.communicate(timeout=_END_SECONDS)
    assert process.returncode == 0, said
    return further, epochs


def _sequence(run: Path) -> int:
    complete = find_checkpoints(run).complete if run.is_dir() else ()
    return complete[0][1].sequence if complete else 0


def _await(happened: Callable[[], bool], process: Process) -> None:
    end = time.monotonic() + 60
    while not happened() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)

"""A run that is killed and resumed again and again is the run that nobody has disturbed, bit for bit (docs/guarantees.md)."""

import random
from functools import partial
from pathlib import Path

from whole_runs import libfm, start

from tests.support.cycles import ROWS, cycles_plan, differing, killed_and_resumed

CYCLES = 20


def test_twenty_kills_leave_no_trace(tmp_path: Path) -> None:
    data = libfm(tmp_path / "train.libfm", ROWS)
    plan = cycles_plan(tmp_path / "plan", data)
    begin = partial(start, plan, data, "--deterministic")
    said: list[str] = []
    further, epochs = killed_and_resumed(
        partial(begin, "--checkpoint-seconds", "0.1"), tmp_path / "run", CYCLES, random.Random(5), said.append
    )
    assert further > CYCLES // 3, said
    process = begin("--out", str(tmp_path / "undisturbed"), "--epochs", str(epochs), "--checkpoint-seconds", "end")
    _, told = process.communicate(timeout=200)
    assert process.returncode == 0, told
    assert differing(tmp_path / "run", tmp_path / "undisturbed") == []

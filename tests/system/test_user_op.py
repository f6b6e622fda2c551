"""An op of the user's own, from a file outside the package, all the way: compiled, shown, simulated, run in processes, resumed, evaluated."""

import json
import random
from pathlib import Path

import pytest
from forked import Commands

OPS_FILE = """
import torch
from htrain import OpDef, register
def kernel(x: torch.Tensor, *, slope: float) -> torch.Tensor:
    return torch.where(x > 0, x, slope * x)
sloped = register(OpDef("Sloped", kernel, elementwise=True))
print("a file that is loaded may print")
"""
MODEL = """
import torch
from torch import nn
from my_ops import sloped
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.first = nn.Linear(8, 6)
        self.top = nn.Linear(6, 1)
    def forward(self, sparse):
        return self.top(sloped(self.first(self.table(sparse).flatten(1)), slope=0.1))
def build():
    return Model()
"""
DATA = "libfm:a.libfm?rows=50"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = random.Random(3)
    rows = (f"{draw.choice((1, -1))} {draw.randrange(50)}:1 {draw.randrange(50)}:1" for _ in range(2000))
    (tmp_path / "a.libfm").write_text("\n".join(rows) + "\n")
    (tmp_path / "my_ops.py").write_text(OPS_FILE)
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def test_a_users_op_is_compiled_simulated_run_resumed_and_evaluated(commands: Commands, folder: Path) -> None:
    def said(*words: str) -> dict:
        done = commands.run([*words, "--json"], folder, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        found: dict = json.loads(done.stdout)
        return found

    own = ("--ops", "my_ops.py")
    said(
        "compile",
        "model.py",
        "--data",
        DATA,
        "--trainers",
        "1",
        "--group-ps",
        "1",
        "--batch-size",
        "32",
        "--out",
        "plan",
    )
    assert "Sloped(" in said("show", "plan", "--net", "train", *own)["text"]
    assert said("check", "plan", *own)["ok"]
    assert said("simulate", "plan", *own)["eps"] > 0
    assert said("run", "plan", "--data", DATA, "--out", "run", *own)["examples"] == 2000
    assert said("run", "plan", "--data", DATA, "--resume", "run", "--epochs", "2", *own)["examples"] == 4000
    assert said("eval", "run", "--data", DATA, *own)["examples"] == 2000

    refused = commands.run(["run", "plan", "--data", DATA, "--out", "other"], folder, timeout=60)
    assert refused.returncode == 1
    assert (
        refused.stderr
        == "htrain: plan/plan.yaml: op Sloped is one of a user's own, of my_ops.py: name that file, --ops my_ops.py (in Python, import it)\n"
    )
    assert not (folder / "other").exists()
    missing = commands.run(["run", "plan", "--data", DATA, "--out", "other", "--ops", "none.py"], folder, timeout=60)
    assert (missing.returncode, missing.stderr) == (1, "htrain: none.py: no such file\n")

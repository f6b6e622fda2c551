"""A cache policy of the user's own, from a file outside the package, all the way: compiled, shown, checked, run in processes, resumed, evaluated."""

import json
import random
from pathlib import Path

import pytest
from forked import Commands

PATIENT = """
import htrain

def patient(uses: int, idle: int, age: int) -> float:
    return uses / (1 + idle)

htrain.register_policy("patient", patient)
"""


MODEL = """
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)
        self.top = nn.Linear(8, 1)
    def forward(self, sparse):
        return self.top(self.table(sparse).flatten(1))
def build():
    return Model()
"""
DATA = "libfm:a.libfm?rows=50"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = random.Random(3)
    rows = (f"{draw.choice((1, -1))} {draw.randrange(50)}:1 {draw.randrange(50)}:1" for _ in range(2000))
    (tmp_path / "a.libfm").write_text("\n".join(rows) + "\n")
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "patient.py").write_text(PATIENT)
    return tmp_path


def test_a_users_policy_is_compiled_run_resumed_and_evaluated(commands: Commands, folder: Path) -> None:

    def said(*words: str) -> dict:
        done = commands.run([*words, "--json", "--ops", "patient.py"], folder, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        found: dict = json.loads(done.stdout)
        return found

    cluster = ("--groups", "2", "--trainers", "1", "--group-ps", "0", "--batch-size", "16", "--dense-sync", "allreduce")
    said(
        "compile",
        "model.py",
        "--data",
        DATA,
        *cluster,
        "--cache",
        "het",
        "--cache-capacity",
        "20%",
        "--cache-policy",
        "patient",
        "--out",
        "plan",
    )
    assert said("show", "plan")["options"]["cache"]["policy"] == "patient"
    assert said("check", "plan")["ok"]
    assert said("run", "plan", "--data", DATA, "--out", "run")["examples"] == 2000
    assert said("run", "plan", "--data", DATA, "--resume", "run", "--epochs", "2")["examples"] == 4000
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert (
        sum(
            line.get("caches", {}).get("evicted", 0)
            for line in lines
            if str(line.get("role", "")).startswith("trainer")
        )
        > 0
    )
    assert said("eval", "run", "--data", DATA)["examples"] == 2000
    refused = commands.run(["run", "plan", "--data", DATA, "--out", "other"], folder, timeout=60)
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        "htrain: plan/plan.yaml: strategy cache.policy.patient is one of a user's own, of patient.py"
    )

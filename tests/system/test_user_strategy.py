"""A strategy of the user's own, from a file outside the package, all the way: compiled, shown, simulated, run in processes, resumed, evaluated."""

import json
import random
from pathlib import Path

import pytest
from forked import Commands

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
HALFWAY = (Path(__file__).parents[1] / "support" / "halfway.py").read_text()
DATA = "libfm:a.libfm?rows=50"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw = random.Random(3)
    rows = (f"{draw.choice((1, -1))} {draw.randrange(50)}:1 {draw.randrange(50)}:1" for _ in range(2000))
    (tmp_path / "a.libfm").write_text("\n".join(rows) + "\n")
    (tmp_path / "halfway.py").write_text(HALFWAY)
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def test_a_users_strategy_is_compiled_simulated_run_resumed_and_evaluated(commands: Commands, folder: Path) -> None:
    def said(*words: str) -> dict:
        done = commands.run([*words, "--json"], folder, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        found: dict = json.loads(done.stdout)
        return found

    own = ("--ops", "halfway.py")
    chosen = ("--dense-sync", "halfway", "--set", "dense_sync.period=2", "--set", "dense_sync.share=0.25")
    cluster = ("--groups", "2", "--trainers", "1", "--group-ps", "1", "--batch-size", "32")
    said("compile", "model.py", "--data", DATA, *cluster, *chosen, "--out", "plan", *own)
    assert said("show", "plan", *own)["options"]["dense_sync"] == {
        "kind": "halfway", "share": 0.25, "period": 2, "mode": "background", "through": "dense_ps", "dtype": "float32", "top_k": 1.0,
    }  # fmt: skip
    assert said("check", "plan", *own)["ok"]
    assert said("simulate", "plan", *own)["eps"] > 0
    assert said("run", "plan", "--data", DATA, "--out", "run", *own)["examples"] == 2000
    assert said("run", "plan", "--data", DATA, "--resume", "run", "--epochs", "2", *own)["examples"] == 4000
    assert (
        sum(
            json.loads(line).get("sync_rounds", 0)
            for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
        )
        > 0
    )
    assert said("eval", "run", "--data", DATA, *own)["examples"] == 2000

    refused = commands.run(["run", "plan", "--data", DATA, "--out", "other"], folder, timeout=60)
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        "htrain: plan/plan.yaml: op Follow is one of a user's own, of halfway.py: name that file, --ops halfway.py"
    )
    unknown = commands.run(
        ["compile", "model.py", "--data", DATA, *cluster, *chosen, "--out", "new"], folder, timeout=60
    )
    assert (unknown.returncode, "'halfway' is not one of 'easgd', " in unknown.stderr) == (2, True)
    wrong = commands.run(
        [
            "compile",
            "model.py",
            *cluster,
            "--dense-sync",
            "halfway",
            "--set",
            "dense_sync.perod=2",
            "--out",
            "new",
            *own,
        ],
        folder,
        timeout=60,
    )
    assert wrong.stderr.startswith("htrain: --set dense_sync.perod=2: want SECTION.FIELD=VALUE")
    assert not (folder / "new").exists()

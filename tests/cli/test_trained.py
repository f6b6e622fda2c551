"""`htrain predict` and `htrain export`: what they say, and how they end."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import Commands
from taken_out import trained
from torch import nn

import htrain
from htrain.spec.cluster import this_machine

DATA = "synthetic:?rows=64&table_rows=20"


class Odd(nn.Module):
    """A model that ONNX cannot express: its input is cropped."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.top = nn.EmbeddingBag(20, 2, mode="sum"), nn.Linear(14, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([nn.functional.pad(dense, (-1, 0)), self.table(sparse)], dim=1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in `run`."""
    made = tmp_path_factory.mktemp("odd")
    inputs = {"dense": torch.zeros(4, 13), "sparse": torch.zeros(4, 26, dtype=torch.int64)}
    trained(htrain.compile(Odd(), example_inputs=inputs, cluster=this_machine(sparse_ps=1)), DATA, made)
    return made


def test_what_was_written_is_said_as_text_or_json(commands: Commands, folder: Path) -> None:
    done = commands.run(["predict", "run", "--data", DATA, "--out", "s.npy", "--json"], folder, timeout=60)
    said = json.loads(done.stdout)
    assert said["path"] == "s.npy"
    assert (said["examples"], said["scores"]) == (64, "probabilities")
    assert said["mean_score"] == pytest.approx(np.load(folder / "s.npy")["score"].mean(), rel=1e-5)
    done = commands.run(["export", "run", "--to", "torch", "--out", "m.safetensors"], folder, timeout=60)
    assert done.returncode == 0
    assert done.stdout == "m.safetensors: 3 weights and tables, 0.0 MB\n"
    assert done.stderr.startswith("note: load it with module.load_state_dict(")
    words = ["export", "run", "--to", "tables", "--out", "t", "--piece-rows", "8", "--format", "npy", "--json"]
    assert json.loads(commands.run(words, folder, timeout=60).stdout)["tensors"] == 3


ENDS = {
    "has no form in ONNX for dense: float32[B,13]": (["export", "run", "--to", "onnx", "--out", "m.onnx"], 1),
    "--piece-rows has no effect beside --to torch": (
        ["export", "run", "--to", "torch", "--out", "m.onnx", "--piece-rows", "3"],
        2,
    ),
    "nowhere: not a run folder": (["export", "nowhere", "--to", "torch", "--out", "m.onnx"], 1),
    "scores go to a file whose name ends in": (["predict", "run", "--data", DATA, "--out", "m.onnx"], 2),
    "--group-by': is empty, want the name of a column": (["eval", "run", "--data", DATA, "--group-by", ""], 2),
    "--publish': is empty, want a folder, or an address such as s3://": (
        ["run", "plan", "--data", DATA, "--out", "m.onnx", "--publish", ""],
        2,
    ),
    "Missing option '--to'": (["export", "run", "--out", "m.onnx"], 2),
}


@pytest.mark.parametrize("says", ENDS)
def test_a_refusal_is_one_line_and_leaves_nothing(says: str, commands: Commands, folder: Path) -> None:
    words, status = ENDS[says]
    done = commands.run(words, folder, timeout=60)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "m.onnx").exists()

"""Frappe, one epoch of Wide & Deep: a distributed run reaches what plain PyTorch reaches (acceptance of issue 2, line 2)."""

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from baseline import train_and_evaluate

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options

ROOT = Path(__file__).parents[2]
FRAPPE = ROOT.parent / "shared" / "data" / "frappe.libfm.gz"
MODEL = str(ROOT / "models" / "wide_deep.py")

pytestmark = pytest.mark.skipif(not FRAPPE.is_file(), reason="the Frappe data is not beside the repository")


@pytest.fixture(scope="module")
def frappe(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Train and test URIs: rows shuffled with seed 0, split 80/20."""
    folder = tmp_path_factory.mktemp("frappe")
    rows = gzip.decompress(FRAPPE.read_bytes()).splitlines(keepends=True)
    random.Random(0).shuffle(rows)
    cut = len(rows) * 8 // 10
    (folder / "train.libfm").write_bytes(b"".join(rows[:cut]))
    (folder / "test.libfm").write_bytes(b"".join(rows[cut:]))
    return tuple(f"libfm:{folder}/{part}.libfm?rows=5382" for part in ("train", "test"))  # type: ignore[return-value]


def test_two_groups_of_two_trainers_reach_the_auc_of_plain_pytorch(frappe: tuple[str, str], tmp_path: Path) -> None:
    train, test = frappe
    torch.set_num_threads(1)
    plain = train_and_evaluate(MODEL, train, test, Options())
    cluster = this_machine(groups=2, trainers=2, group_ps=1, sparse_ps=1)
    htrain.compile(MODEL, data=train, cluster=cluster, options=Options(net_replicas=2)).save(tmp_path / "plan")
    result = htrain.run(tmp_path / "plan", data=train, out=tmp_path / "run")
    found = htrain.evaluate(tmp_path / "run", data=test)
    print(f"plain PyTorch AUC {plain.auc:.4f} NE {plain.ne:.4f}; htrain AUC {found.auc:.4f} NE {found.ne:.4f}")
    assert result.totals.examples == 46_177
    assert result.totals.max_staleness <= 4
    assert found.auc >= 0.915
    assert found.auc >= plain.auc - 0.005


def test_a_loop_that_imports_the_client_alone_reaches_the_auc_of_plain_pytorch() -> None:
    command = [
        sys.executable,
        str(ROOT / "tools" / "client_frappe.py"),
        "--frappe",
        str(FRAPPE),
        "--seeds",
        "1",
        "--only",
        "sgd:100",
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert found["client"] >= found["torch"] - 0.002
    assert found["hits"] > 0.5

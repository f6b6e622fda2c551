"""Batch norms under HET-GMP: a partition sorts samples, and what is evaluated, exported and begun with has seen those of all workers."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from gmp_data import BATCH, Parts, divided
from joint import shard_of
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import htrain
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

SCHEMA = (
    "label: y\ninputs:\n  dense: {kind: dense, columns: [x]}\n  sparse: {kind: ids, columns: [a, d], rows: [40, 40]}\n"
)
WORKERS = 2
MOMENTUM = 0.1


class Markets(nn.Module):
    """Its norm reads what no step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Embedding(40, 4), nn.BatchNorm1d(1, momentum=MOMENTUM)
        self.d, self.top = nn.Embedding(40, 4), nn.Linear(9, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([self.norm(dense), self.a(sparse[:, 0]), self.d(sparse[:, 1])], 1))[:, 0]


def two_markets(folder: Path, count: int) -> str:
    """Examples of two markets, which have no ids in common, and another x each: -5 or 5, give or take 1."""
    random = np.random.default_rng(0)
    (folder / "s.yaml").write_text(SCHEMA)
    lines = ["y,x,a,d"]
    for _ in range(count):
        market = int(random.integers(2))
        x = 10 * market - 5 + random.normal()
        a, d = 20 * market + random.integers(20, size=2)
        lines.append(f"{int(random.random() < 1 / (1 + np.exp(-x)))},{x:.4f},{a},{d}")
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    return f"csv:{folder}/a.csv?schema={folder}/s.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Parts]:
    """A folder with a plan and a run, and what was trained."""
    folder = tmp_path_factory.mktemp("markets")
    parts = divided(two_markets(folder, BATCH * 160), folder, WORKERS)
    options = with_flags(
        dense_sync="allreduce", sparse_sync="gmp", partition=str(parts.partition), batch_size=BATCH, dense_lr=0.05
    )
    torch.manual_seed(0)
    plan = htrain.compile(
        Markets(), example_inputs={"dense": torch.randn(4, 1), "sparse": torch.zeros(4, 2, dtype=torch.int64)},
        cluster=this_machine(groups=WORKERS, trainers=1, group_ps=0), options=options, self_check=False,
    )  # fmt: skip
    plan.save(folder / "plan")
    htrain.run(folder / "plan", data=parts.packed, out=folder / "run", hosting="threads")
    return folder, parts


def of_workers(parts: Parts) -> list[tuple[float, float]]:
    """The running mean and variance of each worker, as numpy makes them of its batches."""
    found = []
    for worker in range(WORKERS):
        mean, variance = 0.0, 1.0
        for batch in shard_of(parts.packed, BATCH, worker, WORKERS):
            x = batch["dense"].numpy().astype(np.float64)
            mean += MOMENTUM * (x.mean() - mean)
            variance += MOMENTUM * (x.var(ddof=1) - variance)
        found.append((mean, variance))
    return found


def test_statistics_are_those_of_the_examples_of_all_workers(run: tuple[Path, Parts]) -> None:
    """By the batches of each worker, and near those of all examples."""
    folder, parts = run
    htrain.export(folder / "run", to="torch", out=folder / "w.safetensors")
    weights = load_file(folder / "w.safetensors")
    (m, v), (n, w) = of_workers(parts)
    assert abs(m - n) > 9
    mean = (m + n) / 2
    assert weights["norm.running_mean"].item() == pytest.approx(mean, abs=1e-4)
    assert weights["norm.running_var"].item() == pytest.approx((v + w) / 2 + ((m - mean) ** 2 + (n - mean) ** 2) / 2, rel=1e-4)  # fmt: skip
    x = torch.cat([batch["dense"] for batch in shard_of(parts.source, BATCH, 0, 1)])
    assert weights["norm.running_mean"].item() == pytest.approx(x.mean().item(), abs=0.3)
    assert weights["norm.running_var"].item() == pytest.approx(x.var().item(), rel=0.05)
    for group, (of_mean, of_variance) in enumerate(((m, v), (n, w))):
        htrain.export(folder / "run", to="torch", out=folder / f"{group}.safetensors", replica=f"group:{group}")
        own = load_file(folder / f"{group}.safetensors")
        assert own["norm.running_mean"].item() == pytest.approx(of_mean, abs=1e-4)
        assert own["norm.running_var"].item() == pytest.approx(of_variance, rel=1e-4)


def test_what_is_evaluated_predicted_and_exported_is_normalized_by_them(run: tuple[Path, Parts]) -> None:
    folder, parts = run
    htrain.export(folder / "run", to="torch", out=folder / "w.safetensors")
    model = Markets()
    model.load_state_dict(load_file(folder / "w.safetensors"), strict=False)
    batches = shard_of(parts.source, BATCH, 0, 1)
    dense, sparse, label = (torch.cat([each[name] for each in batches]) for name in ("dense", "sparse", "label"))
    with torch.no_grad():
        logit = model.eval()(dense, sparse)
    seen = htrain.evaluate(folder / "run", data=parts.source)
    assert seen.log_loss == pytest.approx(F.binary_cross_entropy_with_logits(logit, label).item(), rel=1e-4)
    htrain.predict(folder / "run", data=parts.source, out=folder / "scores.npy")
    np.testing.assert_allclose(np.load(folder / "scores.npy")["score"], torch.sigmoid(logit), atol=1e-5)
    htrain.export(folder / "run", to="onnx", out=folder / "m.onnx")
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"))
    (score,) = session.run(["score"], {"dense": dense.numpy(), "sparse": sparse.numpy()})
    np.testing.assert_allclose(score.reshape(-1), torch.sigmoid(logit), atol=1e-5)


def test_another_number_of_workers_begins_with_them(run: tuple[Path, Parts], tmp_path: Path) -> None:
    """Though the plan be gone: the run folder says which variance belongs to which mean."""
    folder, _ = run
    htrain.export(folder / "run", to="torch", out=tmp_path / "w.safetensors")
    wanted = load_file(tmp_path / "w.safetensors")
    one = htrain.compile(
        Markets(), example_inputs={"dense": torch.randn(4, 1), "sparse": torch.zeros(4, 2, dtype=torch.int64)},
        cluster=this_machine(), options=with_flags(batch_size=BATCH, rate=(("norm.*", 0.0),)), self_check=False,
    )  # fmt: skip
    one.save(tmp_path / "one")
    (tmp_path / "few.csv").write_text("y,x,a,d\n1,5.0,3,3\n")  # a batch of one has no variance, and moves nothing
    few = f"csv:{tmp_path}/few.csv?schema={folder}/s.yaml"
    (folder / "plan").rename(folder / "gone")
    try:
        htrain.run(tmp_path / "one", data=few, out=tmp_path / "run", begin_with=folder / "run", hosting="threads")
    finally:
        (folder / "gone").rename(folder / "plan")
    htrain.export(tmp_path / "run", to="torch", out=tmp_path / "o.safetensors")
    found = load_file(tmp_path / "o.safetensors")
    for name in ("norm.running_mean", "norm.running_var", "norm.weight"):
        assert torch.equal(found[name], wanted[name]), name


def test_what_is_published_has_them(run: tuple[Path, Parts], tmp_path: Path) -> None:
    """As its last checkpoint has, in each of its versions whole."""
    folder, parts = run
    address = str(tmp_path / "models")
    htrain.run(folder / "plan", data=parts.packed, out=tmp_path / "run", hosting="threads", epochs=2, publish=address, publish_every=0.05)  # fmt: skip
    htrain.export(tmp_path / "run", to="torch", out=tmp_path / "w.safetensors")
    wanted, found = load_file(tmp_path / "w.safetensors"), htrain.Published(address)
    assert found.refresh()
    assert found.parameters.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found.parameters[name], value), name
    assert found.parameters["norm.running_var"].item() > 20

"""Models that do something else in evaluation than in training: scores, losses and what is exported are the module's own, in evaluation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from drawn_programs import DrawnModel, example
from safetensors.torch import load_file
from taken_out import inputs_of
from torch import nn
from torch.nn import functional as F

import htrain
from htrain.compiler.pipeline import compile_net
from htrain.data import CRITEO
from htrain.executor.launch.forward import evaluated_net
from htrain.net.net import Net
from htrain.net.placement import Split
from htrain.ops import OPS
from htrain.self_check.capture import capture_model
from htrain.spec.cluster import Cluster, this_machine
from htrain.spec.tree import with_flags

DATA = "synthetic:?rows=600&table_rows=40"


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.rare = nn.Embedding(40, 4), nn.Embedding(40, 1, padding_idx=3)
        self.first, self.norm = nn.Linear(13 + 26 * 4, 12), nn.BatchNorm1d(12)
        self.second, self.top = nn.Linear(12, 12), nn.Linear(12, 1)

    def hidden(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(torch.cat([dense, self.table(sparse).flatten(1)], 1))).relu()


class Paths(Base):
    """Residual branches are dropped for whole examples, as timm's DropPath does, and numbers by a mask of one's own; a probability in evaluation alone."""

    def drop_path(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return x * x.new_empty(x.shape[0], 1).bernoulli_(0.7) / 0.7

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.hidden(dense, sparse)
        x = x + self.drop_path(self.second(x))
        x = x * (torch.rand_like(x) > 0.2) / 0.8 if self.training else x
        logit = (self.top(x) + self.rare(sparse).sum(1))[:, 0]
        return logit if self.training else torch.sigmoid(logit)


class Smoothed(Base):
    """Draws nothing: another temperature, and another way, in evaluation, where it leaves a layer out; a head of evaluation alone."""

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> Any:
        x = self.hidden(dense, sparse)
        if self.training:
            return self.top(x + 0.5 * self.second(x))[:, 0] + self.rare(sparse[:, :3]).sum((1, 2))
        return {"logit": 1.5 * self.top(x)[:, 0], "vector": self.table(sparse[:, 0])}


class OwnLoss(Base):
    """A loss with a label in training, scores alone in evaluation."""

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor, label: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.hidden(dense, sparse)
        score = self.top(self.second(x))[:, 0] + self.rare(sparse).sum((1, 2))
        if not self.training:
            return {"score": 2 * score.sigmoid()}
        noise = torch.zeros_like(score).normal_(std=0.1)
        return {"loss": F.binary_cross_entropy_with_logits(score + noise, label), "score": score}


MODELS = {"paths": Paths, "smoothed": Smoothed, "own loss": OwnLoss}
CLUSTERS: dict[str, tuple[Cluster, dict[str, Any]]] = {
    "one trainer": (this_machine(groups=1, trainers=1, group_ps=0, sparse_ps=0, dense_ps=0), {}),
    "groups and shards": (this_machine(groups=2, trainers=2, group_ps=1, sparse_ps=2, dense_ps=1), {}),
    "a HET cache": (
        this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=2),
        {"dense_sync": "allreduce", "cache": "het"},
    ),
}


@pytest.mark.parametrize("cluster", [*CLUSTERS])
@pytest.mark.parametrize("model", [*MODELS])
def test_what_is_scored_and_exported_is_what_the_module_gives_in_evaluation(
    model: str, cluster: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module, inputs = MODELS[model](), inputs_of(DATA)
    of, flags = CLUSTERS[cluster]
    own = model == "own loss"
    taken = {name: value for name, value in inputs.items() if own or name != "label"}
    splits = {"table.weight": 2} if of.sparse_ps > 1 else {}
    plan = htrain.compile(
        module, example_inputs={name: value[:8] for name, value in taken.items()}, cluster=of, table_splits=splits,
        logit="score" if own else "", options=with_flags(batch_size=25, loss="own" if own else "bce", **flags),
    )  # fmt: skip
    assert plan.evaluation is not None
    assert any("something else in evaluation" in note for note in plan.notes)
    plan.save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=DATA, out=tmp_path / "run", hosting="threads", valid=DATA)

    htrain.export(tmp_path / "run", to="torch", out=tmp_path / "w.safetensors")
    module.load_state_dict(load_file(tmp_path / "w.safetensors"))
    assert not torch.equal(module.norm.running_mean, torch.zeros(12))
    with torch.no_grad():
        returned = module.eval()(**taken)
    wanted = returned if isinstance(returned, torch.Tensor) else returned["score" if own else "logit"]
    scores = wanted.sigmoid() if model == "smoothed" else wanted
    htrain.predict(tmp_path / "run", data=DATA, out=tmp_path / "scores.npy")
    found = np.load(tmp_path / "scores.npy")
    np.testing.assert_allclose(found["score"], scores.numpy(), atol=2e-6)
    if model == "smoothed":
        np.testing.assert_allclose(found["vector"], returned["vector"].numpy(), atol=1e-6)
    if not own:
        told = htrain.evaluate(tmp_path / "run", data=DATA)
        assert told.log_loss == pytest.approx(float(F.binary_cross_entropy(scores, inputs["label"])), rel=1e-4)

    htrain.export(tmp_path / "run", to="onnx", out=tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    given = {each.name: taken[each.name].numpy() for each in session.get_inputs()}
    np.testing.assert_allclose(session.run(["score"], given)[0], scores.numpy(), atol=1e-5)


def test_a_layer_that_is_cut_is_whole_in_evaluation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = Paths(), inputs_of(DATA)
    taken = {name: value for name, value in inputs.items() if name != "label"}
    for number, kind in enumerate(("vertical", "horizontal")):
        folder = tmp_path / kind
        plan = htrain.compile(
            module.train(), example_inputs={name: value[:8] for name, value in taken.items()},
            cluster=this_machine(groups=1, trainers=1, group_ps=2, sparse_ps=1), options=with_flags(batch_size=25),
            fc_splits={"first": Split(kind, 2)},
        )  # fmt: skip
        assert any(p.of == "first.weight" for p in plan.evaluation.parameters.values()), number
        plan.save(folder / "plan")
        htrain.run(folder / "plan", data=DATA, out=folder / "run", hosting="threads")
        htrain.export(folder / "run", to="torch", out=folder / "w.safetensors")
        module.load_state_dict(load_file(folder / "w.safetensors"))
        htrain.predict(folder / "run", data=DATA, out=folder / "scores.npy")
        with torch.no_grad():
            np.testing.assert_allclose(
                np.load(folder / "scores.npy")["score"], module.eval()(**taken).numpy(), atol=2e-6
            )


def net_of_parts(state: Mapping[str, torch.Tensor], net: Net) -> dict[str, torch.Tensor]:
    """What a net has of whole tables and weights."""
    parts = {}
    for name, p in net.parameters.items():
        part = state[p.whole]
        for axis, first in enumerate((p.first_row, p.first_column)[: len(p.shape)]):
            part = part.narrow(axis, first, p.shape[axis])
        parts[name] = part
    return parts


@pytest.mark.parametrize("seed", range(6))
def test_a_drawn_model_is_evaluated_as_by_pytorch(seed: int) -> None:
    """Of steps that may go by the mode, in plans of shards, parts and fusions."""
    module = DrawnModel(7000 + seed, 9)
    found = capture_model(module, schema=CRITEO, example_inputs=example(5), logit="", label="")
    options = with_flags(batch_size=8, sparse_optimizer="sgd")
    captured = found.checked(options)
    tables = [name for name, p in captured.net.parameters.items() if p.kind == "table"]
    cluster = this_machine(groups=1 + seed % 2, trainers=1, group_ps=seed % 3, sparse_ps=2)
    plan = compile_net(captured, cluster, options, name="m", solver="rules", table_splits=dict.fromkeys(tables, 3))
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d):
            nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.normal_(norm.running_mean)
    net, count = evaluated_net(plan), 11
    torch.manual_seed(seed)
    batch = example(count)
    known = {**net_of_parts(module.state_dict(), net), **batch, "label": torch.ones(count)}
    for op in net.ops:
        made = OPS[op.type].run(op, [known[name] for name in op.inputs], count)
        known.update(zip(op.outputs, made, strict=True))
    with torch.no_grad():
        wanted = module.eval()(**batch)
    torch.testing.assert_close(known[net.outputs[1]].reshape(-1), wanted, rtol=1e-4, atol=1e-5)

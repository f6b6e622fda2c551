"""What people write and few others do: models whose tables, ties, sizes and dtypes are odd train as PyTorch trains them, in one role and in several."""

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from harness import batches_of, relative_differences, run_roles, sparse_and_dense_steps
from joint import joint_losses, joint_losses_of
from torch import nn
from torch.nn import functional as F

from htrain.compiler.pipeline import compile_net
from htrain.data import click_schema
from htrain.executor.settings import RunSettings
from htrain.frontend.captured import Captured
from htrain.frontend.load import example_batch
from htrain.frontend.torch_model import capture
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

STEPS, BATCH, ROWS = 12, 8, 40
CLICKS = f"synthetic:?rows={STEPS * BATCH - 5}&table_rows={ROWS}&communities=4"  # the last batch is smaller
INPUTS = {
    name: value
    for name, value in example_batch(click_schema(13, (ROWS,) * 26), 6).items()
    if name in ("dense", "sparse")
}


class Odd(nn.Module):
    """Two tables, one of zeros as biases are; FCs, norms, and weights of which two are added to each other."""

    def __init__(self, score: "Score") -> None:
        super().__init__()
        self.score = score
        self.e, self.zeros = nn.Embedding(ROWS, 4), nn.Embedding(ROWS, 1)
        self.l, self.pair = nn.Linear(4, 1), nn.Linear(8, 1)
        self.tower = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
        self.a, self.b = nn.Parameter(torch.full((4,), 0.3)), nn.Parameter(torch.zeros(4))
        self.like = nn.Parameter(torch.full((ROWS, 4), 0.1))
        self.wide = nn.Parameter(torch.full((4,), 0.2, dtype=torch.float64))
        nn.init.zeros_(self.zeros.weight)
        self.frozen = nn.BatchNorm1d(4).eval()
        for buffer in (self.frozen.running_mean, self.frozen.running_var):
            assert buffer is not None
            buffer.uniform_(0.5, 2.0)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """dense[B,13], sparse[B,26]."""
        return self.score(self, dense, sparse)


Score = Callable[[Odd, torch.Tensor, torch.Tensor], torch.Tensor]
MODELS: dict[str, Score] = {
    "rows of a table stacked": lambda m, x, c: m.pair(torch.stack([m.e(c[:, 0]), m.e(c[:, 1])], 1).flatten(1)).squeeze(
        1
    ),
    "rows stacked twice": lambda m, x, c: (
        m.pair(torch.stack([m.e(c[:, 0])] * 2, 1).flatten(1)).squeeze(1) + m.l(m.e(c[:, 3])).squeeze(1)
    ),
    "the largest of equal ones": lambda m, x, c: (m.zeros(c[:, :5]).squeeze(2) + m.a[0]).max(1)[0],
    "the smallest of equal ones": lambda m, x, c: (m.zeros(c[:, :5]).squeeze(2) * m.a[1]).min(1).values,
    "the largest of them, shared": lambda m, x, c: (m.zeros(c[:, :5]).squeeze(2) + m.a[0]).amax(1),
    "clamped at its bound": lambda m, x, c: (
        m.zeros(c[:, :5]).squeeze(2).clamp(min=torch.zeros(5)) + m.a[0].clamp(min=0.3, max=0.9)
    ).sum(1),
    "clamped by weights": lambda m, x, c: (
        (m.e(c[:, 0]) * m.l.weight).clamp(min=m.b - 0.2, max=m.a).sum(1) + m.e(c[:, 1]).clamp(max=m.a).sum(1)
    ),
    "ids of int32": lambda m, x, c: m.l(m.e(c[:, 0].int())).squeeze(1),
    "divided by float64": lambda m, x, c: (m.e(c[:, :3]) / (c[:, :3].double().unsqueeze(2) + 4)).sum((1, 2)).float(),
    "a weight of float64": lambda m, x, c: (m.e(c[:, 0]) * m.wide).sum(1).float(),
    "divided by the batch": lambda m, x, c: (
        m.l(m.e(c[:, 0])).squeeze(1) / len(c) + m.e(c[:, 1]).sum() / c.shape[0] + m.a.sum() * x.size(0) / x.numel()
    ),
    "two weights of one gradient": lambda m, x, c: (m.e(c[:, :3]).sum(1) * (m.a + m.b)).sum(1),
    "a weight by itself": lambda m, x, c: m.e(c[:, 0]) @ F.linear(m.l.weight, m.l.weight).sum(1).expand(4),
    "one tower for two": lambda m, x, c: (m.tower(m.e(c[:, 0])) * m.tower(m.e(c[:, 1]))).sum(1),
    "a frozen norm": lambda m, x, c: (
        m.frozen(m.e(c[:, 0])).sum(1) + m.frozen(m.e(c[:, :3]).transpose(1, 2)).sum((1, 2))
    ),
    "a norm with a bias alone": lambda m, x, c: F.layer_norm(m.e(c[:, 0]), (4,), None, m.b).pow(3).sum(1),
    "an empty sequence": lambda m, x, c: (
        (m.e(c[:, :4]) * (c[:, :4] > 30).unsqueeze(2)).sum(1) / (c[:, :4] > 30).sum(1, keepdim=True).clamp(min=1)
    ).sum(1),
}
OPTIONS = {
    "sgd": with_flags(batch_size=BATCH, net_replicas=1, dense_optimizer="sgd", sparse_optimizer="sgd", dense_lr=0.05, sparse_lr=0.1),
    "adam": with_flags(batch_size=BATCH, net_replicas=1, dense_optimizer="adam", sparse_optimizer="adagrad", dense_lr=0.01, sparse_lr=0.05),
    "clipped": with_flags(
        batch_size=BATCH, net_replicas=1, dense_optimizer="sgd", sparse_optimizer="sgd", dense_lr=0.05, sparse_lr=0.1, dense_clip="global_norm",
        dense_clip_max_norm=0.01,
    ),
}  # fmt: skip


def losses_of_torch(model: nn.Module, options: Options) -> list[float]:
    steps, losses = sparse_and_dense_steps(model, options), []
    for batch in batches_of(CLICKS, BATCH):
        loss = F.binary_cross_entropy_with_logits(model(batch["dense"], batch["sparse"]), batch["label"])
        model.zero_grad()
        loss.backward()
        if options.dense_clip.kind == "global_norm":
            weights = [p for name, p in model.named_parameters() if not name.startswith(("e.", "zeros."))]
            nn.utils.clip_grad_norm_(weights, options.dense_clip.max_norm)
        for step in steps:
            step.step()
        losses.append(loss.item())
    return losses


@cache
def captured_model(name: str) -> tuple[Odd, Captured]:
    """One of MODELS, and its capture, for all optimizers; what is trained is a copy."""
    model = Odd(MODELS[name])
    return model, capture(model, INPUTS)


@pytest.mark.parametrize("optimizer", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_it_trains_as_pytorch_does(name: str, optimizer: str, tmp_path: Path) -> None:
    options = OPTIONS[optimizer]
    model, captured = captured_model(name)
    reference = copy.deepcopy(model)
    wanted = losses_of_torch(reference, options)
    for place, (group_ps, sparse_ps) in {"alone": (0, 0), "roles": (1, 1)}.items():
        together = options.dense_clip.kind == "global_norm"  # wants all weights in one place
        cluster = this_machine(group_ps=0 if together else group_ps, sparse_ps=sparse_ps)
        plan = compile_net(captured, cluster, options, name="odd", solver="rules")
        folder = tmp_path / place
        settings = RunSettings(folder, CLICKS, folder / "run", deterministic=True, deadline_seconds=20)
        roles = run_roles(plan, folder, settings)
        trainer = roles["trainer:0:0"].trainer
        assert trainer
        assert max(relative_differences(trainer.losses, wanted)) <= 1e-5, place
        held = {n: v for role in roles.values() for n, v in role.store.items() if n.startswith("tower.1.running")}
        for statistic, value in held.items():
            torch.testing.assert_close(value, reference.get_buffer(statistic), rtol=1e-4, atol=1e-6)
        assert bool(held) == (name == "one tower for two")


def test_a_weight_and_a_table_of_one_gradient_step_together(tmp_path: Path) -> None:
    """Of two trainers, whose sums are exchanged."""
    options = with_flags(
        batch_size=BATCH, net_replicas=1, dense_sync="allreduce", sparse_sync="allgather", dense_optimizer="sgd", sparse_optimizer="sgd", dense_lr=0.5,
        sparse_lr=0.5,
    )  # fmt: skip
    model = Odd(lambda m, x, c: (m.e(c[:, 0]) @ (m.like + m.e.weight).t()).sum(1))
    cluster = this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=0, dense_ps=0)
    plan = compile_net(capture(model, INPUTS), cluster, options, name="odd", solver="rules")
    settings = RunSettings(tmp_path, CLICKS, tmp_path / "run", deterministic=True, deadline_seconds=20)
    wanted, _ = joint_losses(model, CLICKS, options, 2)
    assert max(relative_differences(joint_losses_of(run_roles(plan, tmp_path, settings), 2), wanted)) <= 1e-5

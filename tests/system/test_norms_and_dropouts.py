"""Models with batch norms and dropouts train as PyTorch trains them, wherever their ops are placed (docs/how-to/your-own-model.md)."""

import copy
import hashlib
from functools import cache
from pathlib import Path

import pytest
import torch
from harness import batches_of, relative_differences, run_roles, sparse_and_dense_steps, stepped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joint import shard_of
from torch import nn

import htrain
from htrain.compiler.pipeline import compile_net
from htrain.data import START, Malformed, click_schema, open_data
from htrain.executor.launch.forward import forward_net, load_trained
from htrain.executor.settings import RunSettings
from htrain.frontend.captured import Captured
from htrain.frontend.load import example_batch
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.ops.dropout_loops import kept
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags
from tests.system.test_equivalence import scatter

STEPS, BATCH, ROWS = 25, 16, 40
CLICKS = f"synthetic:?rows={STEPS * BATCH}&table_rows={ROWS}&communities=4"
INPUTS = {
    name: value
    for name, value in example_batch(click_schema(13, (ROWS,) * 26), 6).items()
    if name in ("dense", "sparse")
}


class Normed(nn.Module):
    """What people write: norms of inputs, between FCs and over sequences; one without weights, one without running statistics, one of chunks."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 8)
        self.inputs = nn.BatchNorm1d(13)
        self.first = nn.Linear(13, 12)
        self.norm = nn.BatchNorm1d(12, momentum=0.3)
        self.drop = nn.Dropout(p)
        self.fields = nn.BatchNorm1d(8, eps=1e-3)  # of [B,C,L]
        self.second = nn.Linear(20, 8)
        self.plain = nn.BatchNorm1d(8, affine=False)
        self.own = nn.BatchNorm1d(8, track_running_stats=False)
        self.ghost = nn.BatchNorm1d(8, momentum=0.2)
        self.last_drop = nn.Dropout(p)
        self.top = nn.Linear(8, 1)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0.3, 0.4)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """dense[B,13], sparse[B,26]."""
        x = self.drop(torch.relu(self.norm(self.first(self.inputs(dense)))))
        seen = self.fields(self.table(sparse[:, :5]).transpose(1, 2)).mean(2)
        x = self.own(torch.tanh(self.plain(self.second(torch.cat([x, seen], 1)))))
        x = torch.cat([self.ghost(part) for part in torch.tanh(x).split(6)])
        return self.top(self.last_drop(x)).squeeze(1)


class Drawn(nn.Module):
    """A dropout that drops what htrain's does, of the batch whose key it has."""

    def __init__(self, p: float, blob: str, seed: int) -> None:
        super().__init__()
        digest = hashlib.blake2b(f"{seed}:{blob}".encode(), digest_size=7).digest()
        self.p, self.seed, self.key = p, int.from_bytes(digest, "big"), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.from_numpy(kept(x.numel(), self.seed, self.key, self.p)).view(x.shape)
        return x * mask / (1 - self.p) if self.p < 1 else x * 0


@cache
def captured(p: float) -> tuple[Normed, Captured]:
    """What is trained is a copy of it."""
    torch.manual_seed(0)
    model = Normed(p)
    return model, capture(model, INPUTS)


def drawing_as(model: nn.Module, net: Net, p: float, seed: int) -> nn.Module:
    """A copy of `model` whose dropouts draw as those of `net` do."""
    model = copy.deepcopy(model)
    for op in net.ops:
        if op.type == "Dropout":
            setattr(model, op.module, Drawn(p, op.outputs[0], seed))
    return model


def trained_by_torch(model: nn.Module, data: str, options: Options) -> list[float]:
    """The losses of every step; `model` is what they leave."""
    steps = sparse_and_dense_steps(model, options)
    keys = [
        batch.position.key
        for batch in open_data(data).batches(
            batch_size=options.batch_size, shard=0, num_shards=1, epochs=1, start=START, malformed=Malformed()
        )
    ]
    losses = []
    for key, batch in zip(keys, batches_of(data, options.batch_size), strict=True):
        for module in model.modules():
            if isinstance(module, Drawn):
                module.key = key
        logit = model(batch["dense"], batch["sparse"])
        loss = nn.functional.binary_cross_entropy_with_logits(logit, batch["label"])
        losses.append(stepped(model, loss, steps))
    return losses


def trained(plan: Plan, folder: Path, data: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses of every step, and all parameters afterwards."""
    roles = run_roles(plan, folder, RunSettings(folder, data, folder / "run", deterministic=True, deadline_seconds=20))
    trainer = roles["trainer:0:0"].trainer
    assert trainer
    held = {name: value for role in roles.values() for name, value in role.store.items()}
    return trainer.losses, {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    p=st.sampled_from([0.0, 0.3, 1.0]),
    group_ps=st.integers(0, 3),
    sparse_ps=st.integers(0, 2),
    seed=st.integers(0, 1 << 30),
    dense=st.sampled_from(["sgd", "adam"]),
)
def test_any_placement_follows_pytorch_and_leaves_its_statistics(
    p: float, group_ps: int, sparse_ps: int, seed: int, dense: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model, found = captured(p)
    options = with_flags(
        batch_size=BATCH, net_replicas=1, dense_optimizer=dense, sparse_optimizer="sgd", dense_lr=0.01, sparse_lr=0.05, seed=seed % 1000,
    )  # fmt: skip
    cluster, tagger = this_machine(group_ps=group_ps, sparse_ps=sparse_ps), scatter(seed, trainer_may_hold_weights=True)
    plan = compile_net(found, cluster, options, name="normed", tagger=tagger, solver="rules")
    losses, held = trained(plan, tmp_path_factory.mktemp("plan") / "plan", CLICKS)
    reference = drawing_as(model, found.net, p, seed % 1000)
    wanted = trained_by_torch(reference, CLICKS, options)
    assert max(relative_differences(losses, wanted)) <= 1e-4
    statistics = {n: b for n, b in reference.named_buffers() if not n.endswith("num_batches_tracked")}
    assert set(statistics) == {n for n, q in plan.train.parameters.items() if q.kind == "statistic"}
    for name, value in statistics.items():
        if dense == "adam" and name.endswith("mean"):
            continue  # a norm cancels the bias before it, whose gradient is rounding alone; Adam makes steps of it
        torch.testing.assert_close(held[name], value, rtol=1e-4, atol=1e-5)
    assert any(op.type == "Dropout" for op in plan.train.ops) == (p > 0)
    in_evaluation = {op.type for op in forward_net(plan.train).ops}
    assert not in_evaluation & {"Dropout"}
    assert "BatchNormalization" in in_evaluation


@pytest.mark.parametrize("cache", ["none", "het", "lookahead"])
def test_trainers_in_lockstep_whose_data_ends_apart_and_caches_have_norms_and_dropouts_too(
    cache: str, tmp_path: Path
) -> None:
    _, found = captured(0.3)
    data = f"synthetic:?rows={9 * BATCH + 5}&table_rows={ROWS}&communities=4"
    options = with_flags(batch_size=BATCH, net_replicas=1, dense_sync="allreduce", dense_lr=0.01, sparse_lr=0.05)
    if cache != "none":
        options = with_flags(options, cache=cache)
    cluster = this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=1)
    compile_net(found, cluster, options, name="normed", solver="rules").save(tmp_path / "plan")
    result = htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads")
    assert result.totals.examples == 9 * BATCH + 5
    seen = htrain.evaluate(tmp_path / "run", data=data)
    assert 0.3 < seen.log_loss < 3


def test_groups_average_their_statistics(tmp_path: Path) -> None:
    _, found = captured(0.0)
    options = with_flags(
        batch_size=BATCH, net_replicas=1, dense_sync="model_averaging", sync_period=1, dense_lr=1e-6, sparse_lr=1e-6
    )
    cluster = this_machine(groups=2, trainers=1, group_ps=1, sparse_ps=1)
    plan = compile_net(found, cluster, options, name="normed", solver="rules")
    assert {"inputs.running_mean", "norm.running_var", "plain.running_var"} <= plan.centers.keys()
    plan.save(tmp_path / "plan")
    data = CLICKS.replace(f"rows={STEPS * BATCH}", f"rows={8 * STEPS * BATCH}")
    htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads")
    seen = torch.cat([batch["dense"] for batch in batches_of(data, BATCH)])
    held = load_trained(tmp_path / "plan", tmp_path / "run", "center").parameters(forward_net(plan.train))
    torch.testing.assert_close(held["inputs.running_mean"], seen.mean(0), rtol=0.3, atol=0.2)
    torch.testing.assert_close(held["inputs.running_var"], seen.var(0), rtol=0.5, atol=0.2)


def test_trainers_in_lockstep_have_statistics_of_the_examples_of_all(tmp_path: Path) -> None:
    """Beside PyTorch's, of the batches of each trainer."""
    _, found = captured(0.0)
    options = with_flags(batch_size=BATCH, net_replicas=1, dense_sync="allreduce", dense_lr=0.01, sparse_lr=0.05)
    cluster = this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=1)
    plan = compile_net(found, cluster, options, name="normed", solver="rules")
    plan.save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=CLICKS, out=tmp_path / "run", hosting="threads")
    norms = [nn.BatchNorm1d(13), nn.BatchNorm1d(13)]
    for number, norm in enumerate(norms):
        for batch in shard_of(CLICKS, BATCH, number, 2):
            norm(batch["dense"])
    means, variances = (torch.stack([getattr(n, f"running_{what}") for n in norms]) for what in ("mean", "var"))
    assert not torch.allclose(means[0], means[1])
    for replica in ("center", "group:0", "group:1"):
        held = load_trained(tmp_path / "plan", tmp_path / "run", replica).parameters(forward_net(plan.train))
        of = slice(None) if replica == "center" else slice(int(replica[-1]), int(replica[-1]) + 1)
        torch.testing.assert_close(held["inputs.running_mean"], means[of].mean(0))
        variance = variances[of].mean(0) + means[of].var(0, correction=0)
        torch.testing.assert_close(held["inputs.running_var"], variance, rtol=1e-5, atol=1e-5)


def test_two_dropouts_of_a_batch_drop_other_values_and_so_do_two_batches() -> None:
    masks = [kept(4001, seed, batch, 0.25) for seed in (1, 2) for batch in (0, 1, 1 << 40)]
    for place, one in enumerate(masks):
        assert abs(one.mean() - 0.75) < 0.03
        for other in masks[place + 1 :]:
            assert abs((one == other).mean() - (0.75**2 + 0.25**2)) < 0.05
    assert (kept(4001, 1, 0, 0.25) == masks[0]).all()
    assert kept(7, 1, 0, 0.0).all()
    assert not kept(7, 1, 0, 1.0).any()


class OfSmallValues(nn.Module):
    """A norm over what varies little, as embeddings do that begin near 0: its running variance, 1 at first, falls a long way."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.top = nn.BatchNorm1d(13), nn.Linear(13, 1)

    def forward(self, dense: torch.Tensor) -> torch.Tensor:
        """dense[B,13] -> logit[B]."""
        return self.top(self.norm(torch.tanh(dense) * 0.01)).squeeze(1)


@pytest.mark.parametrize("flags", [{"dense_sync": "bmuf"}, {"dense_sync": "model_averaging", "sync_dtype": "int8"}])
def test_rounds_of_groups_leave_a_running_variance_within_those_of_batches_and_its_first(
    flags: dict[str, str], tmp_path: Path
) -> None:
    """A running statistic is a mean of what batches had and of its first value; so are means of those of groups."""
    data = f"synthetic:?rows={60 * BATCH}&table_rows={ROWS}"
    found = capture(OfSmallValues(), {"dense": INPUTS["dense"]})
    options = with_flags(batch_size=BATCH, net_replicas=1, sync_period=4, sync_mode="fixed_rate", **flags)
    plan = compile_net(
        found, this_machine(groups=2, trainers=1, group_ps=0, sparse_ps=1, dense_ps=1), options, name="small"
    )
    roles = run_roles(plan, tmp_path / "plan", RunSettings(tmp_path / "plan", data, tmp_path / "run"))
    least = min(float((torch.tanh(batch["dense"]) * 0.01).var(0).min()) for batch in batches_of(data, BATCH))
    held = [role.store["norm.running_var"] for role in roles.values() if "norm.running_var" in role.store]
    assert len(held) == 3  # of two groups, and the centre
    assert all(float(variance.min()) >= 0.8 * least and float(variance.max()) < 0.3 for variance in held)

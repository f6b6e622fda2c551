"""Which tables of a trainer's net share what, where it computes on an accelerator. That the nets compute the same: tests/executor/host/test_accelerator.py."""

import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerators import DEVICES
from drawn_plans import write_visits
from harness import relative_differences, run_roles
from small_wide_deep import BATCH, model_of
from torch import nn

from htrain.compiler.pipeline import compile_net
from htrain.data import open_data
from htrain.executor.settings import RunSettings
from htrain.executor.strategies.lookahead.joint_tables import join_tables
from htrain.frontend.captured import Captured
from htrain.frontend.load import example_batch
from htrain.frontend.torch_model import capture
from htrain.net.net import Net
from htrain.ops.lookahead import apart
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

OF_EACH_TABLE = (
    "Dedupe", "LookaheadAnnounce", "LookaheadSlots", "Lookup", "TakeRows", "TakeRowsGradient", "PoolRows", "PoolRowsGradient",
    "StackRows", "StackRowsGradient", "FlushVictims",
)  # fmt: skip


def step_net(model: str, **flags: Any) -> Net:
    cluster = this_machine(trainers=1, group_ps=0, sparse_ps=1)
    options = with_flags(batch_size=BATCH, cache="lookahead", sparse_optimizer="sgd", **flags)
    return apart(compile_net(model_of(model)[1], cluster, options, name="m").net_of("trainer"))[0]


def types_of(net: Net) -> Counter[str]:
    return Counter(op.type for op in net.ops)


class Bags(nn.Module):
    """Two lists pooled each way, and rows that are taken alone, from tables of one width."""

    def __init__(self) -> None:
        super().__init__()
        self.means = nn.ModuleList(nn.EmbeddingBag(rows, 4, mode="mean", padding_idx=0) for rows in (60, 20))
        self.sums = nn.ModuleList(nn.EmbeddingBag(rows, 4, mode="sum") for rows in (60, 20))
        self.taken = nn.ModuleList(nn.Embedding(rows, 4, padding_idx=0) for rows in (60, 20))
        self.top = nn.Linear(4 * 6 + 3, 1)

    def forward(self, dense: torch.Tensor, target: torch.Tensor, history: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:  # fmt: skip
        """dense[B,3], target[B,1], history[B,15] and tags[B,4] padded with 0 -> logit[B,1]."""
        pooled = [bag(ids) for bags in (self.means, self.sums) for bag, ids in zip(bags, (history, tags), strict=True)]
        taken = [self.taken[0](target)[:, 0], self.taken[1](tags).sum(1)]
        return self.top(torch.cat([*pooled, *taken, dense], 1))


@cache
def captured_bags() -> Captured:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        batch = example_batch(open_data(write_visits(Path(folder), 20)).schema, 6)
    names = ("dense", "target", "history", "tags")
    return capture(Bags(), {name: batch[name] for name in names})


def plan_of_bags(device: str) -> Plan:
    cluster = this_machine(trainers=1, group_ps=0, sparse_ps=1)
    options = with_flags(batch_size=4, cache="lookahead", cache_device=device, cache_sets=5, cache_ways=3)  # type: ignore[arg-type]
    return compile_net(captured_bags(), cluster, options, name="bags")


@pytest.mark.parametrize("there", DEVICES)
def test_bags_of_a_kind_are_pooled_together_and_train_as_on_the_host(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("htrain.executor.host.accelerator.cuda_device", lambda turn: torch.device(there))
    losses = []
    for device in ("cpu", "cuda"):
        folder = tmp_path / device
        folder.mkdir()
        run = RunSettings(folder / "plan", write_visits(folder, 80), folder / "run", deadline_seconds=10)
        trainer = run_roles(plan_of_bags(device), folder / "plan", run)["trainer:0:0"].trainer
        assert trainer
        losses.append(trainer.losses)
    assert max(relative_differences(losses[1], losses[0])) < 1e-5
    types = types_of(join_tables(apart(plan_of_bags("cuda").net_of("trainer"))[0]))
    joint = {type: types[type] for type in ("PoolIndex", "PoolJoint", "PoolJointGradient", "TakeIndex", "TakeJoint")}
    assert joint == {"PoolIndex": 2, "PoolJoint": 2, "PoolJointGradient": 2, "TakeIndex": 1, "TakeJoint": 1}
    assert types["JointSlots"] == 3
    assert not types.keys() & set(OF_EACH_TABLE)


@pytest.mark.parametrize(("model", "widths"), [("dlrm.py", 1), ("wide_deep.py", 2), ("deepfm.py", 2), ("dcn.py", 1)])
def test_tables_of_a_width_share_all_that_is_done_with_their_rows(model: str, widths: int) -> None:
    types = types_of(join_tables(step_net(model)))
    assert not types.keys() & set(OF_EACH_TABLE)
    assert types["DedupeTables"] == types["JointAnnounce"] == 1
    for one in ("JointSlots", "JointLookup", "SparseSgd", "JointFlush"):
        assert types[one] == widths, one
    assert types["StackJoint"] == types["StackJointGradient"] == widths
    assert not types["JointSplit"]


def test_tables_that_are_stepped_otherwise_share_nothing_with_others() -> None:
    joined = join_tables(step_net("wide_deep.py", rate=(("*.C1.*", 0.1),)))
    rates = Counter(op.attrs["lr"] for op in joined.ops if op.type == "SparseSgd")
    tables = sorted(int(str(op.attrs["tables"])) for op in joined.ops if op.type == "JointSlots")
    assert sorted(rates.values()) == [2, 2]
    assert tables == [1, 1, 25, 25]


def test_ops_keep_the_order_of_what_they_read() -> None:
    net = join_tables(step_net("deepfm.py"))
    made = {*net.inputs, *net.parameters}
    for op in net.ops:
        assert made.issuperset(op.inputs), op
        made.update(op.outputs)


def test_a_net_without_caches_stays_as_it_is() -> None:
    cluster = this_machine(trainers=1, group_ps=0, sparse_ps=1)
    net = compile_net(model_of("dlrm.py")[1], cluster, with_flags(batch_size=BATCH), name="m").net_of("trainer")
    assert join_tables(net) is net

"""HET as whole runs: workers in lockstep by AllReduce, lookups through caches (HET 3)."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from harness import batches_of, relative_differences, run_roles, torch_losses
from joint import joint_losses, joint_losses_of, shard_of
from small_wide_deep import BATCH, DATA, ROWS, model_of
from torch import nn
from whole_runs import parameters

import htrain
from htrain.compiler.pipeline import compile_net
from htrain.executor.launch.role import RunningRole
from htrain.executor.settings import RunSettings
from htrain.frontend.torch_model import capture
from htrain.plan.plan import Plan
from htrain.spec.cluster import this_machine
from htrain.spec.tree import with_flags

CLUSTER = {"trainers": 1, "group_ps": 0}


def run(plan: Plan, folder: Path, data: str, *, deterministic: bool = False) -> dict[str, RunningRole]:
    settings = RunSettings(folder, data, folder / "run", deterministic=deterministic, deadline_seconds=20)
    return run_roles(plan, folder, settings)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize("name", ["wide_deep.py", "dlrm.py"])
def test_without_staleness_workers_train_as_one_on_their_joint_batches(
    name: str, optimizer: str, tmp_path: Path
) -> None:
    """Shards of different lengths, two sparse PSs, tables in row shards."""
    model, captured = model_of(name)
    data, workers = DATA, 3
    options = with_flags(
        batch_size=BATCH, dense_sync="allreduce", cache="het", cache_staleness=0, sparse_optimizer=optimizer,  # type: ignore[arg-type]
        sparse_lr=0.05, bucket_bytes=20_000,
    )  # fmt: skip
    splits = {table: 2 for table, p in captured.net.parameters.items() if p.kind == "table" and p.shape[1] > 1}
    cluster = this_machine(groups=workers, sparse_ps=2, **CLUSTER)
    plan = compile_net(captured, cluster, options, name="m", table_splits=splits)
    losses, _ = joint_losses(model, data, options, workers)
    roles = run(plan, tmp_path / "plan", data)
    assert max(relative_differences(joint_losses_of(roles, workers), losses)) < 1e-4


@pytest.mark.parametrize("tables", [{"sparse_sync": "allgather"}, {"cache": "het", "cache_staleness": 0}])
def test_rows_decay_by_the_mean_of_what_all_batches_say(tables: dict[str, object], tmp_path: Path) -> None:
    """A row that one worker of three asks for decays by a third of what one does that all ask for. The mean of dense gradients is clipped, too."""
    model, captured = model_of("wide_deep.py")
    options = with_flags(
        batch_size=BATCH, dense_sync="allreduce", sparse_optimizer="sgd", sparse_lr=0.05, sparse_lazy_weight_decay=1.0,
        dense_clip="global_norm", dense_clip_max_norm=0.1, **tables,  # type: ignore[arg-type]
    )  # fmt: skip
    plan = compile_net(captured, this_machine(groups=3, sparse_ps=1, **CLUSTER), options, name="m")
    losses, _ = joint_losses(model, DATA, options, 3)
    roles = run(plan, tmp_path / "plan", DATA)
    assert max(relative_differences(joint_losses_of(roles, 3), losses)) < 1e-4


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "ftrl"])
def test_allgather_trains_as_one_on_joint_batches(optimizer: str, tmp_path: Path) -> None:
    model, captured = model_of("wide_deep.py")
    data, workers = DATA, 3
    options = with_flags(
        batch_size=BATCH, dense_sync="allreduce", sparse_sync="allgather", sparse_optimizer=optimizer, sparse_lr=0.05,  # type: ignore[arg-type]
    )  # fmt: skip
    plan = compile_net(captured, this_machine(groups=workers, **CLUSTER), options, name="m")
    losses, trained = joint_losses(model, data, options, workers)
    roles = run(plan, tmp_path / "plan", data)
    assert max(relative_differences(joint_losses_of(roles, workers), losses)) < 1e-4
    # FTRL takes the difference of two roots that are almost equal: what rounding does to one depends on the processor
    near = {"rtol": 1e-2, "atol": 2e-4} if optimizer == "ftrl" else {"rtol": 1e-3, "atol": 1e-5}
    for name, tensor in trained.named_parameters():
        for worker in range(workers):
            torch.testing.assert_close(roles[f"trainer:{worker}:0"].store[name], tensor, **near)


@pytest.mark.parametrize(
    ("dense", "tables", "prefetch"),
    [
        ({"dense_optimizer": "adam"}, {"sparse_sync": "allgather", "sparse_optimizer": "sparse_adam"}, True),
        ({"dense_optimizer": "adamw", "dense_lr": 0.01}, {"cache": "het", "cache_staleness": 0}, True),
        ({"dense_optimizer": "sgd", "dense_momentum": 0.9}, {"cache": "het", "cache_staleness": 0}, False),
        ({"dense_optimizer": "adagrad", "dense_weight_decay": 0.1}, {"cache": "lookahead"}, True),
        ({"dense_optimizer": "adam", "dense_weight_decay": 0.01}, {"sparse_sync": "allgather"}, False),
    ],
)
def test_training_ends_with_the_last_examples_of_all_workers(
    dense: dict[str, object], tables: dict[str, object], prefetch: bool, tmp_path: Path
) -> None:
    """Not with a step of nobody's, along which momentum, decay and counts of updates would move weights; nor is there one where a run goes on and nothing is
    left to train."""
    model, captured = model_of("wide_deep.py")
    options = with_flags(
        batch_size=BATCH, dense_sync="allreduce", prefetch=prefetch, **{"sparse_optimizer": "sgd", **dense, **tables},  # type: ignore[arg-type]
    )  # fmt: skip
    plan = compile_net(captured, this_machine(groups=3, sparse_ps=1, **CLUSTER), options, name="m")
    data = DATA.replace(f"rows={BATCH * 50}", "rows=770")
    plan.save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=data, out=tmp_path / "run", hosting="threads")
    trained, shards = parameters(tmp_path / "run"), [shard_of(data, BATCH, worker, 3) for worker in range(3)]
    assert len({len(shard) for shard in shards}) > 1
    counts = {float(value) for name, value in trained.items() if name.endswith((":updates", ":step"))}
    assert counts <= {float(max(map(len, shards)))}
    _, wanted = joint_losses(model, data, options, 3)
    if options.cache.kind != "lookahead":  # whose replicas take the mean of what each has stepped by itself
        of_trainers = [name for name, _ in wanted.named_parameters() if f"trainer_1_0 {name}" in trained]
        assert of_trainers
        for name in of_trainers:
            seen = trained[f"trainer_1_0 {name}"]
            torch.testing.assert_close(seen, dict(wanted.named_parameters())[name].data, rtol=2e-3, atol=2e-5)
    htrain.run(tmp_path / "plan", data=data, resume=tmp_path / "run", hosting="threads")
    again = parameters(tmp_path / "run")
    assert again.keys() == trained.keys()
    assert all(torch.equal(again[name], value) for name, value in trained.items())


class Added(nn.Module):
    """Two weights that are added to each other, and so have one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 8)
        self.one, self.other = nn.Parameter(torch.linspace(-1, 1, 8)), nn.Parameter(torch.linspace(0.5, 0, 8))
        self.top = nn.Linear(8, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """sparse[B,26] -> logit[B,1]."""
        return self.top(self.table(sparse[:, 0]) * (self.one + self.other))


def test_a_gradient_that_two_weights_share_is_summed_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Added()
    options = with_flags(batch_size=BATCH, dense_sync="allreduce", cache="het", cache_staleness=0, bucket_bytes=1)
    found = capture(model, {"sparse": torch.zeros(6, 26, dtype=torch.int64)})
    plan = compile_net(found, this_machine(groups=2, sparse_ps=1, **CLUSTER), options, name="m")
    assert sum(op.type == "AllReduce" for op in plan.train.ops) == 3
    roles = run(plan, tmp_path / "plan", DATA)
    losses, trained = joint_losses(model, DATA, options, 2)
    assert max(relative_differences(joint_losses_of(roles, 2), losses)) < 1e-4
    for name in ("one", "other"):
        torch.testing.assert_close(roles["trainer:1:0"].store[name], dict(trained.named_parameters())[name].data)


@pytest.mark.parametrize(
    "tables", [{"sparse_sync": "allgather"}, {"cache": "het", "cache_staleness": 0}, {"cache": "lookahead"}]
)
def test_two_groups_that_step_together_repeat_bit_for_bit(tables: dict[str, object], tmp_path: Path) -> None:
    """Whoever comes first: a sum of two is the same in either order."""
    _, captured = model_of("wide_deep.py")
    options = with_flags(batch_size=BATCH, dense_sync="allreduce", **tables)  # type: ignore[arg-type]
    plan = compile_net(captured, this_machine(groups=2, sparse_ps=1, **CLUSTER), options, name="m")
    runs = [run(plan, tmp_path / name, DATA, deterministic=True) for name in ("first", "second")]
    first, second = [
        {f"{role}/{name}": tensor for role, each in roles.items() for name, tensor in each.store.items()}
        for roles in runs
    ]
    assert any(name.startswith("trainer:1:0/") for name in first)
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize(("dense_sync", "counts"), [("ps", {"group_ps": 2}), ("allreduce", {"group_ps": 0})])
def test_one_trainer_of_a_baseline_trains_as_pytorch(dense_sync: str, counts: dict[str, int], tmp_path: Path) -> None:
    """Weights fetched from group PSs for every step; and the hybrid of AllReduce and sparse PSs without a cache."""
    model, captured = model_of("wide_deep.py")
    options = with_flags(batch_size=BATCH, dense_sync=dense_sync, prefetch=False)  # type: ignore[arg-type]
    plan = compile_net(captured, this_machine(sparse_ps=2, **counts), options, name="m")
    trainer = run(plan, tmp_path / "plan", DATA, deterministic=True)["trainer:0:0"].trainer
    assert trainer
    assert max(relative_differences(trainer.losses, torch_losses(model, DATA, options))) < 1e-4


@pytest.mark.parametrize("staleness", [1, 5, "unbounded"])
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("policy", ["light-lfu", "lru"])
def test_a_lone_worker_behind_a_cache_trains_as_pytorch(
    policy: str, ahead: bool, staleness: int | str, tmp_path: Path
) -> None:
    """Also where it asks for rows a batch ahead: it reads its own updates. Rows of a table without a cache would miss one."""
    model, captured = model_of("wide_deep.py")
    options = with_flags(
        batch_size=BATCH, cache="het", cache_staleness=staleness, cache_capacity="30%", cache_policy=policy,  # type: ignore[arg-type]
        sparse_optimizer="sgd", sparse_lr=0.05, cache_table=(("*.C2.weight", "50%"), *(() if ahead else (("*.C1.weight", "none"),))),
    )  # fmt: skip
    plan = compile_net(captured, this_machine(sparse_ps=2, **CLUSTER), options, name="m")
    roles = run(plan, tmp_path / "plan", DATA, deterministic=not ahead)
    trainer = roles["trainer:0:0"].trainer
    assert trainer
    assert max(relative_differences(trainer.losses, torch_losses(model, DATA, options))) < 1e-4
    assert len(batches_of(DATA, BATCH)) == len(trainer.losses)


def test_dense_replicas_are_equal_to_the_last_bit_and_every_update_is_in_the_tables(tmp_path: Path) -> None:
    _, captured = model_of("wide_deep.py")
    data = f"synthetic:?rows={BATCH * 101}&table_rows={ROWS}&communities=4"
    options = with_flags(
        batch_size=BATCH, dense_sync="allreduce", cache="het", cache_staleness="unbounded", sparse_optimizer="sgd"
    )
    plan = compile_net(captured, this_machine(groups=4, sparse_ps=1, **CLUSTER), options, name="m")
    roles = run(plan, tmp_path / "plan", data)
    first, *others = (roles[f"trainer:{w}:0"].store for w in range(4))
    assert first
    assert all(torch.equal(tensor, other[name]) for other in others for name, tensor in first.items())
    assert all(cache.unsent == 0 for w in range(4) for cache in roles[f"trainer:{w}:0"].caches.values())


class Crossed(nn.Module):
    """Three tables behind each other, the first of fewer rows than the data says; the last is looked up by the first one's ids."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Embedding(36, 4), nn.Embedding(40, 4), nn.Embedding(40, 4)
        self.top = nn.Linear(12, 1)

    def forward(self, sparse: torch.Tensor) -> torch.Tensor:
        """sparse[B,2]: logit[B,1]."""
        return self.top(torch.cat([self.first(sparse[:, 0]), self.second(sparse[:, 1]), self.third(sparse[:, 0])], 1))


@pytest.mark.parametrize("cache", [htrain.HetCache("10", 3, window=64), htrain.HetCache("10", 0, window=1)])
def test_an_id_without_a_row_is_refused_and_trains_no_row_of_the_next_table(
    cache: htrain.HetCache, tmp_path: Path
) -> None:
    """It ran to its end, and trained another table's row, or for ever, where that table was asked for the row, too."""
    draw = np.random.default_rng(0)
    rows = pa.table({name: draw.integers(0, 40, 1000) for name in ("user", "item")} | {"click": [0, 1] * 500})
    schema = {"label": "click", "inputs": {"sparse": {"kind": "ids", "columns": ["user", "item"], "rows": 40}}}
    plan = htrain.compile(
        Crossed(),
        example_inputs={"sparse": torch.zeros(4, 2, dtype=torch.int64)},
        cluster=this_machine(groups=1, sparse_ps=2, **CLUSTER),
        options=htrain.Options(batch_size=32, cache=cache),
    )
    with pytest.raises(
        htrain.Error, match=r"trainer:0:0: id 3[6-9] at position \d+ is outside the table's rows \[0, 36\)"
    ):
        htrain.run(plan, data=rows, schema=schema, out=tmp_path / "run", hosting="threads", retries=0)

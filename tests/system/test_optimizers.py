"""Whole runs of one trainer step as torch.optim does, whatever the optimizer is told (docs/how-to/optimizers.md)."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import losses_of, relative_differences, torch_losses
from safetensors.torch import load_file
from torch import nn

import htrain
from htrain.compiler.pipeline import compile_net
from htrain.executor.record.checkpoint import latest_checkpoint
from htrain.frontend.captured import Captured
from htrain.frontend.torch_model import capture
from htrain.plan.plan import Plan
from htrain.plan.text import plan_text
from htrain.spec.cluster import this_machine
from htrain.spec.options import Options
from htrain.spec.tree import with_flags

STEPS, BATCH, ROWS = 50, 16, 20
DATA = f"synthetic:?rows={STEPS * BATCH}&table_rows={ROWS}"


class Small(nn.Module):
    """Two tables and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.EmbeddingBag(ROWS, 4, mode="sum"), nn.EmbeddingBag(ROWS, 4, mode="sum")
        self.hidden, self.top = nn.Linear(13 + 8, 6), nn.Linear(6, 1)

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        rows = [self.first(sparse[:, :1]), self.second(sparse[:, 1:2])]
        return self.top(self.hidden(torch.cat([dense, *rows], 1)).relu())[:, 0]


@cache
def small() -> tuple[Small, Captured]:
    torch.manual_seed(0)
    model = Small()
    return model, capture(model, {"dense": torch.rand(2, 13), "sparse": torch.randint(0, ROWS, (2, 26))})


def plan_of(cluster: dict[str, int], flags: dict[str, Any]) -> tuple[Plan, Options]:
    """A plan of the model, and its options; a table is in two parts where sparse PSs have it."""
    options = with_flags(batch_size=BATCH, net_replicas=1, fc_dtype="float32", dense_lr=0.01, sparse_lr=0.05, **flags)
    splits = {"first.weight": 2} if cluster.get("sparse_ps") else {}
    return compile_net(small()[1], this_machine(**cluster), options, name="small", table_splits=splits), options


def differences(folder: Path, cluster: dict[str, int], flags: dict[str, Any]) -> float:
    """The largest relative difference of a run's losses to PyTorch's."""
    plan, options = plan_of(cluster, flags)
    return max(relative_differences(losses_of(plan, folder / "plan", DATA), torch_losses(small()[0], DATA, options)))


ALONE, SERVED = {"group_ps": 0, "sparse_ps": 0}, {"group_ps": 2, "sparse_ps": 2}
FTRL = {"sparse_optimizer": "ftrl", "sparse_l1": 0.002, "sparse_l2": 0.1, "sparse_beta": 0.5}
LAZY = {"sparse_lazy_weight_decay": 0.1}
RUNS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "momentum": (
        ALONE,
        {"dense_optimizer": "sgd", "dense_momentum": 0.9, "dense_nesterov": True, "dense_weight_decay": 0.01},
    ),
    "adamw": (
        SERVED,
        {
            "dense_optimizer": "adamw",
            "dense_weight_decay": 0.1,
            "dense_clip": "norm",
            "dense_clip_max_norm": 0.05,
            "sparse_initial_accumulator": 0.1,
        },
    ),
    "adagrad": (
        ALONE,
        {
            "dense_initial_accumulator": 0.1,
            "dense_weight_decay": 0.01,
            "sparse_optimizer": "rowwise_adagrad",
            "sparse_initial_accumulator": 0.1,
        },
    ),
    "schedules": (
        SERVED,
        {
            "dense_schedule": "cosine",
            "dense_schedule_warmup": 5,
            "dense_schedule_decay": 30,
            "dense_schedule_share": 0.1,
            "sparse_schedule": "steps",
            "sparse_schedule_milestones": "10,20",
            "sparse_schedule_gamma": 0.5,
        },
    ),
    "adam of rows": (
        SERVED,
        {
            "dense_optimizer": "adam",
            "sparse_optimizer": "sparse_adam",
            "dense_schedule_warmup": 10,
            "sparse_schedule": "linear",
            "sparse_schedule_decay": 40,
        },
    ),
    "ftrl": (
        SERVED,
        {**FTRL, "dense_optimizer": "ftrl", "dense_l1": 0.001, "dense_beta": 0.5, "fuse_servers": False},
    ),
    "ftrl of tables that are served together": ({**SERVED, "sparse_ps": 1}, FTRL),
    "ftrl of tables in the trainer": (ALONE, FTRL),
    "ftrl behind het": (
        {**SERVED, "group_ps": 0},
        {**FTRL, "cache": "het", "cache_staleness": 0, "cache_capacity": "50%"},
    ),
    "ftrl behind lookahead": ({**SERVED, "group_ps": 0}, {**FTRL, "cache": "lookahead"}),
    "lazy decay of rows that are served": (SERVED, LAZY),
    "lazy decay in the trainer": (ALONE, {**LAZY, "sparse_optimizer": "sgd"}),
    "lazy decay behind het": (
        {**SERVED, "group_ps": 0},
        {**LAZY, "sparse_optimizer": "rowwise_adagrad", "cache": "het", "cache_staleness": 0, "cache_capacity": "50%"},
    ),
    "lazy decay behind lookahead": ({**SERVED, "group_ps": 0}, {**LAZY, "cache": "lookahead"}),
    "het": (
        {**SERVED, "group_ps": 0},
        {"cache": "het", "cache_staleness": 0, "cache_capacity": "50%", "sparse_initial_accumulator": 0.1},
    ),
    "lookahead": ({**SERVED, "group_ps": 0}, {"cache": "lookahead", "sparse_initial_accumulator": 0.1}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_one_trainer_steps_as_torch_does(name: str, tmp_path: Path) -> None:
    assert differences(tmp_path, *RUNS[name]) <= 1e-5


def saved(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a run's last checkpoint, by file and name."""
    folder, _ = latest_checkpoint(run)
    return {
        f"{path.name}/{name}": tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def test_a_run_that_is_resumed_ends_where_one_that_was_not_stopped_does(tmp_path: Path) -> None:
    """Rates change in both epochs: counts of updates, of every weight and every row range of a table, are in the checkpoint."""
    momentum = {"dense_optimizer": "sgd", "dense_momentum": 0.9, "dense_schedule": "cosine", "dense_schedule_decay": 80}
    plan, _ = plan_of(SERVED, {**momentum, "sparse_optimizer": "sparse_adam", "sparse_schedule": "linear", "sparse_schedule_decay": 90})  # fmt: skip
    plan.save(tmp_path / "plan")
    for out in ("whole", "stopped"):
        htrain.run(
            tmp_path / "plan", data=DATA, out=tmp_path / out, epochs=2 if out == "whole" else 1, hosting="threads", deterministic=True
        )  # fmt: skip
    htrain.run(
        tmp_path / "plan", data=DATA, resume=tmp_path / "stopped", epochs=2, hosting="threads", deterministic=True
    )
    whole, resumed = saved(tmp_path / "whole"), saved(tmp_path / "stopped")
    assert {int(tensor) for name, tensor in whole.items() if name.endswith(":updates")} == {2 * STEPS}
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_run_that_begins_with_another_on_another_cluster_goes_on_with_its_counts(tmp_path: Path) -> None:
    flags = {"dense_optimizer": "adamw", "dense_schedule": "cosine", "sparse_schedule": "linear"}
    for out, cluster, beginning in (("first", SERVED, {}), ("second", ALONE, {"begin_with": tmp_path / "first"})):
        plan_of(cluster, flags)[0].save(tmp_path / f"{out}.plan")
        htrain.run(
            tmp_path / f"{out}.plan", data=DATA, out=tmp_path / out, hosting="threads", deterministic=True, **beginning
        )
    counts = {
        int(tensor) for name, tensor in saved(tmp_path / "second").items() if name.endswith((":updates", ":step"))
    }
    assert counts == {2 * STEPS}


def test_weights_and_tables_count_the_batches_of_all_trainers_and_net_replicas(tmp_path: Path) -> None:
    """Two trainers with two net replicas each train 50 batches together, in any order: none is lost to the count."""
    options = with_flags(
        batch_size=BATCH, net_replicas=2, dense_schedule="cosine", dense_schedule_warmup=1000, sparse_schedule="linear"
    )
    cluster = this_machine(trainers=2, group_ps=1, sparse_ps=2)
    plan = compile_net(small()[1], cluster, options, name="small")
    wanted = "dense adagrad lr 0.005 (cosine after a warm-up of 1,000 updates), sparse adagrad lr 0.02 (linear)"
    assert wanted in plan_text(plan)
    plan.save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=DATA, out=tmp_path / "run", hosting="threads")
    counts = [int(tensor) for name, tensor in saved(tmp_path / "run").items() if name.endswith(":updates")]
    assert counts == [STEPS] * 6

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
from htrain.errors import UsageError
from htrain.executor.record.kept import latest_checkpoint
from htrain.frontend.captured import Captured
from htrain.frontend.torch_model import capture
from htrain.net.placement import Split
from htrain.plan.plan import Plan, load_plan
from htrain.plan.text import plan_text
from htrain.spec.cluster import this_machine
from htrain.spec.cluster_file import load_options
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
RATES = {"rate": (("hidden.*", 0.1), ("hidden.bias", 3.0), ("top.bias", 0.0), ("first.*", 0.5))}
TOGETHER = {"dense_clip": "global_norm", "dense_clip_max_norm": 0.02}
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
    "rowwise adam": (SERVED, {"sparse_optimizer": "rowwise_adam", "sparse_beta1": 0.8, "sparse_schedule": "cosine"}),
    "rowwise adam in the trainer": (ALONE, {"sparse_optimizer": "rowwise_adam", "sparse_beta2": 0.99}),
    "momentum of rows": (SERVED, {"sparse_optimizer": "lazy_momentum", "sparse_schedule_warmup": 9}),
    "momentum of rows in the trainer": (ALONE, {"sparse_optimizer": "lazy_momentum", "sparse_lazy_momentum": 0.5}),
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
    "rates of sgd in the trainer": (
        ALONE,
        {**RATES, "dense_optimizer": "sgd", "dense_momentum": 0.9, "sparse_optimizer": "sgd"},
    ),
    "rates of plain sgd in the trainer": (ALONE, {**RATES, "dense_optimizer": "sgd", "sparse_optimizer": "sgd"}),
    "rates of adamw that change": (
        SERVED,
        {
            **RATES,
            "dense_optimizer": "adamw",
            "dense_weight_decay": 0.1,
            "dense_schedule": "cosine",
            "dense_schedule_decay": 40,
            "sparse_schedule_warmup": 9,
        },
    ),
    "rates behind het": (
        {**SERVED, "group_ps": 0},
        {**RATES, "cache": "het", "cache_staleness": 0, "cache_capacity": "50%"},
    ),
    "rates behind lookahead": ({**SERVED, "group_ps": 0}, {**RATES, "cache": "lookahead"}),
    "clipped together": (
        {"group_ps": 0, "sparse_ps": 2},
        {**TOGETHER, "dense_optimizer": "sgd", "dense_weight_decay": 0.1, "rate": (("top.bias", 0.0),)},
    ),
    "clipped together and stepped plainly": (ALONE, {**TOGETHER, "dense_optimizer": "sgd"}),
    "het": (
        {**SERVED, "group_ps": 0},
        {"cache": "het", "cache_staleness": 0, "cache_capacity": "50%", "sparse_initial_accumulator": 0.1},
    ),
    "lookahead": ({**SERVED, "group_ps": 0}, {"cache": "lookahead", "sparse_initial_accumulator": 0.1}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_one_trainer_steps_as_torch_does(name: str, tmp_path: Path) -> None:
    assert differences(tmp_path, *RUNS[name]) <= 1e-5


def test_what_has_a_rate_of_0_stays_as_it_is_and_has_no_step(tmp_path: Path) -> None:
    flags = {"rate": (("*", 0.0), ("*.bias", 1.0), ("second.*", 1.0)), "sparse_lazy_weight_decay": 0.1}
    for place, cluster in (("alone", ALONE), ("served", SERVED)):
        plan, _ = plan_of(cluster, flags)
        parameters = plan.train.parameters
        assert {parameters[p.of].whole for p in parameters.values() if p.kind == "state"} == {
            "hidden.bias", "top.bias", "second.weight",
        }  # fmt: skip
        plan.save(tmp_path / f"{place}.plan")
        htrain.run(tmp_path / f"{place}.plan", data=DATA, out=tmp_path / place, hosting="threads", deterministic=True)
        after, before = saved(tmp_path / place), dict(small()[0].named_parameters())
        first = [tensor for name, tensor in sorted(after.items()) if "first.weight" in name]
        assert torch.equal(torch.cat(first), before["first.weight"])
        assert not any(torch.equal(tensor, before["top.bias"]) for name, tensor in after.items() if "/top.bias" in name)


def test_the_parts_of_an_fc_have_the_rate_of_the_whole() -> None:
    options, split = with_flags(dense_lr=0.5, rate=(("hidden.weight", 0.5),)), {"hidden": Split("horizontal", 2)}
    plan = compile_net(small()[1], this_machine(**SERVED), options, name="small", fc_splits=split)
    rates = {op.inputs[0]: op.attrs["lr"] for op in plan.train.ops if op.type == "Adagrad"}
    assert rates == {"hidden.weight/0": 0.25, "hidden.weight/1": 0.25, "hidden.bias": 0.5, "top.weight": 0.5, "top.bias": 0.5}  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "says"),
    [
        ((("hiden.weight", 0.1),), r"^--rate hiden.weight=0.1: no trained weight or table has that name; there are hidden.weight"),
        ((("*", 0.0),), "^--rate: all weights and tables have a rate of 0, so nothing would train: leave one out$"),
    ],
)  # fmt: skip
def test_rates_that_match_nothing_or_freeze_everything_are_refused(
    rates: tuple[tuple[str, float], ...], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        plan_of(ALONE, {"rate": rates})


def test_rates_are_said_alike_by_flags_by_files_and_by_python(tmp_path: Path) -> None:
    wanted = Options(rates=(("top.*", 0.1), ("first.weight", 0.0)))
    (tmp_path / "cluster.yaml").write_text("options:\n  rates: {top.*: 0.1, first.weight: 0}\n")
    assert load_options(tmp_path / "cluster.yaml") == wanted
    assert with_flags(rate=(("top.*", 0.1), ("first.weight", 0))) == wanted
    plan = compile_net(small()[1], this_machine(**ALONE), wanted, name="small")
    assert "sparse adagrad lr 0.02 (of it, top.*=0.1 first.weight=0), loss" in plan_text(plan)
    plan.save(tmp_path / "plan")
    assert load_plan(tmp_path / "plan").options.rates == wanted.rates


def saved(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a run's last checkpoint, by file and name."""
    folder, _ = latest_checkpoint(run)
    return {
        f"{path.name}/{name}": tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


_MOMENTUM = {"dense_optimizer": "sgd", "dense_momentum": 0.9, "dense_schedule": "cosine", "dense_schedule_decay": 80}
_LINEAR = {"sparse_schedule": "linear", "sparse_schedule_decay": 90}


@pytest.mark.parametrize(
    "flags",
    [
        {**_MOMENTUM, **_LINEAR, "sparse_optimizer": "sparse_adam"},
        {**_MOMENTUM, "sparse_optimizer": "rowwise_adam"},
        {**_MOMENTUM, **_LINEAR, "sparse_optimizer": "lazy_momentum"},
        {**FTRL, "dense_optimizer": "ftrl", "dense_l1": 0.001},
    ],
)
def test_a_run_that_is_resumed_ends_where_one_that_was_not_stopped_does(flags: dict[str, Any], tmp_path: Path) -> None:
    """Counts of updates, of every weight and every row range of a table, are in the checkpoint, and so are moments, momentum, and z and n of FTRL."""
    plan, _ = plan_of(SERVED, flags)
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

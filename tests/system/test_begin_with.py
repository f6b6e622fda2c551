"""A run that begins with another's checkpoint has its tables and optimizer states bit for bit, whatever cluster and cache either has."""

import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from checkpoints import part_of, whole_role
from safetensors.torch import load_file
from small_wide_deep import BATCH, DATA, ROWS, small_plan
from whole_runs import parameters

import htrain
from htrain.executor.launch.earlier import Earlier, beginning_of
from htrain.executor.record.kept import latest_checkpoint
from htrain.executor.record.run_folder import read_record
from htrain.net.net import Net, Parameter
from htrain.plan.plan import Plan
from htrain.spec.tree import with_flags

Counts = dict[str, int]
CACHES = {
    "none": {},
    "het": {"cache": "het", "cache_capacity": "20%", "cache_staleness": 5},
    "lookahead": {"cache": "lookahead"},
}
SERVERS: tuple[Counts, Counts] = {"sparse_ps": 1}, {"sparse_ps": 3}
WITHIN: tuple[Counts, Counts] = {"sparse_ps": 0}, {"sparse_ps": 2}
TRAINERS: tuple[Counts, Counts] = {"trainers": 1, "group_ps": 1}, {"trainers": 4, "group_ps": 1}
GROUPS: tuple[Counts, Counts] = {"groups": 1}, {"groups": 2}
RUNS = [
    *((*pair, "none", "none") for one, other in (SERVERS, TRAINERS, GROUPS) for pair in ((one, other), (other, one))),
    (*SERVERS, "het", "lookahead"),
    (*SERVERS[::-1], "lookahead", "het"),
    (*TRAINERS, "het", "none"),
    (*TRAINERS[::-1], "none", "het"),
    (*GROUPS, "lookahead", "het"),
    (*GROUPS[::-1], "het", "lookahead"),
    (*GROUPS[::-1], "lookahead", "none"),
    (*WITHIN, "none", "het"),
    (*WITHIN[::-1], "het", "none"),
]


BY_OPTIMIZER = [
    *((*run, "rowwise_adagrad") for run in RUNS),
    (*SERVERS, "het", "lookahead", "ftrl"),
    (*SERVERS, "none", "none", "rowwise_adam"),
    (*WITHIN[::-1], "het", "none", "ftrl"),
]


def plan_of(counts: Counts, kind: str, optimizer: str) -> Plan:
    """The plan with that kind of cache. Several cases have the same one: nobody changes it."""
    return _planned(tuple(counts.items()), kind, optimizer)


@cache
def _planned(counts: tuple[tuple[str, int], ...], kind: str, optimizer: str) -> Plan:
    flags = {
        "batch_size": BATCH,
        "net_replicas": 1,
        "sparse_optimizer": optimizer,
        "dense_optimizer": "adagrad",
    }
    if kind == "lookahead" and dict(counts).get("groups", 1) > 1:
        flags["dense_sync"] = "allreduce"
    options = with_flags(**flags, **CACHES[kind])  # type: ignore[arg-type]
    return small_plan(options, **dict(counts))[1]


def rows_of(net: Net, parameter: Parameter) -> Parameter | None:
    """The table that a parameter is, or is a state of."""
    owner = net.parameters.get(parameter.of, parameter) if parameter.kind == "state" else parameter
    return owner if owner.kind == "table" else None


def tables_in(plan: Plan, run: Path) -> dict[str, torch.Tensor]:
    """Whole tables and their states, put together from the files of a run's last checkpoint by what its plan says of each shard."""
    folder, _ = latest_checkpoint(run)
    wholes: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, values in load_file(file).items():
            parameter = plan.train.parameters.get(name)
            table = rows_of(plan.train, parameter) if parameter else None
            if parameter is None or table is None:
                continue
            whole = table.whole + name.removeprefix(table.name)
            if parameter.name.endswith((":step", ":updates")):
                wholes[whole] = values
                continue
            into = wholes.setdefault(whole, torch.full((ROWS, *values.shape[1:]), torch.nan))
            into[table.first_row : table.first_row + len(values)] = values
    return wholes


@pytest.mark.parametrize(("first", "second", "cache", "other", "optimizer"), BY_OPTIMIZER)
def test_tables_and_states_come_bit_for_bit_from_a_run_on_another_cluster(
    first: Counts, second: Counts, cache: str, other: str, optimizer: str, tmp_path: Path
) -> None:
    before, after = plan_of(first, cache, optimizer), plan_of(second, other, optimizer)
    for name, plan in (("before", before), ("after", after)):
        plan.save(tmp_path / name)
    alone = htrain.run(tmp_path / "before", data=DATA, out=tmp_path / "a", hosting="threads")
    wholes = tables_in(before, tmp_path / "a")
    assert not any(values.isnan().any() for values in wholes.values())
    earlier, compared = Earlier(beginning_of(tmp_path / "a")), set()
    for role in after.cluster.roles:
        parts = whole_role(after, role)
        parts.fill(tmp_path / "after")
        first_values = {name: values.clone() for name, values in parts.store.items()}
        parts.copy_from(earlier)
        for name, parameter in after.train.parameters.items():
            if name in parts.store and rows_of(after.train, parameter):
                assert torch.equal(parts.store[name], part_of(after, parameter, wholes)), (role, name)
                assert not torch.equal(parts.store[name], first_values[name]), (role, name)
                compared.add(name)
    assert compared == {name for name, p in after.train.parameters.items() if rows_of(after.train, p)}
    run = htrain.run(tmp_path / "after", data=DATA, out=tmp_path / "b", begin_with=tmp_path / "a", hosting="threads")
    assert run.totals.loss < alone.totals.loss


@pytest.mark.parametrize("through", ["dense_ps", "groups"])
@pytest.mark.parametrize("first", [1, 2])
def test_momentum_of_weights_is_not_that_of_their_centre(first: int, through: str, tmp_path: Path) -> None:
    """BMUF keeps one beside the centre, SGD one beside each group's weights; of a run that goes on in other groups the centre's begins anew. There is nothing
    left to train."""
    sgd = {"dense_optimizer": "sgd", "dense_momentum": 0.9, "dense_lr": 0.05, "batch_size": BATCH, "net_replicas": 1}
    for groups in (1, 2):
        rounds = {"dense_sync": "bmuf", "sync_period": 2, "sync_through": through} if groups == 2 else {}
        small_plan(with_flags(**sgd, **rounds), groups=groups, group_ps=1)[1].save(tmp_path / str(groups))
    htrain.run(tmp_path / str(first), data=DATA, out=tmp_path / "run", hosting="threads")
    trained = parameters(tmp_path / "run")
    htrain.run(tmp_path / str(3 - first), data=DATA, resume=tmp_path / "run", hosting="threads")
    gone_on = parameters(tmp_path / "run")
    holders = [f"group_ps_{group}_0" for group in range(3 - first)]
    compared = 0
    for role, name, values in (
        (*key.split(" "), values) for key, values in gone_on.items() if key.endswith(":momentum")
    ):
        if role in holders and ":centre" not in name:
            assert values.abs().max() > 0
            assert torch.equal(values, trained[f"group_ps_0_0 {name}"]), (role, name)
            compared += 1
        else:
            assert (values == 0).all(), (role, name)
    assert compared == len(holders) * sum(
        key.startswith("group_ps_0_0") and key.endswith(":momentum") and ":centre" not in key for key in trained
    )


def test_the_same_command_goes_on_when_the_run_that_it_began_with_is_gone(tmp_path: Path) -> None:
    plan_of({"sparse_ps": 1}, "none", "adagrad").save(tmp_path / "plan")
    htrain.run(tmp_path / "plan", data=DATA, out=tmp_path / "a", hosting="threads")
    again = {"data": DATA, "out": tmp_path / "b", "or_resume": True, "begin_with": tmp_path / "a", "hosting": "threads"}
    first = htrain.run(tmp_path / "plan", **again)  # type: ignore[arg-type]
    began_with = read_record(tmp_path / "b").begun_with
    shutil.rmtree(tmp_path / "a")
    second = htrain.run(tmp_path / "plan", **again, epochs=2)  # type: ignore[arg-type]
    assert [first.totals.examples, second.totals.examples] == [BATCH * 50, BATCH * 100]
    assert read_record(tmp_path / "b").begun_with == began_with != ""

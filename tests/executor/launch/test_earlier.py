"""A run that begins with another's checkpoint: every number is where the model has it, whatever the clusters are."""

import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import part_of, whole_role
from earlier_runs import checkpoint_of, planned, wholes_of
from hypothesis import given, settings
from hypothesis import strategies as st
from small_dlrm import small_dlrm

from htrain.errors import CheckpointError
from htrain.executor.launch.earlier import Beginning, Earlier, beginning_of
from htrain.net.placement import Split
from htrain.spec.tree import with_flags


@pytest.mark.parametrize(
    ("sync", "optimizer"), [("easgd", "adagrad"), ("bmuf", "adam"), ("allreduce", "adagrad"), ("easgd", "adamw")]
)
def test_every_weight_row_and_state_comes_to_any_other_cluster(sync: str, optimizer: str, tmp_path: Path) -> None:
    options = with_flags(batch_size=8, dense_sync=sync, dense_optimizer=optimizer)
    plain = {"group_ps": 0, "dense_ps": 0} if sync == "allreduce" else {"group_ps": 2, "dense_ps": 1}
    whole = planned(options, groups=2, trainers=1, sparse_ps=1, **plain)
    wholes = wholes_of(whole)
    cuts = [Split("vertical", 3), Split("horizontal", 2)]
    first, second = cuts if optimizer == "adagrad" else cuts[::-1]
    splits = {"hidden": first} if sync != "allreduce" else {}
    before = planned(options, groups=2, trainers=1, sparse_ps=2, tables=3, fcs=splits, **plain)
    after = planned(
        options,
        groups=3,
        trainers=1,
        sparse_ps=3,
        tables=2,
        fcs={"hidden": second} if splits else {},
        **plain,
    )
    checkpoint_of(before, wholes, tmp_path / "run")
    earlier = Earlier(beginning_of(tmp_path / "run"))
    earlier.require(after)
    after.save(tmp_path / "after")
    compared = set()
    for role in after.cluster.roles:
        parts = whole_role(after, role)
        parts.fill(tmp_path / "after")
        parts.copy_from(earlier)
        for name, parameter in after.train.parameters.items():
            if name in parts.store:
                compared.add(name)
                assert torch.equal(parts.store[name], part_of(after, parameter, wholes)), (role, name)
    assert compared == {name for name, p in after.train.parameters.items() if p.kind != "cache"}


DENSE = ("sgd", "adagrad", "adam", "adamw", "ftrl")
TABLES = ("sgd", "adagrad", "rowwise_adagrad", "sparse_adam", "rowwise_adam", "lazy_momentum", "ftrl")
MOMENTS = {"adam": "adam", "adamw": "adam"}  # what keeps the same beside a weight


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    dense=st.tuples(st.sampled_from(DENSE), st.sampled_from(DENSE)),
    sparse=st.tuples(st.sampled_from(TABLES), st.sampled_from(TABLES)),
    schedules=st.tuples(st.booleans(), st.booleans()),
)
def test_states_are_those_of_the_same_optimizer_alone(
    dense: tuple[str, str], sparse: tuple[str, str], schedules: tuple[bool, bool]
) -> None:
    """Those of another one may have the same names, and another shape; its count of updates would correct the bias of moments that begin anew."""
    plans = []
    for d, s, scheduled in zip(dense, sparse, schedules, strict=True):
        changing = {"dense_schedule": "cosine", "sparse_schedule": "cosine"} if scheduled else {}
        options = with_flags(batch_size=8, dense_sync="allreduce", dense_optimizer=d, sparse_optimizer=s, **changing)
        plans.append(planned(options, groups=1, group_ps=0, sparse_ps=1, dense_ps=0))
    before, after = plans
    with tempfile.TemporaryDirectory() as folder:
        checkpoint_of(before, wholes := wholes_of(before), Path(folder) / "run")
        earlier = Earlier(beginning_of(Path(folder) / "run"))
        earlier.require(after)
        after.save(Path(folder) / "after")
        goes_on = {
            "weight": MOMENTS.get(dense[0], dense[0]) == MOMENTS.get(dense[1], dense[1]),
            "table": sparse[0] == sparse[1],
        }
        kept = {"weight": "sgd" not in dense, "table": "sgd" not in sparse}
        assert bool(earlier.news(after)) == any(kept[kind] and not goes_on[kind] for kind in kept)
        for role in after.cluster.roles:
            parts = whole_role(after, role)
            parts.fill(Path(folder) / "after")
            first = {name: value.clone() for name, value in parts.store.items()}
            parts.copy_from(earlier)
            for name, parameter in after.train.parameters.items():
                if name in parts.store:
                    owner = after.train.parameters[parameter.of] if parameter.kind == "state" else parameter
                    comes = name in wholes and (parameter.kind != "state" or goes_on[owner.kind])
                    assert torch.equal(parts.store[name], wholes[name] if comes else first[name]), (role, name)


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    options = with_flags(batch_size=8, dense_sync="allreduce")
    plan = planned(options, groups=2, group_ps=0, sparse_ps=1, dense_ps=0)
    checkpoint_of(plan, wholes_of(plan), tmp_path / "run")
    earlier = Earlier(beginning_of(tmp_path / "run"))
    train = plan.train
    some = next(p for p in train.parameters.values() if p.kind == "weight")
    other = replace(some, name="other.weight")
    with pytest.raises(CheckpointError, match=r"holds no 'other\.weight'"):
        earlier.require(replace(plan, nets={**plan.nets, "train": replace(train, parameters={"other.weight": other})}))
    for shape in [(some.shape[0] - 1, *some.shape[1:]), (some.shape[0] + 1, *some.shape[1:]), (*some.shape, 2), ()]:
        parameters = {some.name: replace(some, shape=shape)}
        with pytest.raises(
            CheckpointError, match=rf"'{some.name}' is of shape \[.*\] there, the plan's of \[.*\]: begin"
        ):
            earlier.require(replace(plan, nets={**plan.nets, "train": replace(train, parameters=parameters)}))
    larger = torch.empty(some.shape[0], some.shape[1] + 1)
    with pytest.raises(CheckpointError, match=f"of the {larger.numel()} numbers of '{some.name}'"):
        earlier.copy_into(train, some, larger, None)
    with pytest.raises(CheckpointError, match="no such run folder"):
        beginning_of(tmp_path / "none")
    planned(options, groups=3, group_ps=0, sparse_ps=1, dense_ps=0).save(tmp_path / "plan")
    with pytest.raises(CheckpointError, match="belongs to another plan"):
        Earlier(Beginning(str(tmp_path / "plan"), beginning_of(tmp_path / "run").checkpoint))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_padding_row_that_is_not_zeros_is_refused_where_the_plan_takes_it_for_them(
    shards: int, tmp_path: Path
) -> None:
    """As where padding_idx has come to a model since: the row was looked up as zeros, and PyTorch reads it."""
    options, cluster = with_flags(batch_size=8), {"groups": 1, "group_ps": 1, "sparse_ps": 1}
    before, net = planned(options, **cluster), small_dlrm()
    user = net.parameters["user.weight"]
    cleared = replace(
        net, parameters={**net.parameters, user.name: replace(user, init=replace(user.init, zero_rows=(0,)))}
    )
    padded = cleared.with_ops(
        replace(op, attrs={"padding_idx": 0}) if op.module == "user" else op for op in cleared.ops
    )
    after = planned(options, net=padded, tables=shards, **cluster)
    for value, told in ((0.0, None), (0.5, "row 0 of 'user.weight' is not 0, and is padding of the plan's model")):
        wholes = wholes_of(before)
        wholes["user.weight"][0] = value
        checkpoint_of(before, wholes, tmp_path / str(value))
        earlier = Earlier(beginning_of(tmp_path / str(value)))
        earlier.require(before)
        for require in (earlier.require, earlier.require_same):
            with pytest.raises(CheckpointError, match=told) if told else nullcontext():
                require(after)

"""A run that begins with another's checkpoint: every number is where the model has it, whatever the clusters are."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import TRAINER, Wholes, part_of, whole_role
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.data.identity import DataIdentity
from htrain.errors import CheckpointError
from htrain.executor.launch.earlier import Beginning, Earlier, beginning_of
from htrain.executor.record.checkpoint import VERSION, Manifest, new_checkpoint, save_role, write_manifest
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.run_folder import RunRecord, start_record
from htrain.frontend.captured import Captured
from htrain.net.names import device_of
from htrain.net.placement import Split
from htrain.plan.plan import Plan, load_part
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options
from htrain.spec.tree import with_flags


def planned(options: Options, *, tables: int = 0, fcs: dict[str, Split] | None = None, **counts: int) -> Plan:
    net = small_dlrm()
    names = [name for name, p in net.parameters.items() if p.kind == "table"]
    return compile_net(
        Captured(net, {}), Cluster(**counts), options, name="small_dlrm", solver="rules",
        table_splits=dict.fromkeys(names, tables) if tables else {}, fc_splits=fcs or {},
    )  # fmt: skip


def wholes_of(plan: Plan) -> Wholes:
    """A number of its own for each place of each parameter of the model, and of the optimizer's states."""
    made: Wholes = {}
    for number, parameter in enumerate(plan.train.parameters.values()):
        if parameter.kind != "cache":
            numbers = torch.arange(float(torch.Size(parameter.shape).numel())).reshape(parameter.shape)
            made[parameter.name] = (numbers + 10_000 * number).to(getattr(torch, parameter.dtype))
    return made


def checkpoint_of(plan: Plan, wholes: Wholes, folder: Path) -> None:
    """A run of a plan, whose last checkpoint has these values; centres have them, and each group's weights are others."""
    saved = folder.with_name("saved")
    plan.save(saved)
    folder.mkdir()
    start_record(folder, RunRecord(str(saved), "synthetic:", 1, False), resume=False)
    place, sequence = new_checkpoint(folder, 8)
    files = {}
    for role in plan.cluster.roles:
        parts = whole_role(load_part(saved, device_of(role)), role)
        parts.fill(saved)
        for net in parts.init_nets().values():
            for name, parameter in net.parameters.items():
                if name in parts.store and name in plan.train.parameters:
                    parts.store[name].copy_(part_of(plan, parameter, wholes))
        files[role] = save_role(place, role, parts.store)
    identity = Identity(PlanIdentity.of(plan), DataIdentity(1, "synthetic", {}, ()))
    write_manifest(place, Manifest(VERSION, place.name, sequence, identity, 8, {"trainer:0:0": TRAINER}, files))


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
    larger = torch.empty(some.shape[0] + 1, *some.shape[1:])
    with pytest.raises(CheckpointError, match=f"of the {larger.numel()} numbers of '{some.name}'"):
        earlier.copy_into(train, some, larger, None)
    with pytest.raises(CheckpointError, match="no such run folder"):
        beginning_of(tmp_path / "none")
    planned(options, groups=3, group_ps=0, sparse_ps=1, dense_ps=0).save(tmp_path / "plan")
    with pytest.raises(CheckpointError, match="belongs to another plan"):
        Earlier(Beginning(str(tmp_path / "plan"), beginning_of(tmp_path / "run").checkpoint))

"""Runs of small plans as their last checkpoint has them, with a number of its own at each place of each parameter."""

from pathlib import Path

import torch
from checkpoints import TRAINER, Wholes, part_of, whole_role
from small_dlrm import small_dlrm

from htrain.compiler.pipeline import compile_net
from htrain.data.identity import DataIdentity
from htrain.executor.record.checkpoint import VERSION, Manifest, write_manifest
from htrain.executor.record.identity import Identity, PlanIdentity
from htrain.executor.record.kept import new_checkpoint
from htrain.executor.record.role_file import save_role
from htrain.executor.record.run_folder import RunRecord, start_record
from htrain.frontend.captured import Captured
from htrain.net.names import device_of
from htrain.net.net import Net
from htrain.net.placement import Split
from htrain.plan.plan import Plan, load_part
from htrain.spec.cluster import Cluster
from htrain.spec.options import Options


def planned(
    options: Options, *, tables: int = 0, fcs: dict[str, Split] | None = None, net: Net | None = None, **counts: int
) -> Plan:
    """A plan of `net`, by default the small DLRM."""
    net = net or small_dlrm()
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

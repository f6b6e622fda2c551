"""Where a run goes on: from its last checkpoint, whatever cluster has made it (docs/decisions/runs-and-resumes.md)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from htrain.data import Position
from htrain.data.left import begin_of, left_by
from htrain.errors import CheckpointError
from htrain.executor.launch.earlier import Beginning, Earlier
from htrain.executor.record.checkpoint import Found, Manifest, TrainerState, TrainerTotals
from htrain.executor.record.identity import Identity
from htrain.executor.record.layout import keep_layout
from htrain.executor.record.resume import as_it_was, last_whole, left_of
from htrain.executor.record.run_folder import read_record
from htrain.executor.settings import RunSettings
from htrain.net.names import TRAINER, Role, role_of
from htrain.plan.plan import Plan


def gone_on(
    plan: Plan, settings: RunSettings, identity: Identity, found: Found, tell: Callable[[str], None]
) -> RunSettings:
    """The settings of a run that goes on from the latest of the checkpoints `found`. Where another cluster has made it, parameters come to where this one has
    them, and what is left of epochs that were begun is shared out anew.

    Raises CheckpointError where there is none that is whole, or for another model, other data, or other rates or batches than it was made with.
    """
    folder, manifest = last_whole(settings.run_folder, found, tell, lambda f, m: _check(f, m, identity))
    difference = manifest.identity.plan.difference(identity.plan)
    if not difference:
        return as_it_was(settings, folder, manifest)
    beginning = Beginning(_plan_of(settings), str(folder))
    earlier = Earlier(beginning)
    earlier.require_same(plan)
    # Before run.json names the new plan: a retry, or another resume, begins with this one again.
    keep_layout(settings.run_folder, earlier.layout)
    tell(
        f"{folder.name} was made by another cluster ({difference}): rows and weights are shared out anew, and what is left of the data"
    )
    return _elsewhere(plan, settings, manifest, beginning)


def _plan_of(settings: RunSettings) -> str:
    """Where the plan of the run lay; that of now where nobody has written it down."""
    try:
        return read_record(settings.run_folder).plan
    except CheckpointError:
        return str(settings.plan_folder)


def _check(folder: Path, manifest: Manifest, identity: Identity) -> None:
    """Raises CheckpointError where a checkpoint is not of this data, and where its plan differs in more than its cluster."""
    if data := manifest.identity.data.difference(identity.data):
        raise CheckpointError(
            f"{folder}: was made on other data ({data}): resume with the data as it was, or start a new run with --out"
        )
    if plan := manifest.identity.plan.difference_of_model(identity.plan):
        raise CheckpointError(
            f"{folder}: was made by another plan ({plan}): only its cluster may be another: resume with the plan of the run, or start a new run with --out, "
            "which may --begin-with this one"
        )


def _elsewhere(plan: Plan, settings: RunSettings, manifest: Manifest, beginning: Beginning) -> RunSettings:
    before = sorted(manifest.trainers, key=lambda name: Role.parse(name).place)
    at = [manifest.trainers[name].position for name in before]
    left = left_by(left_of(manifest), [Position(each.epoch, each.chunk, each.row) for each in at])
    trainers = sorted(
        (role for role in plan.cluster.roles if role_of(role) == TRAINER), key=lambda name: Role.parse(name).place
    )
    totals = [_sum(manifest.trainers)] + [TrainerTotals(0, 0, 0.0, 0.0)] * (len(trainers) - 1)
    positions: dict[str, dict[str, Any]] = {
        trainer: {
            "position": begin_of(left, shard, len(trainers)).to_dict(),
            "totals": msgspec.to_builtins(totals[shard]),
        }
        for shard, trainer in enumerate(trainers)
    }
    begin_with = (beginning.plan, beginning.checkpoint)
    return replace(settings, restore=beginning.checkpoint, begin_with=begin_with, positions=positions, left=left)


def _sum(trainers: Mapping[str, TrainerState]) -> TrainerTotals:
    """What all have trained, for one of them to count on from."""
    every = [state.totals for state in trainers.values()]
    return TrainerTotals(
        sum(each.examples for each in every),
        sum(each.steps for each in every),
        sum(each.log_loss for each in every),
        sum(each.positives for each in every),
    )

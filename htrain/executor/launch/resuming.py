"""Where a run goes on: from its last checkpoint, whatever cluster has made it (docs/decisions/runs-and-resumes.md)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from htrain.data import Position
from htrain.data.growth import Cut, Extent, FileSize, Reading
from htrain.data.identity import DataIdentity, FileIdentity, begins_of_new, data_files, other_than_grown
from htrain.data.left import begin_of, left_by
from htrain.errors import CheckpointError
from htrain.executor.launch.earlier import Beginning, Earlier
from htrain.executor.record.checkpoint import Manifest, ReaderPosition, TrainerState, TrainerTotals
from htrain.executor.record.identity import Identity
from htrain.executor.record.kept import Found
from htrain.executor.record.layout import keep_layout
from htrain.executor.record.resume import as_it_was, cuts_of, last_whole, left_of, other_data
from htrain.executor.record.run_folder import read_record
from htrain.executor.settings import RunSettings
from htrain.net.names import TRAINER, Role, role_of
from htrain.plan.plan import Plan


def gone_on(
    plan: Plan, settings: RunSettings, identity: Identity, found: Found, tell: Callable[[str], None]
) -> RunSettings:
    """The settings of a run that goes on from the latest of the checkpoints `found`. Where another cluster has made it, parameters come to where this one has
    them, and what is left of epochs that were begun is shared out anew. Where data has come since, the epoch that was begun last is read to its new end.

    Raises CheckpointError where there is none that is whole, or for another model, other data, or other rates or batches than it was made with.
    """
    folder, manifest = last_whole(settings.run_folder, found, tell, lambda f, m: _check(f, m, identity, settings.data))
    manifest = _with_what_has_come(manifest, identity.data, settings.data, lambda news: tell(f"{folder.name}: {news}"))
    settings = replace(
        settings, extent=extent_of(settings.data, identity.data, cuts_of(manifest), by_parts=manifest.by_parts is True)
    )
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


def extent_of(uri: str, data: DataIdentity, cuts: tuple[Cut, ...] = (), *, by_parts: bool) -> Extent:
    """What a run reads of its data, and whether it does so `by_parts`. Raises CheckpointError for `cuts` that are of other files."""
    files = tuple(FileSize(each.name, each.num_bytes) for each in data_files(uri, data))
    try:
        return Extent(files, cuts, by_parts)
    except ValueError as error:
        raise CheckpointError(
            f"{uri}: the checkpoint has parts of other files ({error}): start a new run with --out"
        ) from error


def _with_what_has_come(manifest: Manifest, now: DataIdentity, uri: str, tell: Callable[[str], None]) -> Manifest:
    """A checkpoint as if what has come since were a part of the epoch that was begun last in it."""
    before, after = (data_files(uri, each) for each in (manifest.identity.data, now))
    sizes, sizes_now = ([each.num_bytes for each in files] for files in (before, after))
    if sizes == sizes_now:
        return manifest
    names = list(manifest.trainers)
    at = (manifest.trainers[name].position for name in names)
    reading = Reading(tuple(Position(p.epoch, p.chunk, p.row) for p in at), left_of(manifest), cuts_of(manifest))
    begins = begins_of_new(uri, before, after)
    grown = reading.grown(sizes, sizes_now, begins)
    states = {
        name: TrainerState(ReaderPosition(at.epoch, at.chunk, at.row), manifest.trainers[name].totals)
        for name, at in zip(names, grown.positions, strict=True)
    }
    tell(_news(before, after, begins))
    return msgspec.structs.replace(manifest, trainers=states, left=grown.left, cuts=grown.cuts)


def _news(before: Sequence[FileIdentity], after: Sequence[FileIdentity], begins: Sequence[int]) -> str:
    longer = [(old, new) for old, new in zip(before, after, strict=False) if new.num_bytes > old.num_bytes]
    said = [f"'{new.name}' has {new.num_bytes:,} bytes, it had {old.num_bytes:,}" for old, new in longer[:1]]
    said += [f"{len(longer) - 1} more files have grown"] if len(longer) > 1 else []
    said += [f"{len(after) - len(before)} more files are there"] if len(after) > len(before) else []
    going = [f"'{old.name}'" for old, begin in zip(before, begins, strict=True) if begin < old.num_bytes]
    anew = f"; the last line of {', '.join(going)} had no end and goes on: it is read anew" if going else ""
    return f"its data has grown ({', '.join(said)}): what has come is read behind the rest, in the epoch that was begun last and in later ones{anew}"


def _check(folder: Path, manifest: Manifest, identity: Identity, uri: str) -> None:
    """Raises CheckpointError where a checkpoint is not of this data or of a beginning of it, and where its plan differs in more than its cluster."""
    if data := other_than_grown(uri, manifest.identity.data, identity.data):
        raise other_data(str(folder), data)
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

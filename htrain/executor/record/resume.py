"""Where a resumed run goes on: the latest checkpoint that is whole, of this very plan and data."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from htrain.data.growth import Cut
from htrain.data.left import Left
from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record.checkpoint import Manifest
from htrain.executor.record.identity import Identity
from htrain.executor.record.kept import Found, no_checkpoint
from htrain.executor.record.role_file import verify
from htrain.executor.settings import RunSettings


def resumed(settings: RunSettings, identity: Identity, found: Found, tell: Callable[[str], None]) -> RunSettings:
    """The settings of a run that goes on from the latest of the checkpoints `found`; `tell` hears of damaged ones that are passed over.

    Raises CheckpointError when there is none that is whole, or when the plan or the data are not those that it was made with.
    """
    folder, manifest = last_whole(settings.run_folder, found, tell, lambda f, m: check_identity(f, m, identity))
    return as_it_was(settings, folder, manifest)


def as_it_was(settings: RunSettings, folder: Path, manifest: Manifest) -> RunSettings:
    """The settings of a run that goes on from a checkpoint of its own plan."""
    positions = {name: msgspec.to_builtins(state) for name, state in manifest.trainers.items()}
    return replace(settings, restore=str(folder), begin_with=("", ""), positions=positions, left=left_of(manifest))


def left_of(manifest: Manifest) -> tuple[Left, ...]:
    """What another cluster has left of epochs that are still read."""
    return manifest.left if isinstance(manifest.left, tuple) else ()


def cuts_of(manifest: Manifest) -> tuple[Cut, ...]:
    """How epochs are read that were begun before data came."""
    return manifest.cuts if isinstance(manifest.cuts, tuple) else ()


def last_whole(
    run_folder: Path, found: Found, tell: Callable[[str], None], check: Callable[[Path, Manifest], None]
) -> tuple[Path, Manifest]:
    """The latest of the checkpoints `found` that is whole. Raises CheckpointError when there is none, and what `check` does of one that is not to be used."""
    damaged = list(found.damaged)
    for folder, manifest in found.complete:
        check(folder, manifest)
        try:
            verify(folder, manifest)
        except DamagedCheckpoint as error:
            damaged.append(error)
            continue
        for each in damaged:
            tell(f"{each}; going on from {folder.name} instead")
        return folder, manifest
    if damaged:
        raise DamagedCheckpoint(f"{damaged[0]}; no other checkpoint is whole: start the run again with another --out")
    raise no_checkpoint(run_folder)


def check_identity(folder: Path, manifest: Manifest, identity: Identity) -> None:
    """Raises CheckpointError when a checkpoint does not belong to this plan and data, saying what is another."""
    check_same(str(folder), manifest.identity, identity)


def check_same(what: str, then: Identity, now: Identity) -> None:
    """Raises CheckpointError when the plan or the data of something, a checkpoint or a run, are not what they were, saying what is another."""
    plan = then.plan.difference(now.plan)
    if plan:
        raise CheckpointError(
            f"{what}: was made by another plan ({plan}): resume with the plan of the run, or start a new run with --out"
        )
    if data := then.data.difference(now.data):
        raise other_data(what, data)


def other_data(what: str, difference: str) -> CheckpointError:
    """What to raise for something, a checkpoint or a run, whose data is another."""
    return CheckpointError(
        f"{what}: was made on other data ({difference}): resume with the data as it was, or start a new run with --out"
    )

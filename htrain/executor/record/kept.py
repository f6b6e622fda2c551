"""The checkpoints that a run folder holds: which there are, which is the latest, and which go."""

import math
import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record.checkpoint import CHECKPOINT_NAME, MANIFEST, Manifest, own_manifest, read_manifest
from htrain.executor.record.reading import unless_read
from htrain.executor.record.run_folder import RECORD, is_owned_by_another, mistaken
from htrain.files import is_there

_OURS = re.compile(r"(trainer|group_ps|sparse_ps|dense_ps)(_[0-9]+)+\.(safetensors|partial)|manifest\.partial")


@dataclass(frozen=True)
class Found:
    """The checkpoints of a run. `complete` are those that can be read, the latest first; `damaged` tells of those that were written after it and cannot."""

    complete: tuple[tuple[Path, Manifest], ...]
    damaged: tuple[CheckpointError, ...]


def find_checkpoints(run_folder: Path) -> Found:
    """What a run folder holds. One that was given another name is its owner's, not the run's: it is left out. Raises CheckpointError for what is no folder."""
    try:
        return _found(run_folder)
    except OSError as error:
        raise CheckpointError(f"{error.filename or run_folder}: cannot be read: {error.strerror}") from error


def _found(run_folder: Path) -> Found:
    if not run_folder.is_dir():
        raise CheckpointError(f"{run_folder}: no such run folder{mistaken(run_folder)}")
    complete: list[tuple[Path, Manifest]] = []
    damaged: list[tuple[Path, CheckpointError]] = []
    for folder in _folders(run_folder):
        try:
            if not is_there(folder / MANIFEST):
                continue
            manifest = read_manifest(folder)
        except CheckpointError as error:
            damaged.append((folder, error))
            continue
        except OSError as error:
            damaged.append((folder, CheckpointError(f"{error.filename or folder}: cannot be read: {error.strerror}")))
            continue
        if manifest.name == folder.name:
            complete.append((folder, manifest))
    complete.sort(key=lambda each: (each[1].sequence, each[0].name), reverse=True)
    return Found(
        tuple(complete), tuple(error for folder, error in damaged if not complete or _is_later(folder, *complete[0]))
    )


def _is_later(folder: Path, newest: Path, manifest: Manifest) -> bool:
    """Whether a checkpoint that cannot be read was made after the newest that can: by its number, where its manifest is as it was written, else by its time."""
    own = own_manifest(folder)
    return own.sequence > manifest.sequence if own else _written(folder) >= _written(newest)


def _folders(run_folder: Path) -> Sequence[Path]:
    """The folders that are named as checkpoints are. Raises OSError where these cannot be listed: a run that has some must not look like one that has none."""
    place = run_folder / "checkpoints"
    try:
        with os.scandir(place) as entries:
            names = [each.name for each in entries if CHECKPOINT_NAME.fullmatch(each.name) and each.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [place / name for name in sorted(names)]


def _written(folder: Path) -> float:
    """When a manifest was written, in nanoseconds: all that is known of one that cannot be read. Of one of which not even that is known, it may be now."""
    try:
        return (folder / MANIFEST).lstat().st_mtime_ns
    except FileNotFoundError:  # it has been removed
        return 0
    except OSError:
        return math.inf


def named_checkpoint(run_folder: Path, name: str) -> tuple[Path, Manifest]:
    """The checkpoint of this name. Raises CheckpointError where it is not there, DamagedCheckpoint where it cannot be read."""
    folder = run_folder / "checkpoints" / name
    manifest = read_manifest(folder)
    if not CHECKPOINT_NAME.fullmatch(name) or manifest.name != name:
        raise CheckpointError(f"{folder}: holds the checkpoint '{manifest.name}'")
    return folder, manifest


def latest_checkpoint(run_folder: Path) -> tuple[Path, Manifest]:
    """The latest checkpoint of a run. Raises CheckpointError when there is none, DamagedCheckpoint when it cannot be read."""
    found = find_checkpoints(run_folder)
    if found.damaged:
        cure = f": remove its folder to use {found.complete[0][0].name}" if found.complete else ""
        raise DamagedCheckpoint(f"{found.damaged[0]}{cure}")
    if not found.complete:
        raise no_checkpoint(run_folder)
    return found.complete[0]


def no_checkpoint(run_folder: Path) -> CheckpointError:
    """What to raise for a folder without a checkpoint: of a run that has none yet, that has ended before, or of none."""
    if not (is_there(run_folder / RECORD) or is_there(run_folder / "checkpoints")):
        return CheckpointError(
            f"{run_folder}: holds no run{mistaken(run_folder)}: want a folder that htrain run, or serve, was given by --out"
        )
    if is_owned_by_another(run_folder):
        return CheckpointError(
            f"{run_folder}: holds no complete checkpoint yet: its run goes on: wait for the first (--checkpoint-seconds says when)"
        )
    return CheckpointError(
        f"{run_folder}: holds no complete checkpoint: its run ended before the first: remove the folder, and start again"
    )


def new_checkpoint(run_folder: Path, examples: int) -> tuple[Path, int]:
    """A folder, made now, for a checkpoint taken after `examples` examples, and its sequence number. Raises CheckpointError when the disk refuses.

    A run resumed at its end is saved again after no more examples: that must not touch the checkpoint it came from.
    """
    parent = run_folder / "checkpoints"
    try:
        parent.mkdir(exist_ok=True)
        sequence = 1 + max((made.sequence for made in map(own_manifest, _folders(run_folder)) if made), default=0)
        names = (f"examples_{examples:012d}" + (f"-{again:03d}" if again > 1 else "") for again in range(1, 1 << 30))
        folder = next(path for path in map(parent.joinpath, names) if not os.path.lexists(path))
        folder.mkdir()
    except OSError as error:
        raise CheckpointError(f"{parent}: no checkpoint can be written: {error.strerror}") from error
    return folder, sequence


def prune(run_folder: Path, keep: int = 2, *, spared: Collection[str] = ()) -> None:
    """Remove what interrupted writes left, and all but the newest `keep` >= 1 complete checkpoints, those whose names are `spared` or which somebody reads, and
    what these build on.
    Of two or more, one that has no file in common with the newest is kept, too: a file that is damaged takes no more than one of them away.

    One that is damaged stays for its owner to look at. The folder of an interrupted write stays, empty, until all that are kept are of more examples: a role
    of an earlier try that is not reached, and not gone, may still write to it, and must not find another checkpoint under its name.
    """
    assert keep >= 1
    complete = find_checkpoints(run_folder).complete
    stay = {folder.name for folder, _ in complete[:keep]}.union(spared, _independent(complete) if keep > 1 else ())
    # The latest first: what builds on others goes before these, wherever this is interrupted.
    for folder, manifest in complete:
        if folder.name in stay or not unless_read(folder, remove_checkpoint):
            stay |= manifest.needs
    least = min((manifest.examples for _, manifest in complete[:keep]), default=0)
    for folder in _folders(run_folder):
        if not is_there(folder / MANIFEST):
            (remove_checkpoint if _examples_of(folder) < least else _empty)(folder)


def _independent(complete: Sequence[tuple[Path, Manifest]]) -> set[str]:
    """The name of the newest of them that has no file in common with the very newest, if there is one."""
    parts = [{folder.name} | manifest.needs for folder, manifest in complete]
    return next(({folder.name} for (folder, _), own in zip(complete, parts, strict=True) if not own & parts[0]), set())


def _examples_of(folder: Path) -> int:
    """After how many examples a checkpoint was taken, by the name of its folder."""
    return int(folder.name.split("_")[1].partition("-")[0])


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint's files, its manifest first: half a checkpoint must not look whole. A folder that holds anything else stays, with that."""
    with suppress(OSError):
        (folder / MANIFEST).unlink(missing_ok=True)
    _empty(folder)
    with suppress(OSError):
        folder.rmdir()


def _empty(folder: Path) -> None:
    """Remove a folder's files that are ours."""
    with suppress(OSError):
        for path in folder.iterdir():
            if _OURS.fullmatch(path.name):
                path.unlink()

"""Checkpoints: safetensors per role, and a manifest, written last and atomically (docs/decisions/runs-and-resumes.md).

    RUN/checkpoints/examples_000000001234/group_ps_0_0.safetensors, ..., manifest.json

A folder without a manifest is an interrupted write and counts for nothing. A complete checkpoint is never written to again. Which one is the latest stands
in the manifests; names are for people.
"""

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from htrain.data.growth import Cut
from htrain.data.left import Left
from htrain.decoding import from_json
from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record.identity import Identity
from htrain.files import read_file

VERSION = 2
# So that an htrain that knows of none says which it can read:
_WITH_BASES = 3  # of one whose files build on others
_WITH_PARTS = 4  # of one whose data is shared out by parts
_WITH_MEANINGS = 5  # of one that says what becomes of the values of its data
_READ = (VERSION, _WITH_BASES, _WITH_PARTS, _WITH_MEANINGS)
MANIFEST = "manifest.json"
ROWS = ":rows"  # ends the name of the numbers of a table's rows, where they are no range
_MOST_MANIFEST_BYTES = 1 << 28
CHECKPOINT_NAME = re.compile(r"examples_[0-9]{12,}(-[0-9]{3,})?")

Count = Annotated[int, msgspec.Meta(ge=0)]


class SavedFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One role's file: its name, size in bytes, and CRC-32."""

    name: str
    num_bytes: Count
    digest: Count


class Base(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The file that one builds on, which has the rows that it lacks: a role's of an earlier checkpoint, of this name, in the same run; its size in bytes, and
    CRC-32. It is whole."""

    checkpoint: str
    num_bytes: Count
    digest: Count


class ReaderPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The next unread row, as `htrain.data.Position` counts it."""

    epoch: Count
    chunk: Count
    row: Count


class TrainerTotals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a trainer has done since the run began; `log_loss` is a sum over examples."""

    examples: Count
    steps: Count
    log_loss: float
    positives: float


class TrainerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the manifest holds of a trainer."""

    position: ReaderPosition
    totals: TrainerTotals


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint: what it belongs to, the work done, where each trainer's reader stands, and each role's file.

    Where another cluster has begun an epoch that is still read, positions in it are of what it has `left` (htrain.data.left); where data has come since one was
    begun, of the parts that are its `cuts` (htrain.data.growth). `bases` are the files that those of some roles build on (htrain.executor.record.deltas).
    With `by_parts` the data is shared out by those (htrain.data.growth.Extent).
    `name` is that of its folder, `sequence` how many checkpoints the run had made with it: the latest has the highest. `checksum` is one over all else.
    """

    version: int
    name: str
    sequence: Annotated[int, msgspec.Meta(ge=1)]
    identity: Identity
    examples: Count
    trainers: dict[str, TrainerState]
    files: dict[str, SavedFile]
    finished: bool = False
    checksum: str = ""
    left: tuple[Left, ...] | msgspec.UnsetType = msgspec.UNSET
    cuts: tuple[Cut, ...] | msgspec.UnsetType = msgspec.UNSET
    bases: dict[str, Base] | msgspec.UnsetType = msgspec.UNSET
    by_parts: bool | msgspec.UnsetType = msgspec.UNSET

    def base_of(self, role: str) -> Base | None:
        """What a role's file builds on; None for one that is whole."""
        return None if self.bases is msgspec.UNSET else self.bases.get(role)

    @property
    def needs(self) -> set[str]:
        """The names of the checkpoints that this one builds on."""
        return set() if self.bases is msgspec.UNSET else {base.checkpoint for base in self.bases.values()}


class _Version(msgspec.Struct):
    version: int


def file_name(role: str) -> str:
    """The name of a role's file."""
    return f"{role.replace(':', '_')}.safetensors"


def one_line_of(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split())


def base_path(folder: Path, role: str, base: Base) -> Path:
    """Where the file lies that a role's in the checkpoint `folder` builds on."""
    return folder.parent / base.checkpoint / file_name(role)


def check_size(path: Path, num_bytes: int) -> None:
    """Raises DamagedCheckpoint for a file of another size than was written."""
    size = path.stat().st_size
    if size != num_bytes:
        raise DamagedCheckpoint(f"{path}: damaged: {size} bytes, the manifest says {num_bytes}")


def _replace(partial: Path, path: Path) -> None:
    """Give a finished file its name, so that a machine that loses power later still has it, whole."""
    sync_path(partial)
    os.replace(partial, path)
    sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Have the disk hold a file, or a folder's names. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make the checkpoint valid: one atomic rename. Raises CheckpointError when the disk refuses.

    By then its folder has its name on the disk, too, and that of all checkpoints: those before are removed as soon as this one is valid.
    """
    partial = folder / "manifest.partial"
    try:
        partial.write_bytes(_text(msgspec.structs.replace(manifest, checksum=_checksum(manifest))))
        for above in (folder.parent, folder.parent.parent):
            sync_path(above)
        _replace(partial, folder / MANIFEST)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise CheckpointError(f"{folder / MANIFEST}: cannot be written: {error.strerror}") from error


def _text(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest))


def version_of(manifest: Manifest) -> int:
    """The version of the format that a manifest is written in: the earliest that has all that is in it."""
    if manifest.identity.data.meanings:
        return _WITH_MEANINGS
    if manifest.by_parts is not msgspec.UNSET:
        return _WITH_PARTS
    return VERSION if manifest.bases is msgspec.UNSET else _WITH_BASES


def _checksum(manifest: Manifest) -> str:
    return hashlib.blake2b(_text(msgspec.structs.replace(manifest, checksum="")), digest_size=16).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder, its files as large as it says.

    Raises DamagedCheckpoint where one byte of it is another than was written, CheckpointError where it is missing or of another version.
    """
    path, manifest = folder / MANIFEST, _read(folder)
    for role, saved in manifest.files.items():
        _check_listed(path, role, saved)
        if base := manifest.base_of(role):
            _check_base(path, role, base)
    return manifest


def own_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, whatever has become of the files that it names; None where it is not as it was written, or another's."""
    try:
        manifest = _read(folder)
    except CheckpointError:
        return None
    return manifest if manifest.name == folder.name else None


def _read(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        data = read_file(path, most_bytes=_MOST_MANIFEST_BYTES)
    except OSError as error:
        raise CheckpointError(f"{folder}: no complete checkpoint ({error.strerror}: {MANIFEST})") from error
    try:
        version = from_json(data, _Version).version
        if version not in _READ:
            raise CheckpointError(f"{path}: version {version}, this htrain reads versions {VERSION} to {_READ[-1]}")
        manifest = from_json(data, Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path}: damaged: {one_line_of(error)}") from error
    if manifest.checksum != _checksum(manifest) or data != _text(manifest):  # the checksum says nothing of spaces
        raise DamagedCheckpoint(f"{path}: damaged: it is not as it was written")
    return manifest


def _check_listed(path: Path, role: str, saved: SavedFile) -> None:
    wanted = file_name(role)
    if saved.name != wanted or Path(wanted).name != wanted:
        raise DamagedCheckpoint(f"{path}: {role} names the file '{saved.name}', want '{wanted}' in the same folder")
    file = path.parent / wanted
    if not file.is_file():
        raise DamagedCheckpoint(f"{path}: names the file '{wanted}', which is not there")
    check_size(file, saved.num_bytes)


def _check_base(path: Path, role: str, base: Base) -> None:
    if not CHECKPOINT_NAME.fullmatch(base.checkpoint):
        raise DamagedCheckpoint(f"{path}: {role} builds on '{base.checkpoint}', which is no name of a checkpoint")
    file = base_path(path.parent, role, base)
    if not file.is_file():
        raise DamagedCheckpoint(
            f"{path}: builds on '{base.checkpoint}/{file.name}' beside its own folder, which is not there: it was removed, or this folder was copied without it"
        )
    check_size(file, base.num_bytes)

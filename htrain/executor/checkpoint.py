"""Checkpoints: safetensors per role, and a manifest, written last and atomically (DESIGN 5).

    RUN/checkpoints/examples_000000001234/group_ps_0_0.safetensors, ..., manifest.json

A folder without a manifest is an interrupted write and counts for nothing. A complete checkpoint is never written to again.
"""

import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from htrain.errors import CheckpointError

VERSION = 1
_CHUNK_BYTES = 1 << 22

Count = Annotated[int, msgspec.Meta(ge=0)]


class SavedFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One role's file: its name, size in bytes, and CRC-32."""

    name: str
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
    """A checkpoint: the plan it belongs to, the work done, where each trainer's reader stands, and each role's file.

    Each value of `trainers` has the form of a `TrainerState`.
    """

    version: int
    plan_digest: str
    examples: Count
    trainers: dict[str, dict[str, Any]]
    files: dict[str, SavedFile]
    finished: bool = False


def save_role(folder: Path, role: str, tensors: Mapping[str, torch.Tensor]) -> SavedFile:
    """Write a role's parameters; the file appears whole or not at all. Raises CheckpointError when the disk refuses.

    The tensors are contiguous, share no memory, and are written from where they lie: a table is not copied, unless from an accelerator.
    """
    path = folder / _file_name(role)
    partial = path.with_suffix(".partial")
    try:
        save_file({name: tensor.cpu() for name, tensor in tensors.items()}, partial)
        _replace(partial, path)
        return SavedFile(path.name, path.stat().st_size, _crc(path))
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(f"{path}: cannot be written: {_one_line(error)}") from error


def _file_name(role: str) -> str:
    return f"{role.replace(':', '_')}.safetensors"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _replace(partial: Path, path: Path) -> None:
    """Give a finished file its name, so that a machine that loses power later still has it, whole."""
    _sync(partial)
    os.replace(partial, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _crc(path: Path) -> int:
    digest = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest = zlib.crc32(chunk, digest)
    return digest


def load_role_into(folder: Path, role: str, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a role's parameters into `tensors`. Raises CheckpointError naming the file and tensor that does not match.

    All is checked before the first tensor changes; the file is mapped, so that a table is not held twice.
    """
    if not tensors:
        return
    saved = manifest.files.get(role)
    if saved is None:
        raise CheckpointError(f"{folder}: holds nothing for {role}: it was made by a plan with other roles")
    path = verified_path(folder, saved)
    try:
        with safe_open(path, "pt") as file:
            _check_names(path, role, set(file.keys()), set(tensors))
            values = {name: file.get_tensor(name) for name in tensors}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a safetensors file: {_one_line(error)}") from error
    for name, target in tensors.items():
        if _form(values[name]) != _form(target):
            raise CheckpointError(f"{path}: '{name}' is {_form(values[name])}, {role} wants {_form(target)}")
    for name, target in tensors.items():
        target.copy_(values[name])


def verified_path(folder: Path, saved: SavedFile) -> Path:
    """The path of a checkpoint's file whose every byte is what was written. Raises CheckpointError."""
    path = folder / saved.name
    try:
        _check_size(path, saved)
        digest = _crc(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if digest != saved.digest:
        raise CheckpointError(
            f"{path}: damaged: checksum {digest:08x}, the manifest says {saved.digest:08x}: {_go_back(folder)}"
        )
    return path


def _check_size(path: Path, saved: SavedFile) -> None:
    size = path.stat().st_size
    if size != saved.num_bytes:
        raise CheckpointError(
            f"{path}: damaged: {size} bytes, the manifest says {saved.num_bytes}: {_go_back(path.parent)}"
        )


def _go_back(folder: Path) -> str:
    return f"remove the folder {folder.name} to go on from an older checkpoint"


def _check_names(path: Path, role: str, seen: set[str], wanted: set[str]) -> None:
    if missing := wanted - seen:
        raise CheckpointError(f"{path}: lacks '{min(missing)}', which {role} has")
    if extra := seen - wanted:
        raise CheckpointError(f"{path}: holds '{min(extra)}', which {role} does not have")


def _form(tensor: torch.Tensor) -> str:
    """Its dtype and shape, as a plan writes them: float32[4,8]."""
    return f"{tensor.dtype}".removeprefix("torch.") + f"[{','.join(map(str, tensor.shape))}]"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make the checkpoint valid: one atomic rename. Raises CheckpointError when the disk refuses."""
    partial = folder / "manifest.partial"
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        _replace(partial, folder / "manifest.json")
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CheckpointError(f"{folder / 'manifest.json'}: cannot be written: {error.strerror}") from error


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder. Raises CheckpointError for what is missing, damaged or unknown."""
    path = folder / "manifest.json"
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise CheckpointError(f"{folder}: no complete checkpoint ({error.strerror}: manifest.json)") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: damaged: {error}: {_go_back(folder)}") from error
    if manifest.version != VERSION:
        raise CheckpointError(f"{path}: version {manifest.version}, this htrain reads version {VERSION}")
    for trainer, state in manifest.trainers.items():
        _check_trainer(path, trainer, state)
    for role, saved in manifest.files.items():
        _check_listed(path, role, saved)
    return manifest


def _check_trainer(path: Path, trainer: str, state: Mapping[str, Any]) -> None:
    try:
        msgspec.convert(state, TrainerState)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: {trainer}: damaged: {error}: {_go_back(path.parent)}") from error


def _check_listed(path: Path, role: str, saved: SavedFile) -> None:
    wanted = _file_name(role)
    if saved.name != wanted or Path(wanted).name != wanted:
        raise CheckpointError(f"{path}: {role} names the file '{saved.name}', want '{wanted}' in the same folder")
    file = path.parent / wanted
    if not file.is_file():
        raise CheckpointError(f"{path}: names the file '{wanted}', which is not there: {_go_back(path.parent)}")
    _check_size(file, saved)


def checkpoint_folder(run_folder: Path, examples: int) -> Path:
    """A folder, not there yet, for a checkpoint taken after `examples` examples; it sorts behind all that are there.

    A run resumed at its end is saved again after no more examples: that must not touch the checkpoint it came from.
    """
    parent = run_folder / "checkpoints"
    folder = parent / f"examples_{examples:012d}"
    again = 1
    while folder.exists():
        again += 1
        folder = parent / f"examples_{examples:012d}-{again:03d}"
    return folder


def latest_checkpoint(run_folder: Path) -> Path:
    """The newest complete checkpoint of a run. Raises CheckpointError when there is none."""
    if not run_folder.is_dir():
        raise CheckpointError(f"{run_folder}: no such run folder")
    complete = sorted(p.parent for p in (run_folder / "checkpoints").glob("examples_*/manifest.json"))
    if not complete:
        raise CheckpointError(
            f"{run_folder}: holds no complete checkpoint: the run ended before its first; start it again without --resume"
        )
    return complete[-1]


def prune(run_folder: Path, keep: int = 2) -> None:
    """Remove what interrupted writes left, and all but the newest `keep` >= 1 complete checkpoints."""
    assert keep >= 1
    folders = sorted((run_folder / "checkpoints").glob("examples_*"))
    complete = [f for f in folders if (f / "manifest.json").is_file()]
    for folder in folders:
        if folder not in complete[-keep:]:
            (folder / "manifest.json").unlink(missing_ok=True)  # first: half a checkpoint must not look whole
            shutil.rmtree(folder, ignore_errors=True)

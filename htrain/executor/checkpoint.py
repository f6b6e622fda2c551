"""Checkpoints: safetensors per role, and a manifest, written last and atomically (DESIGN 5).

    RUN/checkpoints/step_00001234/trainer_0_0.safetensors, ..., manifest.json

A folder without a manifest is an interrupted write and counts for nothing.
"""

import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from htrain.errors import CheckpointError

VERSION = 1
_CHUNK_BYTES = 1 << 22


class SavedFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One role's file: its name, size in bytes, and CRC-32."""

    name: str
    num_bytes: int
    digest: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint: the plan it belongs to, the work done, where each trainer's reader stands, and each role's file."""

    version: int
    plan_digest: str
    examples: int
    trainers: dict[str, dict[str, Any]]
    files: dict[str, SavedFile]
    finished: bool = False


def save_role(folder: Path, role: str, tensors: Mapping[str, torch.Tensor]) -> SavedFile:
    """Write a role's parameters; the file appears whole or not at all. Raises CheckpointError when the disk refuses."""
    path = folder / f"{role.replace(':', '_')}.safetensors"
    partial = path.with_suffix(".partial")
    try:
        save_file(dict(tensors), partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
        return SavedFile(path.name, path.stat().st_size, _crc(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error


def _crc(path: Path) -> int:
    digest = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest = zlib.crc32(chunk, digest)
    return digest


def load_role_into(folder: Path, role: str, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a role's parameters into `tensors`. Raises CheckpointError naming the file and tensor that does not match."""
    if not tensors:
        return
    saved = manifest.files.get(role)
    if saved is None:
        raise CheckpointError(f"{folder}: holds nothing for {role}: it was made by a plan with other roles")
    path = folder / saved.name
    if path.stat().st_size != saved.num_bytes or _crc(path) != saved.digest:
        raise CheckpointError(
            f"{path}: damaged (size or checksum is not the manifest's): resume from an older checkpoint"
        )
    try:
        with safe_open(path, "pt") as file:
            names = set(file.keys())
            if names != set(tensors):
                raise CheckpointError(
                    f"{path}: holds {sorted(names ^ set(tensors))[0]!r} too much or too little for {role}"
                )
            for name, target in tensors.items():
                value = file.get_tensor(name)
                if value.shape != target.shape or value.dtype != target.dtype:
                    raise CheckpointError(
                        f"{path}: '{name}' is {value.dtype}{list(value.shape)}, want {target.dtype}{list(target.shape)}"
                    )
                target.copy_(value)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error}") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make the checkpoint valid: one atomic rename."""
    partial = folder / "manifest.partial"
    with partial.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, folder / "manifest.json")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder. Raises CheckpointError for what is missing, damaged or unknown."""
    path = folder / "manifest.json"
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise CheckpointError(f"{folder}: no complete checkpoint ({error.strerror}: manifest.json)") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
    if manifest.version != VERSION:
        raise CheckpointError(f"{path}: version {manifest.version}, this htrain reads version {VERSION}")
    for saved in manifest.files.values():
        if Path(saved.name).name != saved.name or not (folder / saved.name).is_file():
            raise CheckpointError(f"{path}: names the file '{saved.name}', which is not in {folder}")
    return manifest


def checkpoint_folder(run_folder: Path, examples: int) -> Path:
    """The folder of the checkpoint taken after `examples` examples."""
    return run_folder / "checkpoints" / f"examples_{examples:012d}"


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
    """Remove what interrupted writes left, and all but the newest `keep` complete checkpoints."""
    folders = sorted((run_folder / "checkpoints").glob("examples_*"))
    complete = [f for f in folders if (f / "manifest.json").is_file()]
    for folder in folders:
        if folder not in complete[-keep:]:
            shutil.rmtree(folder, ignore_errors=True)

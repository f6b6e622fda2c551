"""Checkpoints: safetensors per role, and a manifest, written last and atomically (docs/decisions/runs-and-resumes.md).

    RUN/checkpoints/examples_000000001234/group_ps_0_0.safetensors, ..., manifest.json

A folder without a manifest is an interrupted write and counts for nothing. A complete checkpoint is never written to again. Which one is the latest stands
in the manifests; names are for people.
"""

import hashlib
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from htrain.data.growth import Cut
from htrain.data.left import Left
from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record.identity import Identity
from htrain.executor.record.tensor_file import TensorFile, tensor_file
from htrain.files import read_file

VERSION = 2
MANIFEST = "manifest.json"
ROWS = ":rows"  # ends the name of the numbers of a table's rows, where they are no range
_CHUNK_BYTES = 1 << 22
_MOST_MANIFEST_BYTES = 1 << 28
_VERIFYING_THREADS = 4
_NAME = re.compile(r"examples_[0-9]{12,}(-[0-9]{3,})?")
_OURS = re.compile(r"(trainer|group_ps|sparse_ps|dense_ps)(_[0-9]+)+\.(safetensors|partial)|manifest\.partial")

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
    """A checkpoint: what it belongs to, the work done, where each trainer's reader stands, and each role's file.

    Where another cluster has begun an epoch that is still read, positions in it are of what it has `left` (htrain.data.left); where data has come since one was
    begun, of the parts that are its `cuts` (htrain.data.growth).
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


class _Version(msgspec.Struct):
    version: int


def save_role(folder: Path, role: str, tensors: Mapping[str, torch.Tensor]) -> SavedFile:
    """Write a role's parameters; the file appears whole or not at all. Raises CheckpointError when the disk refuses.

    The tensors are contiguous, share no memory, and are written from where they lie: a table is not copied, unless from an accelerator.
    """
    return write_role(folder, role, tensor_file(tensors))


def write_role(folder: Path, role: str, file: TensorFile) -> SavedFile:
    """The same for what is ready to be written: by system calls alone, so that a process that was forked beside threads can do it. Raises CheckpointError."""
    path = folder / _file_name(role)
    partial = path.with_suffix(".partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            digest = file.write(descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(partial, path)
        _sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from error
    return SavedFile(path.name, file.num_bytes, digest)


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
    """Copy a role's parameters into `tensors`. Raises CheckpointError naming the file and tensor that does not match, DamagedCheckpoint for a file whose
    bytes are not those that were written: whoever chose the checkpoint has verified it, at another time and perhaps on another host.

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


def verify(folder: Path, manifest: Manifest) -> None:
    """Read all files of a checkpoint. Raises DamagedCheckpoint for one whose bytes are not those that were written."""
    with ThreadPoolExecutor(_VERIFYING_THREADS) as threads:
        for path in threads.map(lambda saved: verified_path(folder, saved), manifest.files.values()):
            assert path.parent == folder


def verified_path(folder: Path, saved: SavedFile) -> Path:
    """The path of a checkpoint's file whose every byte is what was written. Raises DamagedCheckpoint."""
    path = folder / saved.name
    try:
        _check_size(path, saved)
        digest = _crc(path)
    except OSError as error:
        raise DamagedCheckpoint(f"{path}: cannot be read: {error.strerror}") from error
    if digest != saved.digest:
        raise DamagedCheckpoint(f"{path}: damaged: checksum {digest:08x}, the manifest says {saved.digest:08x}")
    return path


def _check_size(path: Path, saved: SavedFile) -> None:
    size = path.stat().st_size
    if size != saved.num_bytes:
        raise DamagedCheckpoint(f"{path}: damaged: {size} bytes, the manifest says {saved.num_bytes}")


def _check_names(path: Path, role: str, seen: set[str], wanted: set[str]) -> None:
    if missing := wanted - seen:
        raise CheckpointError(f"{path}: lacks '{min(missing)}', which {role} has")
    if extra := seen - wanted:
        raise CheckpointError(f"{path}: holds '{min(extra)}', which {role} does not have")


def _form(tensor: torch.Tensor) -> str:
    """Its dtype and shape, as a plan writes them: float32[4,8]."""
    return f"{tensor.dtype}".removeprefix("torch.") + f"[{','.join(map(str, tensor.shape))}]"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make the checkpoint valid: one atomic rename. Raises CheckpointError when the disk refuses.

    By then its folder has its name on the disk, too, and that of all checkpoints: those before are removed as soon as this one is valid.
    """
    partial = folder / "manifest.partial"
    try:
        partial.write_bytes(_text(msgspec.structs.replace(manifest, checksum=_checksum(manifest))))
        for above in (folder.parent, folder.parent.parent):
            _sync(above)
        _replace(partial, folder / MANIFEST)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise CheckpointError(f"{folder / MANIFEST}: cannot be written: {error.strerror}") from error


def _text(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest))


def _checksum(manifest: Manifest) -> str:
    return hashlib.blake2b(_text(msgspec.structs.replace(manifest, checksum="")), digest_size=16).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder, its files as large as it says.

    Raises DamagedCheckpoint where one byte of it is another than was written, CheckpointError where it is missing or of another version.
    """
    path = folder / MANIFEST
    try:
        data = read_file(path, most_bytes=_MOST_MANIFEST_BYTES)
    except OSError as error:
        raise CheckpointError(f"{folder}: no complete checkpoint ({error.strerror}: {MANIFEST})") from error
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version != VERSION:
            raise CheckpointError(f"{path}: version {version}, this htrain reads version {VERSION}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path}: damaged: {_one_line(error)}") from error
    if manifest.checksum != _checksum(manifest) or data != _text(manifest):  # the checksum says nothing of spaces
        raise DamagedCheckpoint(f"{path}: damaged: it is not as it was written")
    for role, saved in manifest.files.items():
        _check_listed(path, role, saved)
    return manifest


def _check_listed(path: Path, role: str, saved: SavedFile) -> None:
    wanted = _file_name(role)
    if saved.name != wanted or Path(wanted).name != wanted:
        raise DamagedCheckpoint(f"{path}: {role} names the file '{saved.name}', want '{wanted}' in the same folder")
    file = path.parent / wanted
    if not file.is_file():
        raise DamagedCheckpoint(f"{path}: names the file '{wanted}', which is not there")
    _check_size(file, saved)


@dataclass(frozen=True)
class Found:
    """The checkpoints of a run. `complete` are those that can be read, the latest first; `damaged` tells of those that were written after it and cannot."""

    complete: tuple[tuple[Path, Manifest], ...]
    damaged: tuple[CheckpointError, ...]


def find_checkpoints(run_folder: Path) -> Found:
    """What a run folder holds. One that was given another name is its owner's, not the run's: it is left out. Raises CheckpointError for what is no folder."""
    if not run_folder.is_dir():
        raise CheckpointError(f"{run_folder}: no such run folder")
    complete: list[tuple[Path, Manifest]] = []
    damaged: list[tuple[Path, CheckpointError]] = []
    for folder in _folders(run_folder):
        if not os.path.lexists(folder / MANIFEST):
            continue
        try:
            manifest = read_manifest(folder)
        except CheckpointError as error:
            damaged.append((folder, error))
            continue
        if manifest.name == folder.name:
            complete.append((folder, manifest))
    complete.sort(key=lambda each: (each[1].sequence, each[0].name), reverse=True)
    newest = _written(complete[0][0]) if complete else 0
    return Found(tuple(complete), tuple(error for folder, error in damaged if _written(folder) >= newest))


def _folders(run_folder: Path) -> Iterator[Path]:
    """The folders that are named as checkpoints are."""
    yield from sorted(
        p for p in (run_folder / "checkpoints").glob("examples_*") if _NAME.fullmatch(p.name) and p.is_dir()
    )


def _written(folder: Path) -> int:
    """When a manifest was written, in nanoseconds: all that is known of one that cannot be read."""
    try:
        return (folder / MANIFEST).lstat().st_mtime_ns
    except OSError:
        return 0


def named_checkpoint(run_folder: Path, name: str) -> tuple[Path, Manifest]:
    """The checkpoint of this name. Raises CheckpointError where it is not there, DamagedCheckpoint where it cannot be read."""
    folder = run_folder / "checkpoints" / name
    manifest = read_manifest(folder)
    if not _NAME.fullmatch(name) or manifest.name != name:
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
    """What to raise for a run that has no checkpoint to resume from."""
    return CheckpointError(
        f"{run_folder}: holds no complete checkpoint: the run ended before its first; start it again without --resume"
    )


def new_checkpoint(run_folder: Path, examples: int) -> tuple[Path, int]:
    """A folder, made now, for a checkpoint taken after `examples` examples, and its sequence number. Raises CheckpointError when the disk refuses.

    A run resumed at its end is saved again after no more examples: that must not touch the checkpoint it came from.
    """
    found = find_checkpoints(run_folder)
    sequence = 1 + max((manifest.sequence for _, manifest in found.complete), default=0)
    parent = run_folder / "checkpoints"
    try:
        parent.mkdir(exist_ok=True)
        names = (f"examples_{examples:012d}" + (f"-{again:03d}" if again > 1 else "") for again in range(1, 1 << 30))
        folder = next(path for path in map(parent.joinpath, names) if not os.path.lexists(path))
        folder.mkdir()
    except OSError as error:
        raise CheckpointError(f"{parent}: no checkpoint can be written: {error.strerror}") from error
    return folder, sequence


def prune(run_folder: Path, keep: int = 2, *, spared: Collection[str] = ()) -> None:
    """Remove what interrupted writes left, and all but the newest `keep` >= 1 complete checkpoints and those whose names are `spared`.

    One that is damaged stays for its owner to look at. The folder of an interrupted write stays, empty, until all that are kept are of more examples: a role
    of an earlier try that is not reached, and not gone, may still write to it, and must not find another checkpoint under its name.
    """
    assert keep >= 1
    complete = find_checkpoints(run_folder).complete
    old = {folder for folder, _ in complete[keep:] if folder.name not in spared}
    least = min((manifest.examples for _, manifest in complete[:keep]), default=0)
    for folder in _folders(run_folder):
        is_cut_short = not os.path.lexists(folder / MANIFEST)
        if folder in old or (is_cut_short and _examples_of(folder) < least):
            remove_checkpoint(folder)
        elif is_cut_short:
            _empty(folder)


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

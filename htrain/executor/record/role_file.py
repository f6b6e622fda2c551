"""The file of a role in a checkpoint, safetensors: it appears whole or not at all, and is read together with the one that it builds on."""

import os
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record.checkpoint import (
    Manifest,
    SavedFile,
    base_path,
    check_size,
    file_name,
    one_line_of,
    sync_path,
)
from htrain.executor.record.tensor_file import CHANGED, TensorFile, tensor_file

_CHUNK_BYTES = 1 << 22
_VERIFYING_THREADS = 4


def save_role(folder: Path, role: str, tensors: Mapping[str, torch.Tensor]) -> SavedFile:
    """Write a role's parameters; the file appears whole or not at all. Raises CheckpointError when the disk refuses.

    The tensors are contiguous, share no memory, and are written from where they lie: a table is not copied, unless from an accelerator.
    """
    return write_role(folder, role, tensor_file(tensors))


def write_role(folder: Path, role: str, file: TensorFile) -> SavedFile:
    """The same for what is ready to be written: by system calls alone, so that a process that was forked beside threads can do it. Raises CheckpointError, and
    what a stream raises."""
    path = folder / file_name(role)
    partial = path.with_suffix(".partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            digest = file.write(descriptor)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(partial, path)
        sync_path(path.parent)
    except Exception as error:
        with suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from error
        raise
    return SavedFile(path.name, file.num_bytes, digest)


class RoleValues:
    """The tensors of a role in a checkpoint by their `names`, mapped from its file, and from the one that it builds on."""

    def __init__(self, path: Path, file: Any, base: Any | None) -> None:
        self._path = path
        self._file = file
        self._base = base
        held = set(file.keys())
        self._changed = {name for name in held if f"{name}{CHANGED}" in held} if base else set()
        self.names = held - {f"{name}{CHANGED}" for name in self._changed}

    def of(self, name: str) -> torch.Tensor:
        """One of them, in memory of its own, or mapped so that who writes to it changes no file. Raises DamagedCheckpoint for rows that its base has not."""
        value: torch.Tensor = self._file.get_tensor(name)
        if self._base is None or name not in self._changed:
            return value
        rows = self._file.get_tensor(f"{name}{CHANGED}").long()
        if name not in self._base.keys():  # noqa: SIM118
            raise DamagedCheckpoint(f"{self._path}: holds rows of '{name}', which is not in the file that it builds on")
        whole: torch.Tensor = self._base.get_tensor(name)
        is_of_whole = (value.dtype, value.shape) == (whole.dtype, (len(rows), *whole.shape[1:]))
        if not is_of_whole or (len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(whole)):
            raise DamagedCheckpoint(f"{self._path}: holds other rows of '{name}' than the file that it builds on")
        return whole.index_copy_(0, rows, value)


@contextmanager
def role_values(folder: Path, manifest: Manifest, role: str) -> Iterator[RoleValues]:
    """What a role has in a checkpoint. Raises OSError, SafetensorError for a file that cannot be read; none is verified."""
    path, base = folder / manifest.files[role].name, manifest.base_of(role)
    with safe_open(path, "pt") as file:
        if base is None:
            yield RoleValues(path, file, None)
            return
        with safe_open(base_path(folder, role, base), "pt") as whole:
            yield RoleValues(path, file, whole)


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
    path = verified_role(folder, manifest, role)
    try:
        with role_values(folder, manifest, role) as held:
            _check_names(path, role, held.names, set(tensors))
            values = {name: held.of(name) for name in tensors}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a safetensors file: {one_line_of(error)}") from error
    for name, target in tensors.items():
        if _form(values[name]) != _form(target):
            raise CheckpointError(f"{path}: '{name}' is {_form(values[name])}, {role} wants {_form(target)}")
    for name, target in tensors.items():
        target.copy_(values[name])


def verify(folder: Path, manifest: Manifest) -> None:
    """Read all files of a checkpoint, and what they build on. Raises DamagedCheckpoint for one whose bytes are not those that were written."""
    with ThreadPoolExecutor(_VERIFYING_THREADS) as threads:
        for path in threads.map(lambda role: verified_role(folder, manifest, role), manifest.files):
            assert path.parent == folder


def verified_role(folder: Path, manifest: Manifest, role: str) -> Path:
    """The path of a role's file whose every byte, and every byte of what it builds on, is what was written. Raises DamagedCheckpoint."""
    saved = manifest.files[role]
    if base := manifest.base_of(role):
        _verify_file(base_path(folder, role, base), base.num_bytes, base.digest)
    return _verify_file(folder / saved.name, saved.num_bytes, saved.digest)


def _verify_file(path: Path, num_bytes: int, digest: int) -> Path:
    try:
        check_size(path, num_bytes)
        found = _crc(path)
    except OSError as error:
        raise DamagedCheckpoint(f"{path}: cannot be read: {error.strerror}") from error
    if found != digest:
        raise DamagedCheckpoint(f"{path}: damaged: checksum {found:08x}, the manifest says {digest:08x}")
    return path


def _crc(path: Path) -> int:
    digest = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest = zlib.crc32(chunk, digest)
    return digest


def _check_names(path: Path, role: str, seen: set[str], wanted: set[str]) -> None:
    if missing := wanted - seen:
        raise CheckpointError(f"{path}: lacks '{min(missing)}', which {role} has")
    if extra := seen - wanted:
        raise CheckpointError(f"{path}: holds '{min(extra)}', which {role} does not have")


def _form(tensor: torch.Tensor) -> str:
    """Its dtype and shape, as a plan writes them: float32[4,8]."""
    return f"{tensor.dtype}".removeprefix("torch.") + f"[{','.join(map(str, tensor.shape))}]"

"""What one role has to write for one checkpoint: all that it holds, or what has changed since its last whole share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from htrain.errors import CheckpointError, DamagedCheckpoint
from htrain.executor.record.changes import changed_since
from htrain.executor.record.checkpoint import Base, SavedFile, base_path, check_size
from htrain.executor.record.deltas import Deltas
from htrain.executor.record.role_file import write_role
from htrain.executor.record.tensor_file import Values, file_of


def _keep(part: memoryview) -> None:
    """Memory that others look at, too."""


@dataclass(frozen=True)
class Share:
    """A role's, by name, of a checkpoint in a folder: its `values`, on top of a `base` where that is to be. What has changed is known of all of them where that
    `is_told`: then they are what is to be written."""

    folder: Path
    role: str
    values: Mapping[str, Values]
    base: Base | None
    is_told: bool = False

    def write(self, done_with: Callable[[memoryview], None] = _keep) -> tuple[SavedFile, bool]:
        """The file that was written, and whether it builds on the base. Raises CheckpointError, and what a stream raises.

        `done_with` as of `changed_since`.
        """
        if self.is_told:
            self._check_base()
            return write_role(self.folder, self.role, file_of(self.values)), self.base is not None
        changed = None
        if self.base:
            path = base_path(self.folder, self.role, self.base)
            try:
                changed = changed_since(path, self.base, self.values, done_with)
            except OSError as error:
                raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        return write_role(self.folder, self.role, changed or file_of(self.values)), changed is not None

    def _check_base(self) -> None:
        path = base_path(self.folder, self.role, self.base) if self.base else None
        if path and self.base:
            try:
                check_size(path, self.base.num_bytes)
            except (OSError, DamagedCheckpoint) as error:
                raise CheckpointError(
                    f"{path}: is not as it was written, and what has changed since cannot be written alone"
                ) from error

    def told(self, deltas: Deltas, saved: SavedFile, is_built: bool) -> dict[str, Any]:
        """What a role tells of it, and `deltas` remember."""
        base = self.base if is_built else None
        deltas.written(self.folder.name, saved, base)
        news = {"file": msgspec.to_builtins(saved)}
        return news | {"base": msgspec.to_builtins(base)} if base else news

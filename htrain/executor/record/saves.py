"""A run's checkpoints as its launcher makes them: when the next is due, and what becomes of one that the disk refuses."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from htrain.errors import CheckpointError
from htrain.executor.record.checkpoint import (
    VERSION,
    Manifest,
    SavedFile,
    TrainerState,
    new_checkpoint,
    prune,
    remove_checkpoint,
    write_manifest,
)
from htrain.executor.record.identity import Identity
from htrain.executor.settings import RunSettings

_AGAIN_SECONDS = 30.0  # after one that was refused, where they are not due sooner
States = Mapping[str, Mapping[str, Any]]


class Saves:
    """The checkpoints of one run, the one that it was resumed from included. `last` is the folder of the latest, `error` why there is no later one."""

    def __init__(self, settings: RunSettings, identity: Identity, tell: Callable[[str], None]) -> None:
        self.last: Path | None = Path(settings.restore) if settings.restore else None
        self.error = ""
        self._run_folder = settings.run_folder
        self._every_seconds = math.inf if settings.checkpoint_seconds == "end" else settings.checkpoint_seconds
        self._identity = identity
        self._tell = tell
        self._due = math.inf
        self._open: tuple[Path, int] | None = None

    def begin(self) -> None:
        """Training begins."""
        self._wait(self._every_seconds)

    @property
    def is_due(self) -> bool:
        return time.monotonic() > self._due

    @property
    def advice(self) -> str:
        """What the user can do when the run ends now."""
        if self.last:
            return f"go on with --resume {self._run_folder}"
        return f"it has no checkpoint to go on from: remove {self._run_folder} and start again"

    def open(self, trainers: States) -> Path:
        """A folder for a checkpoint of trainers in these states. Raises CheckpointError."""
        self._open = new_checkpoint(self._run_folder, _examples(trainers))
        return self._open[0]

    def close(self, trainers: States, saved: States, *, finished: bool) -> None:
        """Make the open checkpoint valid: roles have `saved` their files. Raises CheckpointError where one could not, or the disk refuses."""
        assert self._open
        folder, sequence = self._open
        for role, state in saved.items():
            if error := state.get("error"):
                raise CheckpointError(f"{role}: {error}")
        files = {role: SavedFile(*state["file"]) for role, state in saved.items() if state.get("file")}
        states = {name: msgspec.convert(state, TrainerState) for name, state in trainers.items()}
        made = Manifest(
            VERSION,
            folder.name,
            sequence,
            identity=self._identity,
            examples=_examples(trainers),
            trainers=states,
            files=files,
            finished=finished,
        )
        write_manifest(folder, made)
        self._open, self.last, self.error = None, folder, ""
        prune(self._run_folder)
        self._wait(self._every_seconds)
        self._tell(f"checkpoint {folder}")

    def refused(self, error: CheckpointError) -> None:
        """The disk has refused a checkpoint: its beginnings go, and it is tried again."""
        if self._open:
            remove_checkpoint(self._open[0])
        self._open, self.error = None, str(error)
        is_once = self._every_seconds == math.inf
        seconds = math.inf if is_once else min(self._every_seconds, _AGAIN_SECONDS)
        self._wait(seconds)
        self._tell(
            f"no checkpoint: {error}; training goes on" + ("" if is_once else f", it is tried again in {seconds:.0f} s")
        )

    @contextmanager
    def unless_refused(self, what: str) -> Iterator[None]:
        """Write something that a run can do without: what the disk refuses is told."""
        try:
            yield
        except OSError as error:
            self._tell(f"{self._run_folder}: {what} could not be written: {error.strerror}")

    def _wait(self, seconds: float) -> None:
        self._due = time.monotonic() + seconds


def _examples(trainers: States) -> int:
    return sum(int(state["totals"]["examples"]) for state in trainers.values())

"""A run's checkpoints on its disk, as its launcher makes them: one is open until all have saved into it, and valid once it is closed."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from htrain.data.growth import Extent, still
from htrain.data.left import Left
from htrain.decoding import converted
from htrain.errors import CheckpointError
from htrain.executor.record.checkpoint import (
    VERSION,
    Base,
    Manifest,
    SavedFile,
    TrainerState,
    version_of,
    write_manifest,
)
from htrain.executor.record.identity import Identity
from htrain.executor.record.kept import new_checkpoint, prune, remove_checkpoint

States = Mapping[str, Mapping[str, Any]]


class Saves:
    """The checkpoints in one run folder, of which one at a time is open; `spared` names those that stay though they are old. `left` is what the run went on
    with of epochs that another cluster had begun, `extent` is what it reads. `look` raises CheckpointError where the folder is not the run's any more: what
    is there is not removed then."""

    def __init__(
        self,
        run_folder: Path,
        identity: Identity,
        tell: Callable[[str], None],
        spared: Callable[[], Collection[str]] = tuple,
        left: Sequence[Left] = (),
        extent: Extent = Extent(),  # noqa: B008  frozen
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._run_folder = run_folder
        self._identity = identity
        self._tell = tell
        self._spared = spared
        self._left = left
        self._extent = extent
        self._look = look
        self._open: tuple[Path, int] | None = None

    def open(self, trainers: States) -> Path:
        """A folder for a checkpoint of trainers in these states. Raises CheckpointError."""
        self._open = new_checkpoint(self._run_folder, _examples(trainers))
        return self._open[0]

    def close(self, trainers: States, saved: States, *, finished: bool) -> None:
        """Make the open checkpoint valid: roles have `saved` their files. Raises CheckpointError where the disk refuses."""
        assert self._open
        folder, sequence = self._open
        files = {role: SavedFile(*state["file"]) for role, state in saved.items() if state.get("file")}
        bases = {role: Base(*state["base"]) for role, state in saved.items() if state.get("base")}
        states = {name: converted(state, TrainerState) for name, state in trainers.items()}
        epoch = min((state.position.epoch for state in states.values()), default=0)  # that some trainer still reads
        made = Manifest(
            VERSION,
            folder.name,
            sequence,
            identity=self._identity,
            examples=_examples(trainers),
            trainers=states,
            files=files,
            finished=finished,
            left=tuple(each for each in self._left if epoch <= each.last_epoch) or msgspec.UNSET,
            cuts=still(self._extent.cuts, epoch) or msgspec.UNSET,
            bases=bases or msgspec.UNSET,
            by_parts=self._extent.by_parts or msgspec.UNSET,
        )
        write_manifest(folder, msgspec.structs.replace(made, version=version_of(made)))
        self._open = None
        # This one is valid, whatever becomes of older ones; they are looked at again.
        with suppress(OSError, CheckpointError):
            self._look()
            prune(self._run_folder, spared=self._spared())

    def discard(self) -> None:
        """Remove the beginnings of a checkpoint that is not to be."""
        if self._open:
            remove_checkpoint(self._open[0])
        self._open = None

    @contextmanager
    def unless_refused(self, what: str) -> Iterator[None]:
        """Write something that a run can do without: what the disk refuses is told."""
        try:
            yield
        except OSError as error:
            self._tell(f"{self._run_folder}: {what} could not be written: {error.strerror}")


def _examples(trainers: States) -> int:
    return sum(int(state["totals"]["examples"]) for state in trainers.values())

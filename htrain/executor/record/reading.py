"""Checkpoints that somebody reads beside a run that goes on: it removes none of them before that is done.

Who reads one holds a lock of the system on its manifest, which ends with the process that has it, however that ends. A run asks for that lock before it removes
a checkpoint. Where a file system shares no locks between hosts, a reader on another one may find that what it reads has gone.
"""

import fcntl
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from htrain.errors import CheckpointError
from htrain.executor.record.checkpoint import MANIFEST, Manifest

_MOST_TRIES = 100  # at checkpoints that a run removes as soon as they have been found


class Reading:
    """A checkpoint in `folder` that this process reads: it stays, with what it builds on, until this is closed, or nobody has it any more."""

    def __init__(self, folder: Path, manifest: Manifest, descriptor: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self.close = weakref.finalize(self, os.close, descriptor)


def read_beside(choose: Callable[[], tuple[Path, Manifest]]) -> Reading:
    """The checkpoint that `choose` finds; what is removed before it can be held is not it. Raises CheckpointError, and what `choose` does."""
    for _ in range(_MOST_TRIES):
        folder, manifest = choose()
        try:
            descriptor = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckpointError(f"{folder / MANIFEST}: cannot be read: {error.strerror}") from error
        if _hold(descriptor, folder / MANIFEST):
            return Reading(folder, manifest, descriptor)
        os.close(descriptor)
    raise CheckpointError(f"{folder}: was removed while it was read, as were {_MOST_TRIES - 1} before it")


def _hold(descriptor: int, path: Path) -> bool:
    """Whether an open manifest is held, and still stands where it stood."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # its run is about to remove it
        return False
    except OSError:  # there are no locks here
        return True
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def unless_read(folder: Path, remove: Callable[[Path], None]) -> bool:
    """Remove a checkpoint, unless somebody reads it: False then."""
    try:
        descriptor = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        remove(folder)
        return True
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        remove(folder)
        return True
    finally:
        os.close(descriptor)

"""The thread by which a role writes its share of a checkpoint, beside all else that it does (docs/decisions/checkpoints.md)."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from htrain.errors import CheckpointError
from htrain.executor.host.apart import Apart
from htrain.executor.host.memory import give_back, rejoin_pages
from htrain.executor.host.threads import begin_thread, stand_back
from htrain.executor.record.changes import warm_up
from htrain.executor.record.checkpoint import SavedFile
from htrain.executor.record.deltas import Deltas
from htrain.executor.record.share import Share
from htrain.executor.record.tensor_file import values_of
from htrain.printable import one_line

_LEAST_SECONDS = 300.0  # that a process apart has, and those that its bytes take on a slow disk: one that hangs is ended then, and the share refused
_BYTES_PER_SECOND = 10e6


class Saver:
    """One share at a time: `begin`, and once `on_change` has been called, `news`. For the role's main thread.

    A process `apart` writes it, from memory as it was when it began. Of memory that is shared with other processes, or lies in files, a fork has no copy:
    there `begin` returns when all is written. What is large is written as the rows that have changed, where that is worth while.
    """

    def __init__(
        self,
        role: str,
        tensors: Callable[[], Mapping[str, torch.Tensor]],
        on_change: Callable[[], None],
        *,
        apart: bool,
    ) -> None:
        self._role = role
        self._tensors = tensors
        self._on_change = on_change
        self._is_apart = apart
        self._deltas = Deltas()
        self._apart: Apart | None = None
        self._thread: threading.Thread | None = None
        self._is_wanted = threading.Event()  # the thread, for something else
        self._outcome: dict[str, Any] = {}
        self._is_warm = False  # what looks for rows is compiled
        self.cpu_seconds = 0.0  # of the processes that have written

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """That which waits for the process apart, where there was one."""
        return [self._thread] if self._thread else []

    def begin(self, folder: Path, last: str = "") -> None:
        """Write all as it is now, whole or on top of the checkpoint `last`, which is valid. Requires: nothing writes to it meanwhile, and the share before has
        been told of."""
        assert not self._outcome
        self._join()
        tensors = self._tensors()
        if not tensors:
            self._ended({})
            return
        share = Share(folder, self._role, values_of(tensors), self._deltas.base(last) if self._is_warm else None)
        try:
            self._apart = Apart(lambda: msgspec.json.encode(share.write(give_back))) if self._is_apart else None
        except OSError:  # no room for another process
            self._apart = None
        if self._apart is None:
            self._write_here(share)
            return
        self._thread = threading.Thread(
            target=self._wait, args=(self._apart, share, tensors), name=f"{self._role} saving", daemon=True
        )
        self._thread.start()

    def news(self) -> dict[str, Any]:
        """The `file` that was written, nothing for a role that has none, or the `error` that kept it from it; once, under "saved"."""
        outcome, self._outcome = self._outcome, {}
        return outcome

    def stop(self) -> None:
        """End what is being written: nobody waits for it any more."""
        if self._apart:
            self._apart.kill()
        self._join()

    def _join(self) -> None:
        """Until the thread has ended, which may be at its pages."""
        self._is_wanted.set()
        if self._thread:
            self._thread.join()
            self._thread = None
        self._is_wanted.clear()

    def _ended(self, saved: Mapping[str, Any]) -> None:
        self._outcome = {"saved": saved}
        self._on_change()

    def _write_here(self, share: Share) -> None:
        try:
            saved = share.told(self._deltas, *share.write())
        except (CheckpointError, OSError) as error:
            saved = self._refused(error)
        self._ended(saved)
        self._warm_up()

    def _wait(self, apart: Apart, share: Share, tensors: Mapping[str, torch.Tensor]) -> None:
        begin_thread()
        stand_back()
        seconds = _LEAST_SECONDS + sum(tensor.nbytes for tensor in tensors.values()) / _BYTES_PER_SECOND
        try:
            said = apart.result(within=seconds)
            saved = share.told(self._deltas, *msgspec.json.decode(said, type=tuple[SavedFile, bool]))
        except Exception as error:  # whatever it is: without a word nobody would know that there is no share
            saved = self._refused(error)
        self.cpu_seconds += apart.cpu_seconds
        self._ended(saved)
        self._warm_up()
        rejoin_pages(tensors.values(), self._is_wanted.is_set)

    def _warm_up(self) -> None:
        tensors = self._tensors().values()
        if not self._is_warm and self._deltas.are_for(sum(tensor.nbytes for tensor in tensors)):
            warm_up(tensors)
            self._is_warm = True

    def _refused(self, error: Exception) -> dict[str, Any]:
        self._deltas.refused()
        return {"error": one_line(str(error))}

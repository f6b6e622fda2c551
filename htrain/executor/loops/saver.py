"""The thread by which a role writes its share of a checkpoint, beside all else that it does (docs/decisions/checkpoints.md)."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from htrain.decoding import from_json
from htrain.errors import CheckpointError
from htrain.executor.engine.marks import Marks, Snapshot
from htrain.executor.host.apart import Apart
from htrain.executor.host.memory import give_back, rejoin_pages
from htrain.executor.host.threads import begin_thread, stand_back
from htrain.executor.record.changes import marked, warm_up
from htrain.executor.record.checkpoint import SavedFile
from htrain.executor.record.deltas import Deltas
from htrain.executor.record.share import Share
from htrain.executor.record.tensor_file import values_of
from htrain.printable import one_line
from htrain.spec.footprint import MOST_COPIED_BYTES

_LEAST_SECONDS = 300.0  # for a share, and those that its bytes take on a slow disk: then what writes it is ended, or left to itself, and the share refused
_BYTES_PER_SECOND = 10e6


def _seconds_for(num_bytes: int) -> float:
    """How long writing so many bytes may take."""
    return _LEAST_SECONDS + num_bytes / _BYTES_PER_SECOND


class _Writing(threading.Thread):
    """Writes a share out of a snapshot, from now on. Nobody has to wait for it: a store may never answer."""

    def __init__(self, share: Share, snapshot: Snapshot, on_end: Callable[[], None]) -> None:
        super().__init__(name=f"{share.role} writing", daemon=True)
        self._share = share
        self.snapshot = snapshot
        self._on_end = on_end
        self.saved: tuple[SavedFile, bool] | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        begin_thread()
        stand_back()
        try:
            self.saved = self._share.write()
        except Exception as error:  # whatever it is: without a word nobody would know that there is no share
            self.error = error
        self.snapshot.close()
        self._on_end()

    @property
    def has_ended(self) -> bool:
        """Whether it has nothing to do with the store any more."""
        return self.saved is not None or self.error is not None

    def give_up(self) -> None:
        """Steps go on as if there were none, and it comes to an end as soon as the store lets it."""
        self.snapshot.cancel()
        self.snapshot.close()


class Saver:
    """One share at a time: `begin`, and once `on_change` has been called, `news`. For the role's main thread.

    Where `marks` tell of all that is large, a thread writes it out of a snapshot. Else a process `apart` does, from memory as it was when it began. Of memory
    that is shared with other processes, or lies in files, a fork has no copy: there `begin` returns when all is written. What is large is written as the rows
    that have changed, where that is worth while.
    """

    def __init__(
        self,
        role: str,
        tensors: Callable[[], Mapping[str, torch.Tensor]],
        on_change: Callable[[], None],
        *,
        apart: bool,
        marks: Marks | None = None,
    ) -> None:
        self._role = role
        self._tensors = tensors
        self._on_change = on_change
        self._is_apart = apart
        self._marks = marks
        self._writing: _Writing | None = None
        self._is_over = threading.Event()  # the writing, or all waiting for it
        self._deltas = Deltas()
        self._apart: Apart | None = None
        self._thread: threading.Thread | None = None
        self._is_wanted = threading.Event()  # the thread, for something else
        self._outcome: dict[str, Any] = {}
        self._is_warm = False  # what looks for rows is compiled
        self.cpu_seconds = 0.0  # of the processes that have written

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """That which waits for what writes, where there was one, and that which writes."""
        return [thread for thread in (self._thread, self._writing) if thread]

    def begin(self, folder: Path, last: str = "") -> None:
        """Write all as it is now, whole or on top of the checkpoint `last`, which is valid. Requires: nothing writes to it meanwhile, and the share before has
        been told of."""
        assert not self._outcome
        self._join()
        tensors = self._tensors()
        if not tensors:
            self._ended({})
            return
        if self._writing and not self._writing.has_ended:
            self._ended(self._refused(CheckpointError(f"{folder}: the store still holds up the share before")))
            return
        if self._begin_beside(folder, last, tensors):
            return
        share = Share(folder, self._role, values_of(tensors), self._deltas.base(last) if self._is_warm else None)
        try:
            self._apart = Apart(lambda: msgspec.json.encode(share.write(give_back))) if self._is_apart else None
        except OSError:  # no room for another process
            self._apart = None
        if self._apart is None:
            self._write_here(share)
            return
        self._begin_thread(self._wait, self._apart, share, tensors)

    def _begin_beside(self, folder: Path, last: str, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Write it out of a snapshot, where what has none is little: that is copied now."""
        told = self._marks.told() if self._marks else {}
        rest = {name: tensor for name, tensor in tensors.items() if name not in told}
        is_for_a_fork = not told and self._is_apart
        if not self._marks or is_for_a_fork or sum(tensor.nbytes for tensor in rest.values()) > MOST_COPIED_BYTES:
            return False
        base = self._deltas.base(last)
        try:
            snapshot = self._marks.cut(folder.name, base.checkpoint if base else "")
        except OSError:  # no room for it
            return False
        values = marked(snapshot) | values_of({name: tensor.detach().clone() for name, tensor in rest.items()})
        share = Share(folder, self._role, values, None if snapshot.is_whole else base, is_told=True)
        self._is_over.clear()
        self._writing = _Writing(share, snapshot, self._is_over.set)
        self._begin_thread(self._await, self._writing, share, sum(tensor.nbytes for tensor in tensors.values()))
        return True

    def _begin_thread(self, loop: Callable[..., None], *given: Any) -> None:
        self._thread = threading.Thread(target=loop, args=given, name=f"{self._role} saving", daemon=True)
        self._thread.start()

    def news(self) -> dict[str, Any]:
        """The `file` that was written, nothing for a role that has none, or the `error` that kept it from it; once, under "saved"."""
        outcome, self._outcome = self._outcome, {}
        return outcome

    def stop(self) -> None:
        """End what is being written: nobody waits for it any more."""
        if self._apart:
            self._apart.kill()
        if self._writing:
            self._writing.give_up()
        self._is_over.set()
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

    def _await(self, writing: _Writing, share: Share, num_bytes: int) -> None:
        begin_thread()
        seconds = _seconds_for(num_bytes)
        self._is_over.wait(seconds)
        if writing.saved:
            saved = share.told(self._deltas, *writing.saved)
        else:
            writing.give_up()
            saved = self._refused(
                writing.error or CheckpointError(f"{share.folder}: not written within {seconds:.0f} s")
            )
        self._ended(saved)
        if self._marks and not self._is_warm:
            self._marks.warm_up()
            self._is_warm = True

    def _wait(self, apart: Apart, share: Share, tensors: Mapping[str, torch.Tensor]) -> None:
        begin_thread()
        stand_back()
        seconds = _seconds_for(sum(tensor.nbytes for tensor in tensors.values()))
        try:
            said = apart.result(within=seconds)
            saved = share.told(self._deltas, *from_json(said, tuple[SavedFile, bool]))
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

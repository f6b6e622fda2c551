"""The thread by which a role writes its share of a version of the model, beside all else that it does (HT 4.3)."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from htrain.errors import Error
from htrain.executor.host.threads import begin_thread, stand_back
from htrain.printable import one_line
from htrain.publishing.shares import Publishing
from htrain.publishing.storage import Storage, storage_of
from htrain.publishing.writing import Writer


class Publisher:
    """One version at a time: `begin`, and once `on_change` has been called, `news`. For the role's main thread."""

    def __init__(
        self,
        role: str,
        publishing: Publishing,
        tensors: Mapping[str, torch.Tensor],
        numbers: Mapping[str, torch.Tensor],
        on_change: Callable[[], None],
    ) -> None:
        self._role = role
        self._address = publishing.address
        self._writer = Writer(role, publishing.shares.get(role, ()), tensors=tensors, numbers=numbers)
        self._on_change = on_change
        self._storage: Storage | None = None
        self._thread: threading.Thread | None = None
        self._outcome: dict[str, Any] = {}

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """That which writes, while it does."""
        return [self._thread] if self._thread else []

    def begin(self, version: str, base: str) -> None:
        """Write a version, on top of `base`: dense weights as they are now."""
        assert not self._thread
        self._writer.take()
        self._thread = threading.Thread(
            target=self._write, args=(version, base), name=f"{self._role} publishing", daemon=True
        )
        self._thread.start()

    def news(self) -> dict[str, Any]:
        """The `objects` that were written, or the `error` that kept them from it, once; nothing where nothing has ended."""
        outcome, self._outcome = self._outcome, {}
        if outcome and self._thread:
            self._thread.join()
            self._thread = None
        return outcome

    def _write(self, version: str, base: str) -> None:
        begin_thread()
        stand_back()
        try:
            self._storage = self._storage or storage_of(self._address)
            objects = self._writer.write(self._storage, version, base)
            self._outcome = {"objects": msgspec.to_builtins(objects)}
        except Error as error:
            self._outcome = {"error": str(error)}
        except Exception as error:  # training goes on without
            self._outcome = {"error": one_line(f"{type(error).__name__}: {error}")}
        self._on_change()

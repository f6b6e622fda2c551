"""The batches that a net replica will train on next, opened ahead of it."""

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from htrain.data import Position
from htrain.executor.engine.engine import Engine
from htrain.executor.roles.feed import Feed
from htrain.executor.roles.replica import Replica, Step


class Upcoming:
    """Where a replica's steps come from. Caches that stand before its tables go with it.

    Its `threads` are ended by `stop`; `error` is why it cannot go on.
    """

    error: Exception | None = None
    threads: Sequence[threading.Thread] = ()

    def start(
        self,
        feed: Feed,
        open_step: Callable[[Mapping[str, torch.Tensor], int], Step],
        empty: Mapping[str, torch.Tensor],
    ) -> None:
        """Begin; `open_step` takes a batch, and tells the caches its ids; `empty` is one of no examples."""

    @abstractmethod
    def next(self) -> Step | None:
        """The next batch, opened, not asked for; None at the end of the data."""

    def ended(self) -> None:
        """The step that was taken last has been run."""

    @abstractmethod
    def flush(self) -> None:
        """All updates are where the tables are when this returns. Raises PeerLost."""

    @property
    def seconds_waited(self) -> float:
        """For how long training has waited for this."""
        return 0.0

    @property
    def report(self) -> Mapping[str, Any]:
        """What a role says of it beside its caches."""
        return {}

    def close(self) -> None:
        """Close what the trainer's own thread has used; it is called there, at the end."""

    def stop(self) -> None:
        """End all threads."""


class Ahead(Upcoming):
    """`ahead` batches are open, so that caches have heard of those behind the next one; `flush` empties these."""

    def __init__(
        self, replica: Replica, feed: Feed, ahead: int, flush: Engine, is_stopping: Callable[[], bool]
    ) -> None:
        self._replica = replica
        self._feed = feed
        self._ahead = ahead
        self._flush = flush
        self._is_stopping = is_stopping
        self._open: deque[tuple[Step, Position]] = deque()

    def next(self) -> Step | None:
        while len(self._open) < self._ahead and (batch := None if self._is_stopping() else self._feed.next()):
            inputs = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
            self._open.append((self._replica.open(inputs, batch.num_examples), batch.position))
        if not self._open:
            return None
        step, position = self._open.popleft()
        self._feed.taken(position)
        return step

    def flush(self) -> None:
        self._replica.run_apart(self._flush, {})

"""Sources of steps that have threads of their own, such as those behind a look-ahead cache."""

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from htrain.executor.host.watch import Activity
from htrain.executor.loops.feed import Feed
from htrain.executor.roles.replica import Call, Machine, Source, Step


class Steps(Protocol):
    """What a replica does with its steps before they are run."""

    def open(self, inputs: Mapping[str, torch.Tensor], num_examples: int, activity: Activity) -> Step:
        """Take a batch; caches hear what it will ask for."""

    def prepare(self, step: Step, activity: Activity) -> None:
        """Bring what is known of an opened step to where it is computed."""


class Upcoming:
    """A source of a replica's steps that has threads. They are ended by `stop`; `error` is why it cannot go on."""

    error: Exception | None = None
    threads: Sequence[threading.Thread] = ()

    def start(
        self,
        feed: Feed,
        steps: Steps,
        empty: Mapping[str, torch.Tensor],
    ) -> None:
        """Begin; `empty` is a batch of no examples."""

    @abstractmethod
    def next(self) -> Step | None:
        """The next batch, opened, not asked for; None at the end of the data."""

    @abstractmethod
    def has_more(self) -> bool:
        """Whether there is a next batch."""

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


class Called(Source):
    """A source whose threads are called, and waited for."""

    def __init__(self, upcoming: Upcoming) -> None:
        self._upcoming = upcoming

    def next(self) -> Machine[Step | None]:
        step: Step | None = yield Call(self._upcoming.next)
        return step

    def has_more(self) -> Machine[bool]:
        more: bool = yield Call(self._upcoming.has_more)
        return more

    def ended(self) -> Machine[None]:
        yield Call(self._upcoming.ended)

    def flush(self) -> Machine[None]:
        yield Call(self._upcoming.flush)

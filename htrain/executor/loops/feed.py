"""The data of one trainer, read ahead of its net replicas."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from htrain.data import Batch, Position
from htrain.executor.host.watch import Activity

_POLL_SECONDS = 0.2
_LAST_SECONDS = 5.0  # for the reader to notice that it is to end


@dataclass
class _Handed:
    """A batch that a replica has, up to a position."""

    position: Position
    has_ended: bool = False


class Feed:
    """Batches for all replicas of a trainer, read ahead by one thread. `position` is where a resumed run goes on: all before it is on its way, or trained.
    All before `start` is trained; of what is behind it, `trained` says which batches are.

    One that begins with batches that have been `trained` already passes them over; until it has come to the last of these it `is_behind`.

    What the reader cannot read ends the data here, as its `error`, of which its thread calls `on_error`: what has been trained until then is to be saved
    first.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        position: Position,
        ahead: int,
        activity: Activity,
        trained: Collection[Position] = (),
    ) -> None:
        self.position = self.start = position
        self.error: Exception | None = None
        self.on_error: Callable[[], None] = lambda: None
        self._activity = activity
        self._batches = batches
        self._queue: queue.Queue[Batch | None] = queue.Queue(maxsize=ahead)
        self._lock = threading.Lock()
        self._passed = frozenset(trained)
        self._furthest = max(trained, default=position, key=_order)
        self._handed: deque[_Handed] = deque()
        self._turn = threading.Lock()  # of the replica that waits for the next batch
        self._over = False
        self._stopping = False
        self.thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self.thread.start()

    def next(self) -> Batch | None:
        """The next batch, or None at the end of the data."""
        with self._turn:
            while not self._over:
                with suppress(queue.Empty):
                    batch = self._queue.get(timeout=_POLL_SECONDS)
                    if batch is None:
                        self._over = True
                    elif not self._hand(batch.position):
                        return batch
                    continue
                self._over = self._stopping
            return None

    def _hand(self, position: Position) -> bool:
        """A batch comes to its turn: whether it was trained already."""
        with self._lock:
            is_trained = position in self._passed
            self._handed.append(_Handed(position, has_ended=is_trained))
            if is_trained:
                self.position = max(self.position, position, key=_order)
            self._advance()
        return is_trained

    def _advance(self) -> None:
        while self._handed and self._handed[0].has_ended:
            self.start = self._handed.popleft().position

    def taken(self, position: Position) -> None:
        """A batch is on its way, and so are all before it."""
        with self._lock:
            self.position = max(self.position, position, key=_order)

    def ended(self, position: Position) -> None:
        """The batch up to this position is trained."""
        with self._lock:
            for handed in self._handed:
                if handed.position == position:
                    handed.has_ended = True
            self._advance()

    @property
    def trained(self) -> list[Position]:
        """The ends of batches behind `start` that are trained."""
        with self._lock:
            later = [position for position in self._passed if _order(position) > _order(self.start)]
            handed = [handed.position for handed in self._handed if handed.has_ended]
        return sorted({*later, *handed}, key=_order)

    @property
    def num_kept(self) -> int:
        """The batches behind `start` that replicas have, or have trained."""
        return len(self._handed)

    @property
    def num_open(self) -> int:
        """The batches that replicas have and have not trained to their ends."""
        with self._lock:
            return sum(not handed.has_ended for handed in self._handed)

    @property
    def is_behind(self) -> bool:
        """Whether `position` is before what has been trained: a run that goes on from there would train it again."""
        return _order(self.position) < _order(self._furthest)

    def stop(self) -> None:
        """End the reading thread, unless it hangs."""
        self._stopping = True
        deadline = time.monotonic() + _LAST_SECONDS
        while self.thread.is_alive() and time.monotonic() < deadline:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self.thread.join(timeout=0.05)

    def _read(self) -> None:
        try:
            while not self._stopping and (batch := self._read_one()) is not None:
                self._queue.put(batch)
        except Exception as error:
            self.error = error
            self.on_error()
        self._queue.put(None)

    def _read_one(self) -> Batch | None:
        with self._activity.at("reading"):
            return next(self._batches, None)


def _order(position: Position) -> tuple[int, int, int]:
    return position.epoch, position.chunk, position.row

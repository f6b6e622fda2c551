"""The data of one trainer, read ahead of its net replicas."""

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

from htrain.data import Batch, Position
from htrain.executor.host.watch import Activity
from htrain.executor.roles.handed import Handed

_POLL_SECONDS = 0.2
_LAST_SECONDS = 5.0  # for the reader to notice that it is to end


class Feed:
    """Batches for all replicas of a trainer, read ahead by one thread. Which of them are on their way, or trained, it knows as Handed does
    (htrain.executor.roles.handed).

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
        *,
        keeps: bool = True,
    ) -> None:
        self.error: Exception | None = None
        self.on_error: Callable[[], None] = lambda: None
        self._activity = activity
        self._batches = batches
        self._queue: queue.Queue[Batch | None] = queue.Queue(maxsize=ahead)
        self._lock = threading.Lock()
        self._handed = Handed(position, trained, keeps=keeps)
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
        with self._lock:
            return self._handed.hand(position)

    @property
    def position(self) -> Position:
        """Where a resumed run goes on."""
        return self._handed.position

    @property
    def is_behind(self) -> bool:
        """Whether `position` is before what has been trained."""
        return self._handed.is_behind

    def taken(self, position: Position) -> None:
        """A batch is on its way, and so are all before it."""
        with self._lock:
            self._handed.taken(position)

    def ended(self, position: Position) -> None:
        """The batch up to this position is trained."""
        with self._lock:
            self._handed.ended(position)

    def word(self, totals: Any) -> bytes:
        """From where another process would go on, should this one end now (`Handed.word`)."""
        with self._lock:
            return self._handed.word(totals)

    @property
    def num_kept(self) -> int:
        """The batches that a word tells of one by one."""
        return self._handed.num_kept

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

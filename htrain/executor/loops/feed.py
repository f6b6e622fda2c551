"""The data of one trainer, read ahead of its net replicas."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from htrain.data import Batch, Position
from htrain.executor.host.watch import Activity

_POLL_SECONDS = 0.2
_LAST_SECONDS = 5.0  # for the reader to notice that it is to end


class Feed:
    """Batches for all replicas of a trainer, read ahead by one thread. `position` is where a resumed run goes on.

    What the reader cannot read ends the data here, as its `error`, of which its thread calls `on_error`: what has been trained until then is to be saved
    first.
    """

    def __init__(self, batches: Iterator[Batch], position: Position, ahead: int, activity: Activity) -> None:
        self.position = position
        self.error: Exception | None = None
        self.on_error: Callable[[], None] = lambda: None
        self._activity = activity
        self._batches = batches
        self._queue: queue.Queue[Batch | None] = queue.Queue(maxsize=ahead)
        self._lock = threading.Lock()
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
                    self._over = batch is None
                    return batch
                self._over = self._stopping
            return None

    def taken(self, position: Position) -> None:
        """A batch is on its way, and so are all before it."""
        with self._lock:
            self.position = max(self.position, position, key=lambda p: (p.epoch, p.chunk, p.row))

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

"""The data of one trainer, read ahead of its net replicas."""

import queue
import threading
from collections.abc import Iterator

from htrain.data import Batch, Position


class Feed:
    """Batches for all replicas of a trainer, read ahead by one thread. `position` is where a resumed run goes on."""

    def __init__(self, batches: Iterator[Batch], position: Position, ahead: int) -> None:
        self.position = position
        self.error: Exception | None = None
        self._batches = batches
        self._queue: queue.Queue[Batch | None] = queue.Queue(maxsize=ahead)
        self._lock = threading.Lock()
        self._over = False
        self._stopping = False
        self.thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self.thread.start()

    def next(self) -> Batch | None:
        """The next batch, or None at the end of the data. Raises what the reader raised."""
        with self._lock:
            batch = None if self._over else self._queue.get()
            if batch is None:
                self._over = True
                if self.error:
                    raise self.error
                return None
            return batch

    def taken(self, position: Position) -> None:
        """A batch is on its way, and so are all before it."""
        with self._lock:
            self.position = max(self.position, position, key=lambda p: (p.epoch, p.chunk, p.row))

    def stop(self) -> None:
        """End the reading thread."""
        self._stopping = True
        while self.thread.is_alive():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self.thread.join(timeout=0.05)

    def _read(self) -> None:
        try:
            for batch in self._batches:
                self._queue.put(batch)
                if self._stopping:
                    return
        except Exception as error:
            self.error = error
        self._queue.put(None)

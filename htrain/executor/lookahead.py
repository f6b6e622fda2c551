"""Training out of look-ahead caches: windows are read and prefetched ahead, rows written back behind (cDLRM 4, 5)."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from htrain.data import Position
from htrain.errors import Error, PeerLost, RunError
from htrain.executor.exchange import Exchange, Wishes
from htrain.executor.feed import Feed
from htrain.executor.replica import Replica, Step
from htrain.executor.table_cache import TableCache, WindowOfTable
from htrain.executor.wire import PREFETCHER, VICTIMS, WRITER
from htrain.sync.lookahead.journal import Written
from htrain.sync.lookahead.window import WindowChoice

_WINDOWS_READY = 1  # that wait to be trained on, besides the one that is being prefetched
_WRITES_WAITING = 64


@dataclass
class _Window:
    """Batches that have been read, and the rows that they need."""

    steps: deque[tuple[Step, Position]]
    tables: dict[str, WindowOfTable]
    prefetch_seconds: float


class Lookahead:
    """The prefetcher, the writer, and what the trainer does between its steps. `replica_of` makes the replica of a thread's passes.

    `stall_seconds` is for how long training has waited for windows, `place_seconds` how long it took to put them into the caches, and
    `prefetch_seconds`, which training does not wait for, to find and read their rows.
    """

    def __init__(
        self,
        caches: Mapping[str, TableCache],
        exchange: Exchange,
        replica_of: Callable[[int], Replica],
        choice: WindowChoice,
        deadline_seconds: float,
    ) -> None:
        self.error: Exception | None = None
        self.choice = choice
        self.stall_seconds = 0.0
        self.place_seconds = 0.0
        self.prefetch_seconds = 0.0
        self._caches = caches
        self._exchange = exchange
        self._victims = replica_of(VICTIMS)
        self._deadline_seconds = deadline_seconds
        self._windows: queue.Queue[_Window | None] = queue.Queue(_WINDOWS_READY)
        self._writes: queue.Queue[dict[str, Written]] = queue.Queue(_WRITES_WAITING)
        self._steps: deque[tuple[Step, Position]] = deque()
        self._stopping = threading.Event()
        self._over = False
        self._handed = self._stored = 0  # jobs given to the writer, and done by it
        self._training_began = time.monotonic()
        self.threads = [
            threading.Thread(target=self._guarded, args=(self._prefetch, replica_of(PREFETCHER)), name="prefetcher", daemon=True),
            threading.Thread(target=self._guarded, args=(self._write_back, replica_of(WRITER)), name="writer", daemon=True),
        ]

    def start(self, feed: Feed, open_step: Callable[[Mapping[str, torch.Tensor], int], Step]) -> None:
        """Read ahead from now on; `open_step` takes a batch, and tells the caches its ids."""
        self._feed = feed
        self._open_step = open_step
        for thread in self.threads:
            thread.start()

    # -- the trainer's side ------------------------------------------------------------------------------------------

    def next(self) -> Step | None:
        """The next batch, its rows in the caches; None at the end of the data. Raises PeerLost, and what another thread has raised."""
        if not self._steps and not self._next_window():
            return None
        step, position = self._steps.popleft()
        self._feed.taken(position)
        self._fetch_victims()
        return step

    def ended(self) -> None:
        """The step has been run: its victims leave."""
        self._write()

    def flush(self) -> None:
        """Every row of the caches is in the store when this returns; it stays in the cache as well. Raises PeerLost."""
        for cache in self._caches.values():
            cache.leave_copies()
        self._write()
        deadline = time.monotonic() + self._deadline_seconds
        while self._stored < self._handed and not self._stopping.is_set():
            self._check()
            if time.monotonic() > deadline:
                raise PeerLost(f"rows of the look-ahead caches were not written back within {self._deadline_seconds:.0f} s")
            time.sleep(0.001)

    @property
    def seconds_waited(self) -> float:
        """For how long the trainer has waited, for windows and for conflict victims."""
        return self.stall_seconds + self._victims.seconds_waited

    @property
    def report(self) -> dict[str, float]:
        """For the metrics."""
        seconds = {name: getattr(self, name) for name in ("stall_seconds", "place_seconds", "prefetch_seconds")}
        return {"window": self.choice.batches, **seconds}

    def stop(self) -> None:
        self._stopping.set()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(timeout=10)

    def _next_window(self) -> bool:
        if self._over:
            return False
        began = time.monotonic()
        window = self._get_window()
        placing = time.monotonic()
        if window is None:
            self._over = True
            return False
        for name, cache in self._caches.items():
            cache.place(window.tables[name])
        self._write()
        ended = time.monotonic()
        self.stall_seconds += placing - began
        self.place_seconds += ended - placing
        self.prefetch_seconds += window.prefetch_seconds
        trained, self._training_began = began - self._training_began, ended
        self.choice.trained(
            batches=len(window.steps), train_seconds=trained, prefetch_seconds=window.prefetch_seconds,
            place_seconds=ended - placing, stall_seconds=placing - began,
        )  # fmt: skip
        self._steps = window.steps
        return True

    def _get_window(self) -> _Window | None:
        while True:
            self._check()
            try:
                return self._windows.get(timeout=0.2)
            except queue.Empty:
                if self._stopping.is_set():
                    return None

    def _fetch_victims(self) -> None:
        victims = {name: keys for name, cache in self._caches.items() if (keys := cache.begin_step()).size}
        if victims:
            wishes = {name: Wishes.to_read(keys, self._exchange.width_of(name)) for name, keys in victims.items()}
            for name, rows in self._exchange.run(self._victims, wishes).items():
                self._caches[name].take_victims(rows)

    def _write(self) -> None:
        """Hand what has left the caches to the writer, in order."""
        left = {name: cache.leaving() for name, cache in self._caches.items()}
        while any(left.values()):
            job = {name: written.pop(0) for name, written in left.items() if written}
            while not self._stopping.is_set():
                self._check()
                try:
                    self._writes.put(job, timeout=0.2)
                    self._handed += 1
                    break
                except queue.Full:
                    continue

    def _check(self) -> None:
        if self.error:
            raise self.error

    # -- the other threads -------------------------------------------------------------------------------------------

    def _guarded(self, loop: Callable[[Replica], None], replica: Replica) -> None:
        torch.set_grad_enabled(False)
        replica.stopping = self._stopping.is_set
        try:
            loop(replica)
        except Exception as error:
            self.error = error if isinstance(error, Error) else RunError(f"{replica.endpoint}: {type(error).__name__}: {error}")

    def _prefetch(self, replica: Replica) -> None:
        """Algorithm 1: a window of batches, the distinct rows of each table, and where they are not here, their values."""
        while not self._stopping.is_set():
            steps = self._read_batches(self.choice.batches)
            window = None
            if steps:
                began = time.monotonic()
                self._let_writes_pass()
                tables = {name: cache.window() for name, cache in self._caches.items()}
                wishes = {n: Wishes.to_read(t.keys[t.wanted], self._exchange.width_of(n)) for n, t in tables.items()}
                for name, rows in self._exchange.run(replica, wishes).items():
                    tables[name].take(rows)
                window = _Window(steps, tables, time.monotonic() - began)
            self._put(window)
            if window is None:
                return

    def _let_writes_pass(self) -> None:
        """What has left the caches is in the store before it is read: fewer rows are stale, with the patch or without."""
        handed = self._handed
        while self._stored < handed and not self._stopping.is_set() and not self.error:
            time.sleep(0.001)

    def _read_batches(self, count: int) -> deque[tuple[Step, Position]]:
        steps: deque[tuple[Step, Position]] = deque()
        while len(steps) < count and not self._stopping.is_set() and (batch := self._feed.next()):
            inputs = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
            steps.append((self._open_step(inputs, batch.num_examples), batch.position))
        return steps

    def _put(self, window: _Window | None) -> None:
        while not self._stopping.is_set():
            try:
                self._windows.put(window, timeout=0.2)
                return
            except queue.Full:
                continue

    def _write_back(self, replica: Replica) -> None:
        while not self._stopping.is_set():
            try:
                job = self._writes.get(timeout=0.2)
            except queue.Empty:
                continue
            self._exchange.run(replica, {name: Wishes.to_write(w.keys, w.rows) for name, w in job.items()})
            for name, written in job.items():
                self._caches[name].stored(written.number)
            self._stored += 1

"""Training out of look-ahead caches: windows are read and prefetched ahead, rows written back behind (cDLRM 4, 5)."""

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from htrain.data import Position
from htrain.errors import Error, PeerLost, RunError
from htrain.executor.engine.context import PREFETCHER, VICTIMS, WRITER
from htrain.executor.host.patience import Patience
from htrain.executor.host.threads import begin_thread
from htrain.executor.loops.feed import Feed
from htrain.executor.loops.replica import Replica
from htrain.executor.loops.upcoming import Upcoming
from htrain.executor.roles.replica import Step
from htrain.executor.strategies.lookahead.exchange import Exchange, Wishes
from htrain.executor.strategies.lookahead.joint_caches import JointCaches
from htrain.executor.strategies.lookahead.table_cache import TableCache, WindowOfTable, distinct
from htrain.executor.transport.peers import Ids, Peers, Rows
from htrain.sync.lookahead.journal import Written
from htrain.sync.lookahead.window import WindowChoice

_WRITES_WAITING = 64


@dataclass
class _Window:
    """Batches that have been read, and the rows that they need. Batches of no examples have no position."""

    steps: deque[tuple[Step, Position | None]]
    tables: dict[str, WindowOfTable]
    prefetch_seconds: float


class Windows(Upcoming):
    """The prefetcher, the writer, and what the trainer does between its steps. `replica_of` makes the replica of a thread's passes, `connect` the
    peers for a purpose: the other trainers with the same caches, where there are any.

    `stall_seconds` is for how long training has waited for windows, `place_seconds` how long it took to put them into the caches, and
    `prefetch_seconds`, which training does not wait for, to find and read their rows.
    """

    def __init__(
        self,
        caches: Mapping[str, TableCache],
        exchange: Exchange,
        replica_of: Callable[[int], Replica],
        connect: Callable[[str], Peers],
        choice: WindowChoice,
        average_every: int,
        patience: Patience,
    ) -> None:
        self.error: Exception | None = None
        self.choice = choice
        self.stall_seconds = 0.0
        self.place_seconds = 0.0
        self.prefetch_seconds = 0.0
        self._caches = caches
        self._joint = JointCaches(caches, Peers(None), average_every)
        self._average_every = average_every
        self._connect = connect
        self._exchange = exchange
        self._victims = replica_of(VICTIMS)
        self._patience = patience
        self._windows: queue.Queue[_Window | None] = queue.Queue(1)
        self._writes: queue.Queue[dict[str, Written]] = queue.Queue(_WRITES_WAITING)
        self._steps: deque[tuple[Step, Position | None]] = deque()
        self._stopping = threading.Event()
        self._over = False
        self._is_first = True
        self._bytes: tuple[Counter[str], ...] = ()
        self._batches = choice.batches  # of the next window, on all trainers
        self._handed = self._stored = 0  # jobs given to the writer, and done by it
        self._placed = threading.Semaphore()  # the prefetcher's turn: the window before is in the caches
        self._training_began = time.monotonic()
        self.threads = [
            threading.Thread(
                target=self._guarded, args=(self._prefetch, replica_of(PREFETCHER)), name="prefetcher", daemon=True
            ),
            threading.Thread(
                target=self._guarded, args=(self._write_back, replica_of(WRITER)), name="writer", daemon=True
            ),
        ]

    def start(
        self,
        feed: Feed,
        open_step: Callable[[Mapping[str, torch.Tensor], int], Step],
        empty: Mapping[str, torch.Tensor],
    ) -> None:
        """Read ahead from now on; `open_step` takes a batch, and tells the caches its ids; `empty` is one of no examples."""
        self._feed = feed
        self._open_step = open_step
        self._empty = empty
        for thread in self.threads:
            thread.start()

    # -- the trainer's side ------------------------------------------------------------------------------------------

    def next(self) -> Step | None:
        """The next batch, its rows in the caches; None at the end of the data. Raises PeerLost, and what another thread has raised.

        Of several trainers, one without data has batches of no examples until all are at the end.
        """
        if not self._steps and not self._next_window():
            return None
        step, position = self._steps.popleft()
        if position:
            self._feed.taken(position)
        self._fetch_victims()
        return step

    def ended(self) -> None:
        """The step has been run: its victims leave."""
        self._joint.end_step()
        self._write()

    def flush(self) -> None:
        """Every row of the caches is in the store when this returns; it stays in the cache as well. Raises PeerLost."""
        self._joint.leave_copies()
        self._write()
        seconds = self._patience.seconds
        deadline = time.monotonic() + seconds
        while self._stored < self._handed and not self._stopping.is_set():
            self._check()
            if time.monotonic() > deadline:
                raise PeerLost(f"rows of the look-ahead caches were not written back within {seconds:.0f} s")
            time.sleep(0.001)

    @property
    def seconds_waited(self) -> float:
        """For how long the trainer has waited, for windows and for conflict victims."""
        return self.stall_seconds + self._victims.seconds_waited

    @property
    def report(self) -> dict[str, Any]:
        """For the metrics."""
        seconds = {name: getattr(self, name) for name in ("stall_seconds", "place_seconds", "prefetch_seconds")}
        num_bytes = sum((counted.copy() for counted in self._bytes), Counter[str]())
        return {"window": self._batches, "bytes": dict(num_bytes), **seconds}

    def close(self) -> None:
        """Let go of the sockets of the trainer's side. For its thread."""
        self._victims.close()

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
        self._joint.place(window.tables)
        self._write()
        self._placed.release()
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
        if victims := self._joint.begin_step():
            self._joint.take_victims(self._read_rows(self._victims, victims))

    def _write(self) -> None:
        """Hand what has left the caches to the writer, in order."""
        for job in self._joint.leaving():
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
        begin_thread()
        replica.stopping = self._stopping.is_set
        try:
            loop(replica)
        except Exception as error:
            self.error = (
                error if isinstance(error, Error) else RunError(f"{replica.endpoint}: {type(error).__name__}: {error}")
            )
        finally:
            replica.close()

    def _prefetch(self, replica: Replica) -> None:
        peers, others = self._connect("windows"), self._connect("caches")
        self._joint = JointCaches(self._caches, others, self._average_every)
        self._is_first, self._bytes = peers.is_first, (peers.bytes, others.bytes)
        while window := self._make_window(replica, peers):
            self._put(window)
        self._put(None)

    def _make_window(self, replica: Replica, peers: Peers) -> _Window | None:
        """Algorithm 1: a window of batches, the distinct rows of each table, and where they are not here, their values. None at the end."""
        steps = self._read_batches(self._batches)
        if not self._is_my_turn():
            return None
        began = time.monotonic()
        said, *announced = peers.gather(
            [np.array([len(steps), self.choice.batches]), *(c.announced() for c in self._caches.values())]
        )
        self._batches = int(said[0][1])
        count = max(int(batches) for batches, _ in said)
        steps.extend((self._open_step(self._empty, 0), None) for _ in range(count - len(steps)))
        if not steps:
            return None
        self._let_writes_pass()
        tables = {
            name: cache.window(distinct(keys))
            for (name, cache), keys in zip(self._caches.items(), announced, strict=True)
        }
        fetched = self._read_rows(replica, {name: table.keys[table.wanted] for name, table in tables.items()})
        for table, rows in zip(tables.values(), peers.share([fetched[name] for name in tables]), strict=True):
            table.take(rows)
        return _Window(steps, tables, time.monotonic() - began)

    def _read_rows(self, replica: Replica, keys: Mapping[str, Ids]) -> dict[str, Rows]:
        """The rows of keys of tables, from the store; on all trainers but the first something of their shape."""
        widths = {name: self._exchange.width_of(name) for name in keys}
        if not self._is_first:
            return {name: np.empty((wanted.size, widths[name]), np.float32) for name, wanted in keys.items()}
        return self._exchange.run(
            replica, {name: Wishes.to_read(wanted, widths[name]) for name, wanted in keys.items()}
        )

    def _is_my_turn(self) -> bool:
        """Wait until the window before is in the caches: no row of the next one leaves between its read and its use, but for conflict victims.
        False where the run is over."""
        while not self._placed.acquire(timeout=0.2):
            if self._stopping.is_set():
                return False
        return True

    def _let_writes_pass(self) -> None:
        """What the window before has driven out is in the store before rows are read."""
        handed = self._handed
        while self._stored < handed and not self._stopping.is_set() and not self.error:
            time.sleep(0.001)

    def _read_batches(self, count: int) -> deque[tuple[Step, Position | None]]:
        steps: deque[tuple[Step, Position | None]] = deque()
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

"""Training out of look-ahead caches: windows are read and prefetched ahead, rows written back behind (cDLRM 4, 5)."""

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from htrain.data import Position
from htrain.errors import Error, PeerLost, RunError
from htrain.executor.engine.context import PREFETCHER, VICTIMS, WRITER
from htrain.executor.host.patience import Patience
from htrain.executor.host.threads import begin_thread, share_gil
from htrain.executor.host.watch import Activity
from htrain.executor.loops.feed import Feed
from htrain.executor.loops.replica import Replica
from htrain.executor.loops.upcoming import Steps, Upcoming
from htrain.executor.roles.replica import Step, inputs_of
from htrain.executor.strategies.lookahead.exchange import Exchange, Wishes
from htrain.executor.strategies.lookahead.joint_caches import JointCaches, victims_are_known
from htrain.executor.strategies.lookahead.table_cache import TableCache, WindowOfTable
from htrain.executor.strategies.lookahead.turnover import Turnover
from htrain.executor.transport.peers import Ids, Peers, Rows
from htrain.ops.side_by_side import each_of
from htrain.sync.lookahead import pipeline as of
from htrain.sync.lookahead.averaging import Averaging
from htrain.sync.lookahead.journal import Written
from htrain.sync.lookahead.pipeline import Pipeline

T = TypeVar("T")
_POLL_SECONDS = 0.2
_PREPARED = 2  # steps that may wait for training, beside the one that is being prepared


@dataclass
class _Window:
    """Batches that have been read, and the rows that they need, which are on their way to the slots once they have been read. Batches of no examples have no
    position. Its steps can be prepared when all conflict victims are known."""

    steps: deque[tuple[Step, Position | None]]
    tables: dict[str, WindowOfTable]
    can_be_prepared: threading.Event = field(default_factory=threading.Event)
    turnover: Turnover | None = None


class Windows(Upcoming):
    """The threads behind look-ahead caches: the planner, the prefetcher, the writer, and the trainer between its steps. Each carries out what its machine says
    (`htrain.sync.lookahead.pipeline`); where that waits, the thread does, until another one has changed something.

    `replica_of` makes the replica of a thread's passes, `connect` the peers for a purpose: the other trainers with the same caches, where there are any.
    """

    def __init__(
        self,
        caches: Mapping[str, TableCache],
        exchange: Exchange,
        replica_of: Callable[[int], Replica],
        connect: Callable[[str], Peers],
        pipeline: Pipeline,
        averaging: Averaging,
        patience: Patience,
        activity: Callable[[str], Activity],
    ) -> None:
        self.pipeline = pipeline
        self._changed = threading.Condition()  # the pipeline, which is its lock's
        self._stopping = False
        self._caches, self._exchange = caches, exchange
        self._connect, self._averaging, self._patience = connect, averaging, patience
        self._opening, self._preparing = activity("planner"), activity("preparer")
        self._planners, self._peers, self._joint = Peers(None), Peers(None), JointCaches(caches, Peers(None), averaging)
        self._bytes: list[Counter[str]] = []
        self._prefetcher, self._writer, self._victims = map(replica_of, (PREFETCHER, WRITER, VICTIMS))
        self._read: deque[tuple[Step, Position | None]] = deque()  # of the next window
        self._announced: Sequence[Sequence[Ids]] = ()  # by table, of each trainer
        self._to_prepare: queue.SimpleQueue[_Window] = queue.SimpleQueue()  # as they were planned
        self._steps: queue.Queue[tuple[Step, Position | None]] = queue.Queue(_PREPARED)  # of those, in order
        self.threads = [
            threading.Thread(target=self._guarded, args=(loop, replica), name=name, daemon=True)
            for loop, replica, name in (
                (self._plan_ahead, None, "planner"),
                (self._prefetch, self._prefetcher, "prefetcher"),
                (self._write_back, self._writer, "writer"),
                (self._prepare, None, "preparer"),
            )
        ]
        self._does: Mapping[type, Callable[[Any], Any]] = {
            of.ReadBatches: self._read_batches, of.Agree: self._agree, of.Plan: self._plan, of.Prefetch: self._read_window, of.Store: self._store,
            of.Place: self._place, of.BeginStep: self._begin_step, of.FetchVictims: self._fetch_victims, of.EndStep: self._end_step,
            of.LeaveCopies: self._leave_copies, of.Now: lambda said: time.monotonic(),
        }  # fmt: skip

    def start(
        self,
        feed: Feed,
        steps: Steps,
        empty: Mapping[str, torch.Tensor],
    ) -> None:
        """Read ahead from now on; `empty` is a batch of no examples."""
        self._feed = feed
        self._ahead = steps
        self._empty = empty
        share_gil(len(self.threads))
        for thread in self.threads:
            thread.start()

    def next(self) -> Step | None:
        """The next batch, its rows in the caches; None at the end of the data. Raises PeerLost, and what another thread has raised.

        Of several trainers, one without data has batches of no examples until all are at the end.
        """
        step: Step | None = self._drive(self.pipeline.next())
        return step

    def has_more(self) -> bool:
        """Whether there is a next batch, of whichever trainer. Raises PeerLost, and what another thread has raised."""
        return self._drive(self.pipeline.has_more())

    def ended(self) -> None:
        """The step has been run: its victims leave."""
        self._drive(self.pipeline.ended())

    def flush(self) -> None:
        """Every row of the caches is in the store when this returns; it stays in the cache as well. Raises PeerLost."""
        self._drive(self.pipeline.flush())

    @property
    def seconds_waited(self) -> float:
        """For how long the trainer has waited, for windows and for conflict victims."""
        return self.pipeline.stall_seconds + self._victims.seconds_waited

    @property
    def report(self) -> dict[str, Any]:
        """For the metrics."""
        names = ("stall_seconds", "place_seconds", "prefetch_seconds")
        num_bytes = sum((counted.copy() for counted in self._bytes), Counter[str]())
        seconds = {name: getattr(self.pipeline, name) for name in names}
        return {"window": self.pipeline.batches, "bytes": dict(num_bytes), **seconds}

    def close(self) -> None:
        """Let go of the sockets of the trainer's side. For its thread."""
        self._victims.close()

    def stop(self) -> None:
        """End all threads."""
        self._stopping = True
        self._tell(self.pipeline.stop)
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(timeout=10)

    # -- threads -----------------------------------------------------------------------------------------------------

    def _guarded(self, loop: Callable[[], None], replica: Replica | None) -> None:
        begin_thread()
        if replica:
            replica.stopping = lambda: self._stopping
        try:
            loop()
        except Exception as error:
            name = replica.endpoint if replica else self._victims.endpoint
            said = error if isinstance(error, Error) else RunError(f"{name}: {type(error).__name__}: {error}")
            self._tell(lambda: self.pipeline.fail(said))
        finally:
            if replica:
                replica.close()

    def _plan_ahead(self) -> None:
        self._planners = self._connect("plans")
        self._bytes.append(self._planners.bytes)
        self._drive(self.pipeline.planning())

    def _prefetch(self) -> None:
        self._peers, others = self._connect("windows"), self._connect("caches")
        self._joint = JointCaches(self._caches, others, self._averaging)
        self._bytes += [self._peers.bytes, others.bytes]
        self._drive(self.pipeline.prefetching())

    def _write_back(self) -> None:
        self._drive(self.pipeline.writing())

    def _drive(self, machine: of.Machine[T]) -> T:
        """Carry out what a machine says, to its end; its result. Raises what another thread has raised, PeerLost where a deadline has passed."""
        answer: Any = None
        while True:
            with self._changed:
                before = self.pipeline.news
                try:
                    said = machine.send(answer)
                except StopIteration as end:
                    return end.value
                finally:
                    if self.pipeline.news != before:  # else others would wake several times a step
                        self._changed.notify_all()
                if isinstance(said, of.Await):
                    self._await(said)
            answer = None if isinstance(said, of.Await) else self._does[type(said)](said)

    def _await(self, said: of.Await) -> None:
        seconds = self._patience.seconds
        if not self._changed.wait_for(said.holds, seconds if said.late else None):
            raise PeerLost(f"{said.late} within {seconds:.0f} s")

    def _tell(self, event: Callable[[], None]) -> None:
        with self._changed:
            event()
            self._changed.notify_all()

    # -- what the planner does ---------------------------------------------------------------------------------------

    def _read_batches(self, said: of.ReadBatches) -> int:
        self._read = deque()
        while len(self._read) < said.batches and not self._stopping and (batch := self._feed.next()):
            self._read.append((self._ahead.open(inputs_of(batch), batch.num_examples, self._opening), batch.position))
        return len(self._read)

    def _agree(self, said: of.Agree) -> list[tuple[int, int]]:
        """With the numbers travel the ids that each trainer's batches have announced."""
        caches = list(self._caches.values())
        own = each_of(lambda place: caches[place].announced(), [cache.num_announced for cache in caches])
        parts = [np.array(said), *own]
        everybody, *self._announced = self._planners.gather(parts)
        return [(int(batches), int(following)) for batches, following in everybody]

    def _plan(self, said: of.Plan) -> _Window:
        """The distinct rows of each table (Algorithm 1), and their slots."""
        missing = said.batches - len(self._read)
        self._read.extend((self._ahead.open(self._empty, 0, self._opening), None) for _ in range(missing))
        caches, announced, own = list(self._caches.values()), self._announced, self._planners.rank
        made = each_of(lambda place: caches[place].plan(announced[place], own), [sum(ids.size for ids in keys) for keys in announced])  # fmt: skip
        window = _Window(self._read, dict(zip(self._caches, made, strict=True)))
        if victims_are_known(self._planners, window.tables):
            window.can_be_prepared.set()
        self._to_prepare.put(window)
        return window

    # -- what the prefetcher does ------------------------------------------------------------------------------------

    def _read_window(self, said: of.Prefetch) -> None:
        """The values of a window's rows that are not here (Algorithm 1)."""
        window: _Window = said.window
        tables = [(self._caches[name], table) for name, table in window.tables.items()]
        for cache, table in tables:
            cache.begin_read(table)
        fetched = self._read_rows(self._prefetcher, {name: table.fresh_keys for name, table in window.tables.items()})
        rows = [fetched[name] for name in window.tables]
        each_of(lambda place: tables[place][0].put_right(tables[place][1], rows[place]), [each.size for each in rows])
        for (_, table), shared in zip(tables, self._peers.share(rows), strict=True):
            table.rows = shared
        window.turnover = self._joint.turnover(window.tables)

    def _read_rows(self, replica: Replica, keys: Mapping[str, Ids]) -> dict[str, Rows]:
        """The rows of keys of tables, from the store; on all trainers but the first something of their shape."""
        widths = {name: self._exchange.width_of(name) for name in keys}
        if not self._peers.is_first:
            return {name: np.empty((wanted.size, widths[name]), np.float32) for name, wanted in keys.items()}
        return self._exchange.run(
            replica, {name: Wishes.to_read(wanted, widths[name]) for name, wanted in keys.items()}
        )

    # -- what the writer does ----------------------------------------------------------------------------------------

    def _store(self, said: of.Store) -> None:
        job: Mapping[str, Written] = said.job
        self._exchange.run(self._writer, {name: Wishes.to_write(w.keys, w.rows) for name, w in job.items()})
        for name, written in job.items():
            self._caches[name].stored(written.number)

    # -- what prepares steps ----------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Steps of windows, in order: where their rows will stand, and what of them an accelerator takes beforehand."""
        while (window := self._next_window()) is not None:
            while window.steps and not self._stopping:
                step, position = window.steps.popleft()
                self._joint.prepare_step()
                self._ahead.prepare(step, self._preparing)
                self._hand_on(step, position)

    def _next_window(self) -> _Window | None:
        window: _Window | None = None
        while not self._stopping:
            with suppress(queue.Empty):
                window = window or self._to_prepare.get(timeout=_POLL_SECONDS)
                if window.can_be_prepared.wait(_POLL_SECONDS):
                    return window
        return None

    def _hand_on(self, step: Step, position: Position | None) -> None:
        while not self._stopping:
            with suppress(queue.Full):
                self._steps.put((step, position), timeout=_POLL_SECONDS)
                return

    # -- what the trainer does ---------------------------------------------------------------------------------------

    def _place(self, said: of.Place) -> list[dict[str, Written]]:
        window: _Window = said.window
        assert window.turnover
        self._joint.place(window.tables, window.turnover)
        window.can_be_prepared.set()
        return self._joint.leaving()

    def _begin_step(self, said: of.BeginStep) -> tuple[Step, dict[str, Ids]] | None:
        following = self._next_step()
        if following is None:
            return None
        step, position = following
        if position:
            self._feed.taken(position)
        return step, self._joint.begin_step()

    def _next_step(self) -> tuple[Step, Position | None] | None:
        """The next step that has been prepared; None where the run is stopped. Raises what kept the preparer from going on."""
        while not self._stopping:
            with suppress(queue.Empty):
                return self._steps.get(timeout=_POLL_SECONDS)
            if self.pipeline.error:
                raise self.pipeline.error
        return None

    def _fetch_victims(self, said: of.FetchVictims) -> None:
        self._joint.take_victims(self._read_rows(self._victims, said.victims))

    def _end_step(self, said: of.EndStep) -> list[dict[str, Written]]:
        self._joint.end_step()
        return self._joint.leaving()

    def _leave_copies(self, said: of.LeaveCopies) -> list[dict[str, Written]]:
        self._joint.leave_copies()
        return self._joint.leaving()

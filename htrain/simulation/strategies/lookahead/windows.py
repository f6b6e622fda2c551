"""The threads behind look-ahead caches, simulated: the machines of a run decide what they do when (`htrain.sync.lookahead.pipeline`; cDLRM 4, 5).

Planner, prefetcher and writer are processes on their trainer's host; the last two have replicas of their own for passes to the store, as in a run. Rows are
means: those of `Rates`, or of the cluster. A cache with less than one conflict victim a step has one every so many steps. Data does not end, and so nothing
is flushed.
"""

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

import simpy

from htrain.costs.collectives import exchange_among
from htrain.costs.expected import expected, expected_counts, sized_blobs
from htrain.executor.engine.context import PREFETCHER, VICTIMS, WRITER, Context
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.gate import WriteGates
from htrain.executor.roles.replica import Call, ReplicaMachine, Source, Step
from htrain.executor.roles.replica import Machine as ReplicaSteps
from htrain.executor.strategies.strategy import cache_of
from htrain.net.names import TRAINER, Role
from htrain.net.net import Net
from htrain.ops.cache_rates import Rates
from htrain.ops.lookahead import slots_of, window_of
from htrain.plan.plan import Plan
from htrain.simulation.collective import go_round
from htrain.simulation.costs import DeviceModel, device_model
from htrain.simulation.machine import Process
from htrain.simulation.processes import drive_pass
from htrain.simulation.result import WindowUse
from htrain.simulation.strategies.lookahead.costs import (
    MEAN_COPIES,
    PASS_COPIES,
    Moved,
    Seconds,
    WindowCosts,
    shares_of,
    tables_of,
)
from htrain.simulation.strategies.strategy import BesideParts, RunsBeside
from htrain.spec.cache import LookAheadCache
from htrain.sync.lookahead import pipeline as of
from htrain.sync.lookahead.averaging import averaging_of
from htrain.sync.lookahead.pipeline import Pipeline
from htrain.sync.lookahead.window import WindowChoice

_SETTLED = 3  # windows behind each other; the size of one is agreed on while the one before it is trained on
_KEY_BYTES = 8
Carried = Generator[simpy.Event, Any, Any]


class RunsWindows(RunsBeside):
    """Windows of all trainers of a plan. Figures count from a window's end to another's, once windows have stopped growing."""

    def __init__(self, plan: Plan, rates: Rates) -> None:
        super().__init__(plan, rates)
        self.costs = WindowCosts(tables_of(plan, rates), plan.cluster, plan.cluster.groups * plan.cluster.trainers)
        self.trainers: list[_Windows] = []
        self.said: dict[int, dict[int, tuple[int, int]]] = {}  # of each window, by trainers' ranks
        self._counts = expected_counts(plan.train, plan.cluster, plan.options.batch_size, rates)
        self._models: dict[tuple[str, Moved], DeviceModel] = {}
        self._moved: dict[tuple[int, int, int], Moved] = {}  # by the replica that has the pass under way

    def model(self, device: str) -> DeviceModel:
        return self._model(device, Moved("window", 1))

    def model_at(self, device: str, context: Context) -> DeviceModel:
        return self._model(device, self._moved[context.group, context.trainer, context.replica])

    def begin(self, parts: BesideParts) -> Source:
        windows = _Windows(self, parts)
        self.trainers.append(windows)
        return windows

    @property
    def is_between(self) -> bool:
        return self.trainers[0].pipeline.is_between

    @property
    def is_settled(self) -> bool:
        return self.trainers[0].is_settled

    def count(self) -> None:
        self.trainers[0].mark()

    def use(self, seconds: float) -> WindowUse:
        return self.trainers[0].use(seconds)

    def moves(self, context: tuple[int, int, int], moved: Moved) -> DeviceModel:
        """A pass begins; its model on the trainer."""
        self._moved[context] = moved
        return self._model(TRAINER, moved)

    def _model(self, device: str, moved: Moved) -> DeviceModel:
        if (device, moved) not in self._models:
            self._models[device, moved] = self._sized(device, moved)
        return self._models[device, moved]

    def _sized(self, device: str, moved: Moved) -> DeviceModel:
        plan = self.plan
        shares = shares_of(plan, self.rates, moved)
        counts = {name: share * self._counts.get(name, 0.0) for name, share in shares.items()}
        net = expected(_apart(plan, device), sized_blobs(plan.train, counts))
        return device_model(net, plan.cluster, plan.options.batch_size)


def _apart(plan: Plan, device: str) -> Net:
    """What a device runs beside steps; the nets of one that stands for several are alike."""
    _, apart = cache_of(plan, device).split(plan.net_of(device))
    return apart


class _Windows(Source):
    """One trainer's: its planner, its prefetcher, its writer, and what it does itself between its steps. The first one alone reads and writes the store."""

    def __init__(self, runs: RunsWindows, parts: BesideParts) -> None:
        assert isinstance(runs.plan.options.cache, LookAheadCache)
        choice = WindowChoice(window_of(runs.plan.net_of(TRAINER)))
        self.pipeline = Pipeline(choice, patched=runs.plan.options.cache.patch)
        self._runs, self._parts, self._world, self._costs = runs, parts, parts.world, runs.costs
        self._averaging = averaging_of(runs.plan.options.cache.average, slots_of(runs.plan.train))
        self._changed = self._world.env.event()
        self._read: list[Step] = []
        self._steps: deque[Step] = deque()
        self._sizes: deque[int] = deque(maxlen=_SETTLED)
        self._since_average = self._since_victims = 0
        self._victims: Moved | None = None  # of the step under way
        self._meetings = {"plans": 0, "windows": 0, "caches": 0}
        self._marked = (0.0, 0.0, 0.0)
        self._engine = Engine(runs.model(TRAINER).program)
        place = Role.parse(parts.training.role).place
        self._replicas = {
            number: ReplicaMachine((*place, number), f"{parts.training.role}/{number}", self._engine, WriteGates(0, 0))
            for number in (PREFETCHER, WRITER, VICTIMS)
        }
        for machine in (self.pipeline.planning(), self.pipeline.prefetching(), self.pipeline.writing()):
            self._world.env.process(self._drive(machine))

    # -- a source of steps -------------------------------------------------------------------------------------------

    def next(self) -> ReplicaSteps[Step | None]:
        step: Step | None = yield Call(lambda: self._drive(self.pipeline.next()))
        return step

    def has_more(self) -> ReplicaSteps[bool]:
        more: bool = yield Call(lambda: self._drive(self.pipeline.has_more()))
        return more

    def ended(self) -> ReplicaSteps[None]:
        yield Call(lambda: self._drive(self.pipeline.ended()))

    def flush(self) -> ReplicaSteps[None]:
        yield Call(lambda: self._drive(self.pipeline.flush()))

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether windows have stopped growing: the last ones are as large as the next ones will be."""
        return len(self._sizes) == _SETTLED and set(self._sizes) == {self.pipeline.choice.batches}

    def mark(self) -> None:
        """Count from now on."""
        self._marked = self._seconds

    @property
    def _seconds(self) -> tuple[float, float, float]:
        return self.pipeline.stall_seconds, self.pipeline.place_seconds, self.pipeline.prefetch_seconds

    def use(self, seconds: float) -> WindowUse:
        """Since `mark`, `seconds` ago."""
        stalled, placed, prefetched = (now - then for now, then in zip(self._seconds, self._marked, strict=True))
        share = 1 / seconds if seconds else 0.0
        return WindowUse(self.pipeline.batches, stalled * share, placed * share, prefetched * share)

    # -- what machines say -------------------------------------------------------------------------------------------

    def _drive(self, machine: of.Machine[Any]) -> Carried:
        answer: Any = None
        while True:
            try:
                said = machine.send(answer)
            except StopIteration as end:
                return end.value
            finally:
                told, self._changed = self._changed, self._world.env.event()
                told.succeed()
            answer = yield from self._carry_out(said)

    def _carry_out(self, said: of.Instruction) -> Carried:
        if isinstance(said, of.Now):
            return self._world.env.now
        if isinstance(said, of.Await):
            while not said.holds():
                yield self._changed
        elif isinstance(said, of.ReadBatches):
            return (yield from self._read_batches(said.batches))
        elif isinstance(said, of.Agree):
            return (yield from self._agree(said))
        elif isinstance(said, of.Plan):
            yield from self._compute(self._costs.plan(said.batches))
            return self._read
        elif isinstance(said, of.Prefetch):
            yield from self._prefetch(len(said.window))
        elif isinstance(said, of.Store):
            yield from self._pass(WRITER, said.job)
        elif isinstance(said, of.Place):
            return (yield from self._place(said.window))
        else:
            return (yield from self._between(said))

    def _between(self, said: of.Instruction) -> Carried:
        """What the trainer does between steps."""
        if isinstance(said, of.BeginStep):
            yield from self._compute(self._costs.step())
            return self._steps.popleft(), self._due_victims()
        if isinstance(said, of.FetchVictims):
            yield from self._pass(VICTIMS, said.victims)
            yield from self._share(said.victims.batches * self._costs.bytes_of("victims"), "caches")
        elif isinstance(said, of.EndStep):
            return (yield from self._end_step())
        return []

    def _read_batches(self, batches: int) -> Carried:
        training = self._parts.training
        self._read = []
        for _ in range(batches):
            self._read.append((yield from training.open_step()))
        return batches

    def _agree(self, said: of.Agree) -> Carried:
        said_by_all = self._runs.said.setdefault(self.pipeline.agreed, {})
        said_by_all[self._parts.rank] = said.batches, said.next_batches
        yield from self._gather(sum(table.distinct(said.batches) for table in self._costs.tables), "plans")
        return [said_by_all[rank] for rank in sorted(said_by_all)]

    def _prefetch(self, batches: int) -> Carried:
        yield from self._pass(PREFETCHER, Moved("window", batches))
        yield from self._compute(self._costs.read(batches))
        yield from self._share(batches * self._costs.bytes_of("read"), "windows")

    def _place(self, window: Sequence[Step]) -> Carried:
        batches = len(window)
        self._sizes.append(batches)
        for _ in range(2):  # what has changed of what leaves, what is put right
            yield from self._gather(0.0, "caches")
        if self._parts.size > 1 and self._averaging.wants_updates:
            yield from self._gather(float(batches), "caches")
            updates = self._parts.size * sum(table.asked for table in self._costs.tables)
            self._averaging.begin_window([updates] * batches)
        yield from self._compute(self._costs.place(batches))
        self._steps = deque(window)
        rows = batches * sum(table.evicted for table in self._costs.tables)
        return [Moved("evicted", batches)] if self._parts.is_first and rows >= 1 else []

    def _due_victims(self) -> Moved | None:
        """Conflict victims to be fetched for this step: those of all steps since there were some, where these make a row."""
        self._since_victims += 1
        rows = self._since_victims * sum(table.victims for table in self._costs.tables)
        if rows < 1:
            return None
        self._victims, self._since_victims = Moved("victims", self._since_victims), 0
        return self._victims

    def _end_step(self) -> Carried:
        yield from self._compute(self._costs.end())
        self._since_average += 1
        if self._parts.size > 1 and self._averaging.ended():
            yield from self._average()
            self._since_average = 0
        updated, self._victims = self._victims, None
        return [updated._replace(what="updated")] if updated and self._parts.is_first else []

    def _average(self) -> Carried:
        """The mean of all rows that a trainer has touched since the last one."""
        every = self._since_average
        yield from self._gather(sum(table.distinct(every) for table in self._costs.tables), "caches")
        size = self._parts.size
        num_bytes = sum(table.row_bytes * table.distinct(size * every) for table in self._costs.tables)
        yield from self._compute(self._costs.copied(num_bytes, MEAN_COPIES))
        yield from self._exchange(num_bytes, 2 * (size - 1) / size * num_bytes, 2 * (size - 1), "caches")

    # -- what these take ---------------------------------------------------------------------------------------------

    def _compute(self, seconds: Seconds) -> Process:
        locked, free = (self._world.varied(each) for each in seconds)
        yield from self._parts.host.compute(locked, free)

    def _gather(self, keys: float, purpose: str) -> Process:
        """So many keys of each trainer to all: first how many there are."""
        others, num_bytes = self._parts.size - 1, _KEY_BYTES * (keys + len(self._costs.tables))
        yield from self._exchange(num_bytes, others * num_bytes, 2 * others, purpose)

    def _share(self, num_bytes: float, purpose: str) -> Process:
        """The first trainer's rows to all."""
        if num_bytes:
            yield from self._exchange(num_bytes, num_bytes, self._parts.size - 1, purpose)

    def _exchange(self, own: float, travels: float, hops: int, purpose: str) -> Process:
        if self._parts.size == 1:
            return
        self._meetings[purpose] += 1
        exchange = exchange_among(own, travels, hops, 2 * len(self._costs.tables), self._runs.plan.cluster)
        what = purpose, self._meetings[purpose]
        yield from go_round(self._world, self._parts.host, self._parts.following, exchange, what)

    def _pass(self, number: int, moved: Moved) -> Carried:
        """One pass to the store and back, with the copies that it takes at this end."""
        if not self._parts.is_first:
            return
        replica = self._replicas[number]
        model = self._runs.moves(replica.place, moved)
        yield from self._compute(self._costs.copied(self._costs.bytes_in(moved), PASS_COPIES))
        yield from drive_pass(self._world, self._parts.host, replica, replica.run_apart(self._engine, {}), model)

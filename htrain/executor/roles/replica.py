"""A net replica of a trainer, as a machine: what drives its steps (HT 2.2, 3.1.1).

A replica does one thing after another, so its machine is a generator: it yields an instruction, and is sent what came of it.

    TakeBatch     -> the next batch of the data, None at its end
    RunStage      -> the stages that can start when it has run
    AwaitMessage  -> a message to this replica: its context and values
    PollMessage   -> one that is there already, or None
    AwaitGrant    -> None, when another replica has given the word to write
    Wake          -> None; these replicas may write
    AwaitVerdict  -> what all trainers have said with a step, a Verdict
    Call          -> what a function returns that may wait
    StepBegins, StepEnds, Rest -> None; a step has been taken, has ended; the replica stops here until it is to go on

Whoever carries them out has threads and sockets, or simulates them.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch

from htrain.data import Batch, Position
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import Stage
from htrain.executor.roles.lockstep import Lockstep
from htrain.net.blobs import BATCH_KEY
from htrain.sync.agreement import BEFORE


@dataclass
class Step:
    """A pass of an engine on its way, and its stages that are ready; of a batch that ends at a `position` of the data, if of any."""

    state: Pass
    engine: Engine
    pending: list[Stage] = field(default_factory=list)
    position: Position | None = None


@dataclass(frozen=True)
class TakeBatch:
    """Instruction: read the next batch."""


class RunStage(NamedTuple):
    """Instruction: run a stage of a step, which sends what it makes."""

    step: Step
    stage: Stage


class AwaitMessage(NamedTuple):
    """Instruction: wait for one message; `step` cannot go on without."""

    step: Step


@dataclass(frozen=True)
class PollMessage:
    """Instruction: take a message that is there already."""


class AwaitGrant(NamedTuple):
    """Instruction: wait until another replica wakes this one, for `step` to write."""

    step: Step


class Wake(NamedTuple):
    """Instruction: these replicas of the trainer, by number, wait no longer."""

    replicas: Sequence[int]


class AwaitVerdict(NamedTuple):
    """Instruction: wait for what all trainers, who step together, have said with a step that has been run, or BEFORE the first."""

    step: int


@dataclass(frozen=True)
class Call:
    """Instruction: call a function that may wait for others; its result is the answer."""

    function: Callable[[], Any]


class StepBegins(NamedTuple):
    """Instruction: a batch has been taken; those before `position` will not be read again."""

    position: Position


class StepEnds(NamedTuple):
    """Instruction: every update of every device has been made of a step."""

    step: Step


@dataclass(frozen=True)
class Rest:
    """Instruction: stay here while the trainer is paused; where it `is_to_come`, until it has been paused and goes on."""

    is_to_come: bool


Instruction = (
    TakeBatch
    | RunStage
    | AwaitMessage
    | PollMessage
    | AwaitGrant
    | Wake
    | AwaitVerdict
    | Call
    | StepBegins
    | StepEnds
    | Rest
)
T = TypeVar("T")
Machine = Generator[Instruction, Any, T]


class Source:
    """Where a replica's steps come from. Caches that stand before its tables go with it."""

    @abstractmethod
    def next(self) -> Machine[Step | None]:
        """The next batch, opened, not asked for; None at the end of the data."""

    @abstractmethod
    def has_more(self) -> Machine[bool]:
        """Whether there is a next batch. Nothing of it is known to anybody else before it is taken."""

    def ended(self) -> Machine[None]:
        """The step that was taken last has been run."""
        yield from ()

    @abstractmethod
    def flush(self) -> Machine[None]:
        """All updates are where the tables are when this ends."""


class ReplicaMachine:
    """Runs one step at a time; the next step's lookups may already be under way.

    `place` are the numbers of its group, its trainer and itself. `gates` are those of the trainer, whose jobs are replicas' numbers.
    Its steps are numbered from `first_step`.
    `open` are the steps under way by context: of training at most two, the one that runs and the one whose rows are asked for.
    """

    def __init__(
        self, place: tuple[int, int, int], endpoint: str, engine: Engine, gates: WriteGates[int], first_step: int = 0
    ) -> None:
        self.place, self.endpoint, self.engine, self.gates = place, endpoint, engine, gates
        self.open: dict[Context, Step] = {}
        self._next_step = first_step

    # -- steps, piece by piece ---------------------------------------------------------------------------------------

    def opened(self, inputs: Mapping[str, torch.Tensor], num_examples: int) -> Machine[Step]:
        """Take a batch; caches hear what it will ask for. No parameter is read yet."""
        step = Step(self.engine.begin(Context(*self.place, -1), self.endpoint, num_examples, inputs), self.engine)
        step.pending = self.engine.start(step.state)
        yield from self._run_those(step, [stage for stage in step.pending if stage.announces])
        return step

    def ask(self, step: Step) -> Machine[Step]:
        """Ask for a batch's rows; it is the next step of this replica."""
        step.state.context = context = Context(*self.place, self._next_step)
        self._next_step += 1
        self.open[context] = step
        yield from self._run_those(step, [stage for stage in step.pending if stage.prefetch])
        return step

    def prepared(self, step: Step) -> Machine[None]:
        """Bring what is known of an opened step to where it is computed. Its rows have their slots; no parameter is read yet."""
        yield from self._run_those(step, [stage for stage in step.pending if stage.prepares])

    def take_rows(self, step: Step) -> Machine[None]:
        """Go on with a step until all its rows are in the caches, if there are any."""
        while not step.engine.has_taken_rows(step.state):
            ready = next((stage for stage in step.pending if stage.takes_rows), None)
            if ready:
                step.pending.remove(ready)
                yield from self._run_stage(step, ready)
            elif message := (yield PollMessage()):
                self._hear(*message)
            elif step.pending:
                yield from self._run_stage(step, step.pending.pop(0))
            else:
                self._hear(*(yield AwaitMessage(step)))

    def run(self, step: Step) -> Machine[None]:
        """Run a step to its end: every update of every device has been made then."""
        while not step.engine.done(step.state):
            if step.pending:
                yield from self._run_stage(step, step.pending.pop(0))
            else:
                self._hear(*(yield AwaitMessage(step)))
        del self.open[step.state.context]

    def run_apart(self, engine: Engine, inputs: Mapping[str, torch.Tensor]) -> Machine[Mapping[str, Any]]:
        """Run another net, such as one that empties the caches, as a step of its own; the values of the pass."""
        state = engine.begin(Context(*self.place, -1), self.endpoint, 0, inputs)
        step = yield from self.ask(Step(state, engine, engine.start(state)))
        yield from self.run(step)
        return state.values

    def missing(self) -> list[str]:
        """The peers that the steps under way wait for."""
        return sorted({peer for step in self.open.values() for peer in step.engine.missing(step.state)})

    def _run_those(self, step: Step, stages: Sequence[Stage]) -> Machine[None]:
        """Stages that read no parameter, and so pass no gate."""
        for stage in stages:
            step.pending.remove(stage)
            step.pending += yield RunStage(step, stage)

    def _run_stage(self, step: Step, stage: Stage) -> Machine[None]:
        context, number = step.state.context, self.place[2]
        if stage.writes:  # the oldest step never waits here, so somebody always goes on
            granted = self.gates.commit(stage.writes[0], context, number)
            yield from self._wake(other for other in granted if other != number)
            if number not in granted:
                yield AwaitGrant(step)
        self.gates.begin(stage.reads, context)
        step.pending += yield RunStage(step, stage)
        if stage.writes:
            yield from self._wake(self.gates.end(stage.writes[0], context))

    def _wake(self, replicas: Iterable[int]) -> Machine[None]:
        if those := tuple(replicas):
            yield Wake(those)

    def _hear(self, context: Context, values: Mapping[str, torch.Tensor]) -> None:
        """Hand a message to its step; one for a step that has ended is a repeated one, and is dropped."""
        if step := self.open.get(context):
            step.pending += step.engine.receive(step.state, values)


class Ahead(Source):
    """`ahead` batches are open, so that caches have heard of those behind the next one; the net of `flush` empties these."""

    def __init__(self, replica: ReplicaMachine, ahead: int, flush: Engine) -> None:
        self._replica, self._ahead, self._flush = replica, ahead, flush
        self._open: deque[tuple[Step, Position]] = deque()
        self._read: Batch | None = None  # that has not been opened

    def has_more(self) -> Machine[bool]:
        if not self._open:
            self._read = self._read or (yield TakeBatch())
        return bool(self._open or self._read)

    def next(self) -> Machine[Step | None]:
        while len(self._open) < self._ahead and (batch := self._read or (yield TakeBatch())):
            self._read = None
            step = yield from self._replica.opened(inputs_of(batch), batch.num_examples)
            self._open.append((step, batch.position))
        if not self._open:
            return None
        step, step.position = self._open.popleft()
        yield StepBegins(step.position)
        return step

    def flush(self) -> Machine[None]:
        yield from self._replica.run_apart(self._flush, {})


def inputs_of(batch: Batch) -> dict[str, torch.Tensor]:
    """A batch's columns as tensors, over the same memory, and the number that tells it apart."""
    columns = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
    return {**columns, BATCH_KEY.name: torch.tensor([batch.position.key])}


class Orders:
    """What a trainer has been told, by any thread: to pause, to stop for good, to end after so many steps of each replica."""

    def __init__(self, stop_after_steps: int | None = None) -> None:
        self.paused = False
        self.stopping = False
        self.stop_after_steps = stop_after_steps

    def allows(self, taken: int) -> bool:
        """Whether a replica that has taken so many steps may take another."""
        return self.stop_after_steps is None or taken < self.stop_after_steps


def train(replica: ReplicaMachine, source: Source, orders: Orders, *, prefetch: bool) -> Machine[None]:
    """Train to the end of the data. With `prefetch`, the rows of a step are asked for while the one before runs."""
    following = yield from _asked(replica, source)
    taken = int(following is not None)
    while following is not None and not orders.stopping:
        step = following
        yield from replica.take_rows(step)
        more = orders.allows(taken)
        ahead = more and prefetch and not orders.paused
        following = (yield from _asked(replica, source)) if ahead else None
        yield from replica.run(step)
        yield from source.ended()
        yield StepEnds(step)
        if following is None and more:
            yield from _rest_if_paused(source, orders)
            following = yield from _asked(replica, source)
        taken += int(following is not None)
    if not orders.stopping:
        yield from source.flush()


def train_together(
    replica: ReplicaMachine, source: Source, orders: Orders, lockstep: Lockstep, empty: Mapping[str, torch.Tensor], *, prefetch: bool
) -> Machine[None]:  # fmt: skip
    """Train in lockstep: all trainers run the same steps, those without data `empty` ones, and stop behind the same step (HET 3).

    Nobody opens an empty batch before all have said that somebody has examples for its step.
    """
    together = _Together(replica, source, orders, lockstep, empty)
    yield from together.says(BEFORE)
    lockstep.heard((yield AwaitVerdict(BEFORE)))
    while not lockstep.verdict.over and not orders.stopping:
        following = None if lockstep.verdict.pause else (yield from together.asked_or_empty())
        while following and not orders.stopping:
            step = following
            yield from replica.take_rows(step)
            stops = lockstep.verdict.stops
            following = (yield from together.asked()) if prefetch and not stops else None
            yield from replica.run(step)
            yield from source.ended()
            yield StepEnds(step)
            verdict = yield AwaitVerdict(step.state.context.step)
            lockstep.heard(verdict)
            goes_on = not stops and (prefetch or not verdict.pause)  # with others that have asked for a batch already
            if goes_on and not verdict.over:
                following = following or (yield from together.asked_or_empty())
        if not orders.stopping:
            yield from source.flush()
        if not lockstep.verdict.over:
            # All have stopped behind the same step; the order to pause may still be on its way here.
            yield Rest(is_to_come=True)
            lockstep.go_on()


class _Together:
    """The batches of a trainer in lockstep."""

    def __init__(
        self,
        replica: ReplicaMachine,
        source: Source,
        orders: Orders,
        lockstep: Lockstep,
        empty: Mapping[str, torch.Tensor],
    ) -> None:
        self._replica, self._source, self._orders = replica, source, orders
        self._lockstep, self._empty = lockstep, empty
        self._taken = 0

    def says(self, step: int) -> Machine[None]:
        """What this trainer says with a step is known."""
        more = self._orders.allows(self._taken) and (yield from self._source.has_more())
        self._lockstep.opened(step, has_data=more)

    def asked(self) -> Machine[Step | None]:
        """The next batch, its rows asked for; None at the end of the data."""
        if not self._orders.allows(self._taken) or (step := (yield from _asked(self._replica, self._source))) is None:
            return None
        self._taken += 1
        yield from self.says(step.state.context.step)
        return step

    def asked_or_empty(self) -> Machine[Step]:
        """The next batch, or an empty one, its rows asked for."""
        if step := (yield from self.asked()):
            return step
        opened = yield from self._replica.opened(self._empty, 0)
        step = yield from self._replica.ask(opened)
        yield from self.says(step.state.context.step)
        return step


def _asked(replica: ReplicaMachine, source: Source) -> Machine[Step | None]:
    """The next batch, its rows asked for."""
    step = yield from source.next()
    if step is None:
        return None
    return (yield from replica.ask(step))


def _rest_if_paused(source: Source, orders: Orders) -> Machine[None]:
    """Between steps: stay here while the trainer is paused, its caches empty."""
    if not orders.paused:
        return
    if not orders.stopping:
        yield from source.flush()
    yield Rest(is_to_come=False)

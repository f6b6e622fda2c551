"""Simulated processes that carry out what the machines of roles say: the threads that roles have in a run, on simulated cores and links."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import simpy

from htrain.data import START, Batch
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import Stage
from htrain.executor.roles import replica as of_replica
from htrain.executor.roles import sync as of_sync
from htrain.executor.roles.endpoints import endpoint_of
from htrain.executor.roles.replica import Machine, ReplicaMachine
from htrain.executor.roles.server import Ended, Instruction, Job, Run, ServerMachine
from htrain.executor.roles.sync import SyncMachine
from htrain.net.names import Role
from htrain.simulation.costs import DeviceModel, Packet, Work, invitation
from htrain.simulation.machine import Host, Process
from htrain.spec.cluster import Cluster

Message = tuple[Context, str, Packet]  # of a pass, from an endpoint
Blobs = dict[str, Any]
Carried = Generator[simpy.Event, Any, Any]  # what is carried out of an instruction: its answer, in the end


class World(Protocol):
    """What a process sees of its simulation. `deliver` takes a message from an endpoint to another."""

    env: simpy.Environment
    cluster: Cluster

    def varied(self, seconds: float) -> float: ...
    def step_done(self) -> None: ...
    def progressed(self) -> None: ...
    def progress(self) -> simpy.Event: ...
    def inbox(self, endpoint: str) -> simpy.Store: ...
    def deliver(self, source: str, endpoint: str, context: Context, packet: Packet) -> None: ...


class Held(Protocol):
    """The trainer or PS whose weights are synchronised."""

    def hold_writes(self) -> None:
        """Let no step write them from now on."""

    def at_rest(self) -> bool:
        """Whether none does. Requires: `hold_writes`."""

    def release_writes(self) -> None:
        """Let steps write them again."""


class Serving:
    """A PS: one process receives, and runs what is short; `workers` run the rest, where there are several or writes may be held.

    `apart` gives the model of a pass of caches, whose sizes differ; those of all others are in `models`, by engine.
    """

    def __init__(
        self, world: World, endpoint: str, host: Host, machine: ServerMachine, models: Mapping[Engine, DeviceModel], *, workers: int, is_held: bool,
        apart: Callable[[Context], DeviceModel] | None = None,
    ) -> None:  # fmt: skip
        self.machine = machine
        self.on_step: Callable[[int], None] = lambda count: None
        self._world, self._endpoint, self._host, self._models, self._apart = world, endpoint, host, models, apart
        self._inbox, self._jobs = world.inbox(endpoint), simpy.Store(world.env)
        count = 1 if machine.serves_caches else workers
        self._queued = count > 1 or is_held
        for engine, model in models.items():
            machine.expect({s: _cpu_seconds(w) for s, w in zip(engine.program.stages, model.works, strict=True)})
        world.env.process(self._receive())
        for _ in range(count if self._queued else 0):
            world.env.process(self._work())

    @property
    def staleness(self) -> Mapping[int, int]:
        """How many dense updates missed so many of others (HT 2.3)."""
        return self.machine.gates.histogram

    def hold_writes(self) -> None:
        """Let no pass step weights from now on."""
        self.machine.hold()

    def at_rest(self) -> bool:
        """Whether none does. Requires: `hold_writes`."""
        return self.machine.gates.await_rest(0)

    def release_writes(self) -> None:
        """Let passes step weights again; those that have waited go on."""
        for each in self.machine.release():
            if isinstance(each, Run):
                self._jobs.put(each.job)

    def _receive(self) -> Process:
        while True:
            context, source, packet = yield self._inbox.get()
            yield from self._host.compute(self._world.varied(packet.locked_seconds), 0.0)
            yield from self._carry_out(self.machine.came(context, source, 0, _blobs(packet)))

    def _work(self) -> Process:
        while True:
            yield from self._run((yield self._jobs.get()))

    def _carry_out(self, instructions: Sequence[Instruction]) -> Process:
        for each in instructions:
            if isinstance(each, Run):
                if self._queued and not each.is_short:
                    self._jobs.put(each.job)
                else:
                    yield from self._run(each.job)
            elif isinstance(each, Ended):
                self.on_step(each.passes)
                self._world.progressed()
            else:
                self._world.deliver(self._endpoint, each.endpoint, each.context, invitation(self._world.cluster))

    def _run(self, job: Job) -> Process:
        engine, state, stage = job
        model = self._apart(state.context) if self._apart and engine is self.machine.apart else self._models[engine]
        works = model.works[stage.index]
        late: list[Packet] = []

        def send(packet: Packet) -> None:
            self._world.deliver(self._endpoint, self.machine.destination(packet.peer, state), state.context, packet)

        self.machine.began(job)
        held = self.machine.holds_back(stage)
        yield from run_works(self._world, self._host, works, late.append if held else send)
        ready = engine.run(state, stage, _nobody)
        granted = self.machine.wrote(job) if stage.writes else []
        for packet in late:
            send(packet)
        yield from self._carry_out([*granted, *self.machine.ran(job, ready, _cpu_seconds(works))])
        if self.machine.gates.is_held:
            self._world.progressed()


class Training:
    """A trainer: a process for each net replica drives its machine, for as long as the simulation lasts."""

    def __init__(
        self, world: World, role: str, host: Host, model: DeviceModel, *, bound: int, replicas: int, batch_size: int
    ) -> None:  # fmt: skip
        self.role, self.host = role, host
        self.on_step: Callable[[int], None] = lambda count: None
        self.verdict: Callable[[int], simpy.Event] = lambda step: world.env.event()  # of trainers that step together
        self.gates: WriteGates[int] = WriteGates(model.program.num_clocks, bound)
        self.engine = Engine(model.program)
        place = Role.parse(role).place
        self.replicas = [ReplicaMachine((*place, r), f"{role}/{r}", self.engine, self.gates) for r in range(replicas)]
        self.steps_ended = 0
        self._world, self._model, self._batch_size = world, model, batch_size
        self._grants = [simpy.Store(world.env) for _ in range(replicas)]

    @property
    def staleness(self) -> Mapping[int, int]:
        """How many dense updates missed so many of others (HT 2.3)."""
        return self.gates.histogram

    def hold_writes(self) -> None:
        """Let no step write weights from now on."""
        self.gates.hold()

    def at_rest(self) -> bool:
        """Whether none does. Requires: `hold_writes`."""
        return self.gates.await_rest(0)

    def release_writes(self) -> None:
        """What has waited for a round to end goes on."""
        for number in self.gates.release():
            self._grants[number].put(None)

    def missing(self) -> list[str]:
        """The peers that the steps under way wait for."""
        return sorted({peer for replica in self.replicas for peer in replica.missing()})

    def drive(self, replica: ReplicaMachine, machine: Machine[Any]) -> Carried:
        """Carry out what a replica's machine says; its result."""
        return (yield from _drive(machine, lambda said: self._carry_out(replica, said)))

    def open_step(self) -> Carried:
        """Take a batch for the first replica, by another process than its own; the step."""
        replica = self.replicas[0]
        return (yield from self.drive(replica, replica.opened({}, self._batch_size)))

    def _carry_out(self, replica: ReplicaMachine, said: of_replica.Instruction) -> Carried:
        if isinstance(said, of_replica.RunStage):
            ready = yield from _run_stage(self._world, self.host, replica, said, self._model)
            if self.gates.is_held:
                self._world.progressed()
            return ready
        if isinstance(said, of_replica.AwaitMessage | of_replica.PollMessage):
            return (yield from _receive(self._world, self.host, replica, said))
        if isinstance(said, of_replica.Call):
            return (yield from said.function())
        if isinstance(said, of_replica.AwaitGrant):
            yield self._grants[replica.place[2]].get()
        elif isinstance(said, of_replica.Wake):
            for number in said.replicas:
                self._grants[number].put(None)
        elif isinstance(said, of_replica.AwaitVerdict):
            return (yield self.verdict(said.step))
        elif isinstance(said, of_replica.TakeBatch):
            return Batch({}, self._batch_size, START)
        elif isinstance(said, of_replica.StepEnds):
            self.steps_ended += 1
            self.on_step(self.steps_ended)
            self._world.step_done()
        return None


class Syncing:
    """The background process of a holder of weights: round after round with their centres, whatever else the role does (HT 2.2)."""

    def __init__(self, world: World, host: Host, machine: SyncMachine, model: DeviceModel, held: Held) -> None:
        self.machine = machine
        self._world, self._host, self._model, self._held = world, host, model, held
        self._inbox = world.inbox(machine.endpoint)
        world.env.process(self._loop())

    def steps_done(self, n: int) -> None:
        """The holder has done `n` steps in all."""
        self.machine.steps_done(n)
        if self.machine.is_due:
            if self.machine.waits_for_writes:
                self._held.hold_writes()
            self._inbox.put(None)

    def _loop(self) -> Process:
        rounds, answer = self.machine.rounds(), None
        while True:
            answer = yield from self._carry_out(rounds.send(answer))

    def _carry_out(self, said: of_sync.Instruction) -> Generator[simpy.Event, Any, Any]:
        if isinstance(said, of_sync.RunStage):
            return (yield from self._run(said.state, said.stage))
        if isinstance(said, of_sync.Await):
            message = yield self._inbox.get()
            return None if message is None else (yield from _read(self._world, self._host, message))
        if isinstance(said, of_sync.Hold):
            self._held.hold_writes()
            while not self._held.at_rest():
                yield self._world.progress()
        elif isinstance(said, of_sync.Release):
            self._held.release_writes()
        return None

    def _run(self, state: Pass, stage: Stage) -> Generator[simpy.Event, Any, Any]:
        def send(packet: Packet) -> None:
            to = self.machine.destination(packet.peer)
            self._world.deliver(self.machine.endpoint, to, state.context, packet)

        yield from run_works(self._world, self._host, self._model.works[stage.index], send)
        return self.machine.engine.run(state, stage, _nobody)


def drive_pass(world: World, host: Host, replica: ReplicaMachine, machine: Machine[Any], model: DeviceModel) -> Carried:
    """Carry out what the machine of a replica says that only runs passes of its own, of nets with this model."""

    def carry_out(said: of_replica.Instruction) -> Carried:
        if isinstance(said, of_replica.RunStage):
            return (yield from _run_stage(world, host, replica, said, model))
        return (yield from _receive(world, host, replica, said))

    return (yield from _drive(machine, carry_out))


def _drive(machine: Machine[Any], carry_out: Callable[[of_replica.Instruction], Carried]) -> Carried:
    answer: Any = None
    while True:
        try:
            said = machine.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield from carry_out(said)


def _run_stage(
    world: World, host: Host, replica: ReplicaMachine, said: of_replica.RunStage, model: DeviceModel
) -> Carried:
    step, stage = said
    context = step.state.context

    def send(packet: Packet) -> None:
        world.deliver(replica.endpoint, endpoint_of(packet.peer, context), context, packet)

    yield from run_works(world, host, model.works[stage.index], send)
    return step.engine.run(step.state, stage, _nobody)


def _receive(world: World, host: Host, replica: ReplicaMachine, said: of_replica.Instruction) -> Carried:
    """The message that a replica waits for, or looks for and there is none."""
    inbox = world.inbox(replica.endpoint)
    if isinstance(said, of_replica.PollMessage) and not inbox.items:
        return None
    return (yield from _read(world, host, (yield inbox.get())))


def run_works(world: World, host: Host, works: Sequence[Work], send: Callable[[Packet], None]) -> Process:
    """Spend a stage's CPU time, and send its messages as they are made."""
    for work in works:
        locked = world.varied(work.locked_seconds + sum(packet.locked_seconds for packet in work.packets))
        yield from host.compute(locked, world.varied(work.free_seconds))
        for packet in work.packets:
            send(packet)


def _read(world: World, host: Host, message: Message) -> Generator[simpy.Event, Any, tuple[Context, Blobs]]:
    """Take a message in: the time that it costs, then its context and blobs."""
    context, _, packet = message
    yield from host.compute(world.varied(packet.locked_seconds), 0.0)
    return context, _blobs(packet)


def _cpu_seconds(works: Sequence[Work]) -> float:
    return sum(work.locked_seconds + work.free_seconds for work in works)


def _blobs(packet: Packet) -> Blobs:
    """A message's blobs: of a simulated one only the names are there."""
    return dict.fromkeys(packet.names)


def _nobody(*arguments: object) -> None:
    """The engine's stages send nothing themselves here."""

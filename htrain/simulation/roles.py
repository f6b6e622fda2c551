"""What roles do in a simulation: the threads that they have in a run, over the executor's own engine and gates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import simpy

from htrain.executor.engine import Engine, Pass
from htrain.executor.gate import WriteGates
from htrain.executor.program import Stage
from htrain.executor.wire import Context
from htrain.plan import Plan
from htrain.simulation.costs import DeviceModel, Packet
from htrain.simulation.machine import Host, Process


class World(Protocol):
    """What a role sees of its simulation."""

    env: simpy.Environment
    plan: Plan
    steps: int
    workers: int
    hosts: Mapping[str, Host]

    def varied(self, seconds: float) -> float: ...
    def bound(self) -> int: ...
    def step_done(self) -> None: ...
    def progressed(self) -> None: ...
    def deliver(self, source: str, context: Context, packet: Packet) -> None: ...


class Server:
    """A group PS or sparse PS: one thread receives, `workers` run stages."""

    def __init__(self, world: World, role: str, model: DeviceModel) -> None:
        self.world, self.role, self.model = world, role, model
        env = world.env
        self.host = world.hosts[role]
        self.engine = Engine(model.program)
        self.gates: WriteGates[Callable[[], None]] = WriteGates(model.program.num_clocks, world.bound())
        self.inbox, self.jobs = simpy.Store(env), simpy.Store(env)
        self._passes: dict[Context, Pass] = {}
        self._ended = 0
        env.process(self._receive())
        for _ in range(world.workers if world.workers > 1 else 0):
            env.process(self._work())

    def passes(self) -> int:
        return self._ended

    def _receive(self) -> Process:
        while True:
            context, packet = yield self.inbox.get()
            yield from self.host.compute(self.world.varied(packet.locked_seconds), 0.0)
            state = self._passes.get(context)
            if state is None:
                state = self._passes[context] = self.engine.begin(context, "", 0, {})
                self._offer(state, self.engine.start(state))
            self._offer(state, self.engine.receive(state, dict.fromkeys(packet.names)))  # type: ignore[arg-type]
            while self.world.workers == 1 and self.jobs.items:
                job = yield self.jobs.get()
                yield from self._run(*job)

    def _work(self) -> Process:
        while True:
            job = yield self.jobs.get()
            yield from self._run(*job)

    def _offer(self, state: Pass, stages: Sequence[Stage]) -> None:
        for stage in stages:
            job = (state, stage)
            granted = self.gates.commit(stage.writes[0], state.context, job) if stage.writes else [job]  # type: ignore[arg-type]
            for each in granted:
                self.jobs.put(each)

    def _run(self, state: Pass, stage: Stage) -> Process:
        self.gates.begin(stage.reads, state.context)
        yield from run_stage(self.world, self.role, self.model, state.context, stage)
        ready = self.engine.run(state, stage, nobody)
        for granted in self.gates.end(stage.writes[0], state.context) if stage.writes else ():
            self.jobs.put(granted)
        self._offer(state, ready)
        if self.engine.done(state):
            self._passes.pop(state.context, None)
            self._ended += 1
            self.world.progressed()


class Trainer:
    """A trainer: a thread for each net replica drives its steps."""

    def __init__(self, world: World, role: str, model: DeviceModel) -> None:
        self.world, self.role, self.model = world, role, model
        self.host = world.hosts[role]
        self.engine = Engine(model.program)
        self.gates: WriteGates[simpy.Event] = WriteGates(model.program.num_clocks, world.bound())
        self.inboxes = [simpy.Store(world.env) for _ in range(world.plan.options.net_replicas)]
        self._open: dict[Context, tuple[Pass, list[Stage]]] = {}

    def missing(self) -> list[str]:
        """The peers that the steps under way wait for."""
        return sorted({peer for state, _ in self._open.values() for peer in self.engine.missing(state)})

    def loop(self, replica: int) -> Process:
        _, group, trainer = self.role.split(":")
        context = Context(int(group), int(trainer), replica, 0)
        yield from self._begin(context)
        for step in range(self.world.steps):
            current, following = context, Context(int(group), int(trainer), replica, step + 1)
            last = step + 1 == self.world.steps
            if self.world.plan.options.prefetch and not last:
                yield from self._begin(following)
            yield from self._run(current)
            self.world.step_done()
            if not self.world.plan.options.prefetch and not last:
                yield from self._begin(following)
            context = following

    def _begin(self, context: Context) -> Process:
        state = self.engine.begin(context, "", self.world.plan.options.batch_size, {})
        pending: list[Stage] = []
        self._open[context] = (state, pending)
        for stage in self.engine.start(state):
            if stage.prefetch:
                yield from run_stage(self.world, self.role, self.model, context, stage)
                pending += self.engine.run(state, stage, nobody)
            else:
                pending.append(stage)

    def _run(self, context: Context) -> Process:
        state, pending = self._open[context]
        while not self.engine.done(state):
            if pending:
                yield from self._stage(state, pending, pending.pop(0))
            else:
                target, packet = yield self.inboxes[context.replica].get()
                yield from self.host.compute(self.world.varied(packet.locked_seconds), 0.0)
                other, ready = self._open[target]
                ready += self.engine.receive(other, dict.fromkeys(packet.names))  # type: ignore[arg-type]
        del self._open[context]

    def _stage(self, state: Pass, pending: list[Stage], stage: Stage) -> Process:
        if stage.writes:
            granted = self.world.env.event()
            for event in self.gates.commit(stage.writes[0], state.context, granted):
                event.succeed()
            yield granted
        self.gates.begin(stage.reads, state.context)
        yield from run_stage(self.world, self.role, self.model, state.context, stage)
        pending += self.engine.run(state, stage, nobody)
        for event in self.gates.end(stage.writes[0], state.context) if stage.writes else ():
            event.succeed()


def run_stage(world: World, role: str, model: DeviceModel, context: Context, stage: Stage) -> Process:
    """Spend a stage's CPU time, and send its messages as they are made."""
    for work in model.works[stage.index]:
        locked = world.varied(work.locked_seconds + sum(packet.locked_seconds for packet in work.packets))
        yield from world.hosts[role].compute(locked, world.varied(work.free_seconds))
        for packet in work.packets:
            world.deliver(role, context, packet)


def nobody(*arguments: object) -> None:
    """The engine's stages send nothing themselves here."""

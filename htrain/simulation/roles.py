"""What roles do in a simulation: the threads that they have in a run, over the executor's own engine and gates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import simpy

from htrain.executor.engine import Engine, Pass
from htrain.executor.gate import WriteGates
from htrain.executor.program import Stage
from htrain.executor.strategies.strategy import sync_of
from htrain.executor.wire import SYNC_REPLICA, Context
from htrain.plan import Plan
from htrain.simulation.costs import DeviceModel, Packet
from htrain.simulation.machine import Host, Process
from htrain.sync.rounds import StartRound


class World(Protocol):
    """What a role sees of its simulation."""

    env: simpy.Environment
    plan: Plan
    hosts: Mapping[str, Host]

    def varied(self, seconds: float) -> float: ...
    def bound(self) -> int: ...
    def step_done(self) -> None: ...
    def progressed(self) -> None: ...
    def progress(self) -> simpy.Event: ...
    def deliver(self, source: str, context: Context, packet: Packet) -> None: ...


@dataclass
class _Serving:
    """A device model, the engine of its program, and the passes of it that are under way."""

    model: DeviceModel
    engine: Engine
    passes: dict[Context, Pass] = field(default_factory=dict)


class Server:
    """A PS: one thread receives, `workers` run stages; with one, it runs them itself. `centers` are what a dense PS runs, by the holder whose
    rounds they serve."""

    def __init__(self, world: World, role: str, model: DeviceModel, centers: Mapping[int, DeviceModel], workers: int) -> None:
        self.world, self.role, self.workers = world, role, workers
        env = world.env
        self.host = world.hosts[role]
        self._steps = _Serving(model, Engine(model.program))
        self._rounds = {holder: _Serving(center, Engine(center.program)) for holder, center in centers.items()}
        self.gates: WriteGates[Callable[[], None]] = WriteGates(model.program.num_clocks, world.bound())
        self._open = WriteGates[Callable[[], None]](0, 0)
        self.inbox, self.jobs = simpy.Store(env), simpy.Store(env)
        self._ended = 0
        env.process(self._receive())
        for _ in range(workers if workers > 1 else 0):
            env.process(self._work())

    def passes(self) -> int:
        """Steps that have ended here."""
        return self._ended

    def _receive(self) -> Process:
        while True:
            context, packet = yield self.inbox.get()
            yield from self.host.compute(self.world.varied(packet.locked_seconds), 0.0)
            serving = self._serving(context)
            state = serving.passes.get(context)
            if state is None:
                state = serving.passes[context] = serving.engine.begin(context, "", 0, {})
                self._offer(state, serving.engine.start(state))
            self._offer(state, serving.engine.receive(state, dict.fromkeys(packet.names)))  # type: ignore[arg-type]
            while self.workers == 1 and self.jobs.items:
                job = yield self.jobs.get()
                yield from self._run(*job)

    def _work(self) -> Process:
        while True:
            job = yield self.jobs.get()
            yield from self._run(*job)

    def _serving(self, context: Context) -> _Serving:
        return self._rounds[context.trainer] if context.replica == SYNC_REPLICA else self._steps

    def _gates(self, context: Context) -> WriteGates[Callable[[], None]]:
        return self._open if context.replica == SYNC_REPLICA else self.gates

    def _offer(self, state: Pass, stages: Sequence[Stage]) -> None:
        for stage in stages:
            job = (state, stage)
            granted = self._gates(state.context).commit(stage.writes[0], state.context, job) if stage.writes else [job]  # type: ignore[arg-type]
            for each in granted:
                self.jobs.put(each)

    def _run(self, state: Pass, stage: Stage) -> Process:
        serving, gates = self._serving(state.context), self._gates(state.context)
        gates.begin(stage.reads, state.context)
        yield from run_stage(self.world, self.role, serving.model, state.context, stage)
        ready = serving.engine.run(state, stage, nobody)
        for granted in gates.end(stage.writes[0], state.context) if stage.writes else ():
            self.jobs.put(granted)
        self._offer(state, ready)
        if serving.engine.done(state):
            serving.passes.pop(state.context, None)
            self._ended += 1
            self.world.progressed()


class Syncing:
    """The background thread of a holder of weights: a round with the dense PSs whenever one is due, whatever else the role does (HT 2.2)."""

    def __init__(self, world: World, role: str, model: DeviceModel, holder: int, steps: Callable[[], int]) -> None:
        self.world, self.role, self.model = world, role, model
        self.host = world.hosts[role]
        self.inbox = simpy.Store(world.env)
        self.rounds_done = 0
        self.round_seconds = 0.0
        self._engine = Engine(model.program)
        self._place = int(role.split(":")[1]), holder
        self._steps = steps
        self._rounds = sync_of(world.plan, role).rounds()
        world.env.process(self._loop())

    def _loop(self) -> Process:
        while True:
            due = [i.round for i in self._rounds.steps_done(self._steps()) if isinstance(i, StartRound)]
            while due:
                began = self.world.env.now
                yield from self._round(due[0])
                self.rounds_done += 1
                self.round_seconds += self.world.env.now - began
                due = [i.round for i in self._rounds.reply(due[0]) if isinstance(i, StartRound)]
            yield self.world.progress()

    def _round(self, number: int) -> Process:
        context = Context(*self._place, SYNC_REPLICA, number)
        state = self._engine.begin(context, "", 0, {})
        ready = self._engine.start(state)
        while not self._engine.done(state):
            while ready:
                stage = ready.pop(0)
                yield from run_stage(self.world, self.role, self.model, context, stage)
                ready += self._engine.run(state, stage, nobody)
            if not self._engine.done(state):
                packet = yield self.inbox.get()
                yield from self.host.compute(self.world.varied(packet.locked_seconds), 0.0)
                ready += self._engine.receive(state, dict.fromkeys(packet.names))  # type: ignore[arg-type]


class Trainer:
    """A trainer: a thread for each net replica drives its steps, for as long as the simulation lasts."""

    def __init__(self, world: World, role: str, model: DeviceModel) -> None:
        self.world, self.role, self.model = world, role, model
        self.host = world.hosts[role]
        self.engine = Engine(model.program)
        self.gates: WriteGates[simpy.Event] = WriteGates(model.program.num_clocks, world.bound())
        self.inboxes = [simpy.Store(world.env) for _ in range(world.plan.options.net_replicas)]
        self.steps_ended = 0
        self._open: dict[Context, tuple[Pass, list[Stage]]] = {}

    def missing(self) -> list[str]:
        """The peers that the steps under way wait for."""
        return sorted({peer for state, _ in self._open.values() for peer in self.engine.missing(state)})

    def loop(self, replica: int) -> Process:
        _, group, trainer = self.role.split(":")
        context = Context(int(group), int(trainer), replica, 0)
        yield from self._begin(context)
        for step in count(1):
            following = Context(int(group), int(trainer), replica, step)
            if self.world.plan.options.looks_ahead:
                yield from self._begin(following)
            yield from self._run(context)
            self.steps_ended += 1
            self.world.step_done()
            if not self.world.plan.options.looks_ahead:
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

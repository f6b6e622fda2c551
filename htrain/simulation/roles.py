"""What roles do in a simulation: the threads that they have in a run, over the executor's own engine and gates."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import simpy
from msgspec import structs

from htrain.executor.engine.context import SYNC_REPLICA, Context
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import Stage
from htrain.executor.engine.stage_keys import ROUND
from htrain.executor.strategies.strategy import sync_of
from htrain.plan.plan import Plan
from htrain.simulation.costs import DeviceModel, Packet, invitation
from htrain.simulation.machine import Host, Process
from htrain.sync.rounds import AnswerAll, Instruction, Invite, JointRounds, StartRound


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
    joint: JointRounds[int] | None = None  # of all groups, where none is answered before all have come

    @classmethod
    def of(cls, model: DeviceModel, groups: int = 0) -> "_Serving":
        waits = any(ROUND in stage.waits for stage in model.program.stages)
        return cls(model, Engine(model.program), joint=JointRounds(range(groups)) if waits else None)


class Server:
    """A PS: one thread receives, `workers` run stages; with one, it runs them itself. `centers` are what a dense PS runs, by the holder whose
    rounds they serve."""

    def __init__(
        self, world: World, role: str, model: DeviceModel, centers: Mapping[int, DeviceModel], workers: int, groups: int
    ) -> None:
        self.world, self.role, self.workers = world, role, workers
        env = world.env
        self.host = world.hosts[role]
        self._steps = _Serving.of(model)
        self._rounds = {holder: _Serving.of(center, groups) for holder, center in centers.items()}
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
                if serving.joint:
                    self._invite(serving.joint.begun(context.group, context.step), context)
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
        if serving.joint and serving.engine.waits_for(state, ROUND):
            self._answer_all(serving, serving.joint.collected(state.context.group, state.context.step), state.context)
        if serving.engine.done(state):
            serving.passes.pop(state.context, None)
            self._ended += 1
        if gates.is_held or serving.engine.done(state):
            self.world.progressed()

    def _invite(self, instructions: Sequence[Invite[int]], context: Context) -> None:
        for group in sorted(group for invite in instructions for group in invite.sources):
            self.world.deliver(self.role, structs.replace(context, group=group), invitation(self.world.plan.cluster))

    def _answer_all(self, serving: _Serving, instructions: Sequence[AnswerAll[int]], context: Context) -> None:
        for _ in instructions:
            for state in [state for c, state in serving.passes.items() if c.step == context.step]:
                self._offer(state, serving.engine.grant(state, ROUND))

    def release_writes(self) -> None:
        """What has waited for a round to end goes on."""
        for job in self.gates.release():
            self.jobs.put(job)


class Holder(Protocol):
    """The trainer or PS whose weights are synchronised."""

    gates: WriteGates[Any]

    def release_writes(self) -> None: ...


class Syncing:
    """The background thread of a holder of weights: a round with their centres whenever one is due, whatever else the role does (HT 2.2)."""

    def __init__(
        self, world: World, role: str, model: DeviceModel, number: int, holder: Holder, steps: Callable[[], int]
    ) -> None:
        self.world, self.role, self.model = world, role, model
        self.host = world.hosts[role]
        self.inbox = simpy.Store(world.env)
        self.rounds_done = 0
        self.round_seconds = 0.0
        self._engine = Engine(model.program)
        self._place = int(role.split(":")[1]), number
        self._holder, self._steps = holder, steps
        sync = sync_of(world.plan, role)
        self._rounds, self._holds_writes = sync.rounds(), sync.holds_writes
        self._due: list[int] = []
        self._coming: simpy.Event | None = None
        world.env.process(self._loop())

    def _loop(self) -> Process:
        while True:
            self._take(self._rounds.steps_done(self._steps()))
            while self._due:
                began, number = self.world.env.now, self._due.pop(0)
                yield from self._round(number)
                self.rounds_done += 1
                self.round_seconds += self.world.env.now - began
                self._take(self._rounds.reply(number))
            yield self._next() | self.world.progress()
            if self._next().triggered:
                context, _ = yield from self._receive()
                self._hear(context)

    def _take(self, instructions: Sequence[Instruction]) -> None:
        self._due += [each.round for each in instructions if isinstance(each, StartRound)]

    def _hear(self, context: Context) -> None:
        """A packet that is none of a round in flight: an invitation."""
        self._take(self._rounds.invited(context.step))

    def _next(self) -> simpy.Event:
        self._coming = self._coming or self.inbox.get()
        return self._coming

    def _receive(self) -> Generator[simpy.Event, Any, tuple[Context, Packet]]:
        context, packet = yield self._next()
        self._coming = None
        yield from self.host.compute(self.world.varied(packet.locked_seconds), 0.0)
        return context, packet

    def _round(self, number: int) -> Process:
        context = Context(*self._place, SYNC_REPLICA, number)
        if self._holds_writes:
            self._holder.gates.hold()
            while not self._holder.gates.await_rest(0):
                yield self.world.progress()
        state = self._engine.begin(context, "", 0, {})
        ready = self._engine.start(state)
        while not self._engine.done(state):
            while ready:
                stage = ready.pop(0)
                yield from run_stage(self.world, self.role, self.model, context, stage)
                ready += self._engine.run(state, stage, nobody)
            if not self._engine.done(state):
                got, packet = yield from self._receive()
                if got == context and packet.names:
                    ready += self._engine.receive(state, dict.fromkeys(packet.names))  # type: ignore[arg-type]
                else:
                    self._hear(got)
        if self._holds_writes:
            self._holder.release_writes()


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

    def release_writes(self) -> None:
        """What has waited for a round to end goes on."""
        for event in self.gates.release():
            event.succeed()

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
        if self.gates.is_held:
            self.world.progressed()


def run_stage(world: World, role: str, model: DeviceModel, context: Context, stage: Stage) -> Process:
    """Spend a stage's CPU time, and send its messages as they are made."""
    for work in model.works[stage.index]:
        locked = world.varied(work.locked_seconds + sum(packet.locked_seconds for packet in work.packets))
        yield from world.hosts[role].compute(locked, world.varied(work.free_seconds))
        for packet in work.packets:
            world.deliver(role, context, packet)


def nobody(*arguments: object) -> None:
    """The engine's stages send nothing themselves here."""

"""All roles of a plan in one thread: their machines over real parameters, with whatever may happen next drawn by a seed, and no clock, thread or socket."""

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from htrain.data import START, Batch
from htrain.executor.assembly import NOTHING, Assembly
from htrain.executor.engine.context import Context
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import Stage
from htrain.executor.roles import replica as of_replica
from htrain.executor.roles import sync as of_sync
from htrain.executor.roles.endpoints import centre_endpoint, endpoint_of
from htrain.executor.roles.replica import Ahead, Orders, ReplicaMachine, train
from htrain.executor.roles.server import Instruction as ServerInstruction
from htrain.executor.roles.server import Job, Run, ServerMachine, Summon
from htrain.net.names import role_of
from htrain.plan.plan import Plan

Values = Mapping[str, torch.Tensor]
Message = tuple[Context, str, int, Values]
_MOST_EVENTS = 200_000


@dataclass
class _Server:
    """A PS: jobs that wait, those that threads have begun, and those that have run, which the machine has not heard of yet."""

    endpoint: str
    machine: ServerMachine
    threads: int
    on_step: Callable[[int], None] = lambda count: None
    waiting: list[Job] = field(default_factory=list)
    begun: list[Job] = field(default_factory=list)
    run: list[tuple[Job, list[Stage], list[ServerInstruction], bool]] = field(default_factory=list)


@dataclass
class _Driven:
    """A replica or a background round: its generator, what that waits for, and messages to it."""

    endpoint: str
    machine: Any
    instruction: Any
    send: Callable[[Any], Any]
    inbox: deque[Message] = field(default_factory=deque)
    grants: int = 0
    ended: bool = False


class Scheduled:
    """Runs a plan over `batches` of each trainer, by what `seed` draws. Messages of one endpoint to another stay in order; all else may happen in any.

    `twice` says which messages, by target and context, come a second time. `losses` are those of each trainer's steps; `staleness` is that of each role's
    dense updates; `rounds` counts those of the background sync that have been absorbed.
    """

    def __init__(
        self, plan: Plan, folder: Path, batches: Mapping[str, Sequence[Values]], *, seed: int, threads: int = 2,
        twice: Callable[[str, Context], bool] = lambda endpoint, context: False,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.losses: dict[str, list[float]] = {trainer: [] for trainer in batches}
        self.events = 0
        self._draw = random.Random(seed)
        self._twice = twice
        self._paces: dict[str, float] = {}
        self._batches = {trainer: deque(of) for trainer, of in batches.items()}
        self._channels: dict[tuple[str, str], deque[Message]] = {}
        self._sent: list[tuple[str, str, Message]] = []
        self._servers: dict[str, _Server] = {}
        self._driven: dict[str, _Driven] = {}
        self._trainers: dict[str, tuple[WriteGates[int], list[_Driven]]] = {}
        self._steps_ended: dict[str, int] = {}
        self.parts = {role: Assembly(plan, role, replicas=plan.options.net_replicas) for role in plan.cluster.roles}
        self._on_step: dict[str, Callable[[int], None]] = {}
        for role, parts in self.parts.items():
            self._add(role, parts, threads)
        for parts in self.parts.values():
            parts.fill(folder)

    # -- what there is -----------------------------------------------------------------------------------------------

    def _add(self, role: str, parts: Assembly, threads: int) -> None:
        if role_of(role) == "trainer":
            self._add_trainer(role, parts)
        else:
            self._servers[role] = _Server(role, parts.server(), threads)
        machine = parts.sync()
        if machine:
            rounds = machine.rounds()
            self._driven[machine.endpoint] = _Driven(machine.endpoint, machine, next(rounds), rounds.send)
            self._on_step[role] = lambda n: self._steps_done(role, machine, n)
            if role in self._servers:
                self._servers[role].on_step = self._on_step[role]
        if parts.hosts_centres:
            endpoint = centre_endpoint(parts.host, role)
            self._servers[endpoint] = _Server(endpoint, parts.centres(), 1)

    def _add_trainer(self, role: str, parts: Assembly) -> None:
        gates: WriteGates[int] = WriteGates(parts.engine.program.num_clocks, parts.bound)
        flush = parts.engine_of(self.plan.nets.get("flush_trainer", NOTHING))
        _, group, trainer = role.split(":")
        driven = []
        for number in range(parts.replicas):
            machine = ReplicaMachine((int(group), int(trainer), number), f"{role}/{number}", parts.engine, gates)
            source = Ahead(machine, parts.cache_half.announced, flush)
            steps = train(machine, source, Orders(), prefetch=self.plan.options.looks_ahead)
            driven.append(_Driven(machine.endpoint, machine, next(steps), steps.send))
        self._trainers[role] = gates, driven
        self._driven.update({each.endpoint: each for each in driven})

    def _steps_done(self, role: str, machine: Any, n: int) -> None:
        machine.steps_done(n)
        if machine.waits_for_writes:
            self._gates_of(role).hold()

    def _gates_of(self, role: str) -> WriteGates[Any]:
        return self._trainers[role][0] if role in self._trainers else self._servers[role].machine.gates

    @property
    def staleness(self) -> dict[str, dict[int, int]]:
        found = {role: dict(gates.histogram) for role, (gates, _) in self._trainers.items()}
        return found | {role: dict(server.machine.gates.histogram) for role, server in self._servers.items()}

    @property
    def rounds(self) -> int:
        return sum(each.machine.rounds_done for each in self._driven.values() if not self._is_replica(each))

    def send_again(self) -> "Scheduled":
        """All messages that servers have had come once more, in their order, though all is over."""
        for source, target, message in self._sent.copy():
            if target in self._servers:
                self._channels[source, target].append(message)
        return self.run()

    def leftovers(self) -> list[str]:
        """What is not over although all is: passes of servers, messages on their way."""
        passes = [f"{name}: {c}" for name, server in self._servers.items() for c in server.machine.passes]
        return passes + [f"{source} -> {target}" for (source, target), queue in self._channels.items() if queue]

    # -- what happens ------------------------------------------------------------------------------------------------

    def run(self) -> "Scheduled":
        """Until all data has been trained and nothing is on its way."""
        while possible := list(self._possible()):
            weights = [self._pace_of(actor) for actor, _ in possible]
            ((_, happens),) = self._draw.choices(possible, weights)
            happens()
            self.events += 1
            assert self.events < _MOST_EVENTS, "it goes on for ever"
        replicas = [each for each in self._driven.values() if self._is_replica(each)]
        stuck = [f"{each.endpoint}: {type(each.instruction).__name__}" for each in replicas if not each.ended]
        assert not stuck, f"nothing can happen, and {stuck} wait; {self.leftovers()}"
        return self

    def _pace_of(self, actor: str) -> float:
        """How much sooner than others an actor is heard: of some, a thousand things happen before the next one of another."""
        if actor not in self._paces:
            self._paces[actor] = 10 ** self._draw.uniform(-3, 0)
        return self._paces[actor]

    def _possible(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for (source, target), queue in self._channels.items():
            if queue:
                yield f"{source} to {target}", lambda queue=queue, target=target: self._arrive(queue.popleft(), target)  # type: ignore[misc]
        for server in self._servers.values():
            if server.waiting and len(server.begun) + len(server.run) < server.threads:
                yield f"{server.endpoint} begins", lambda server=server: self._begin(server)  # type: ignore[misc]
            for job in server.begun:
                yield f"{server.endpoint} computes", lambda server=server, job=job: self._compute(server, job)  # type: ignore[misc]
            for run in server.run:
                yield f"{server.endpoint} ends", lambda server=server, run=run: self._finish(server, run)  # type: ignore[misc]
        for each in self._driven.values():
            if not each.ended and self._may_go_on(each):
                yield each.endpoint, lambda each=each: self._go_on(each)  # type: ignore[misc]

    def _arrive(self, message: Message, target: str) -> None:
        if target in self._driven:
            self._driven[target].inbox.append(message)
            return
        server = self._servers[target]
        context, source, batch_size, values = message
        self._carry_out(server, server.machine.came(context, source, batch_size, values))

    def _begin(self, server: _Server) -> None:
        job = server.waiting.pop(0)
        server.machine.began(job)
        server.begun.append(job)

    def _compute(self, server: _Server, job: Job) -> None:
        """Run a job; its messages are on their way before the machine hears that it has run."""
        server.begun.remove(job)
        engine, state, stage = job

        def send(peer: str, names: tuple[str, ...], values: Any) -> None:
            to = server.machine.destination(peer, state)
            self._send(server.endpoint, to, state.context, state.batch_size, names, values)

        granted: list[ServerInstruction] = []
        held = server.machine.holds_back(stage)
        ready = engine.run(
            state, stage, send, ended=(lambda: granted.extend(server.machine.wrote(job))) if held else None
        )
        server.run.append((job, ready, granted, held))

    def _finish(self, server: _Server, run: tuple[Job, list[Stage], list[ServerInstruction], bool]) -> None:
        server.run.remove(run)
        job, ready, granted, held = run
        if job.stage.writes and not held:
            granted += server.machine.wrote(job)
        self._carry_out(server, [*granted, *server.machine.ran(job, ready, 0.0)])

    def _carry_out(self, server: _Server, instructions: Sequence[ServerInstruction]) -> None:
        for each in instructions:
            if isinstance(each, Run):
                server.waiting.append(each.job)
            elif isinstance(each, Summon):
                self._send(server.endpoint, each.endpoint, each.context, 0, (), ())
            else:
                server.on_step(each.passes)

    def _send(self, source: str, target: str, context: Context, size: int, names: Sequence[str], values: Any) -> None:
        tensors = [values[name] for name in names] if isinstance(values, Mapping) else values
        copied = {name: tensor.clone() for name, tensor in zip(names, tensors, strict=True)}
        message = context, source, size, copied
        self._sent.append((source, target, message))
        queue = self._channels.setdefault((source, target), deque())
        queue.extend([message] * (1 + self._twice(target, context)))

    # -- replicas and rounds -----------------------------------------------------------------------------------------

    def _is_replica(self, each: _Driven) -> bool:
        return isinstance(each.machine, ReplicaMachine)

    def _may_go_on(self, each: _Driven) -> bool:
        said = each.instruction
        if isinstance(said, of_replica.AwaitMessage):
            return bool(each.inbox)
        if isinstance(said, of_replica.AwaitGrant):
            return each.grants > 0
        if isinstance(said, of_sync.Await):
            return bool(each.inbox) or (said.state is None and each.machine.is_due)
        if isinstance(said, of_sync.Hold):
            return self._gates_of(each.endpoint.partition("/")[0]).await_rest(0)
        return True

    def _go_on(self, each: _Driven) -> None:
        answer = self._answer(each, each.instruction)
        try:
            each.instruction = each.send(answer)
        except StopIteration:
            each.ended = True
            return
        if isinstance(each.instruction, of_sync.Hold):
            self._gates_of(each.endpoint.partition("/")[0]).hold()

    def _answer(self, each: _Driven, said: Any) -> Any:
        role = each.endpoint.partition("/")[0]
        if isinstance(said, of_replica.RunStage):
            return self._run(each, said.step.engine, said.step.state, said.stage)
        if isinstance(said, of_sync.RunStage):
            return self._run(each, each.machine.engine, said.state, said.stage)
        if isinstance(said, of_replica.AwaitMessage | of_replica.PollMessage | of_sync.Await):
            if not each.inbox:
                return None
            context, _, _, values = each.inbox.popleft()
            return context, values
        if isinstance(said, of_replica.AwaitGrant):
            each.grants -= 1
        elif isinstance(said, of_replica.Wake):
            self._wake(role, said.replicas)
        elif isinstance(said, of_replica.TakeBatch):
            return self._next_batch(role)
        elif isinstance(said, of_replica.StepEnds):
            self._step_ends(role, said.step)
        elif isinstance(said, of_sync.Release):
            self._release(role)
        return None

    def _run(self, each: _Driven, engine: Any, state: Any, stage: Any) -> Any:
        def send(peer: str, names: tuple[str, ...], values: Any) -> None:
            to = endpoint_of(peer, state.context) if self._is_replica(each) else each.machine.destination(peer)
            self._send(each.endpoint, to, state.context, state.batch_size, names, values)

        return engine.run(state, stage, send)

    def _wake(self, role: str, replicas: Sequence[int]) -> None:
        for number in replicas:
            self._trainers[role][1][number].grants += 1

    def _release(self, role: str) -> None:
        if role in self._trainers:
            self._wake(role, self._gates_of(role).release())
        else:
            self._carry_out(self._servers[role], self._servers[role].machine.release())

    def _next_batch(self, role: str) -> Batch | None:
        if not self._batches[role]:
            return None
        columns = {name: tensor.numpy() for name, tensor in self._batches[role].popleft().items()}
        return Batch(columns, len(columns["label"]), START)

    def _step_ends(self, role: str, step: of_replica.Step) -> None:
        values = step.state.values
        self.losses[role].append(float(values[self.parts[role].engine.program.net.outputs[0]]))
        self._steps_ended[role] = self._steps_ended.get(role, 0) + 1
        if role in self._on_step and role_of(role) == "trainer":
            self._on_step[role](self._steps_ended[role])

"""The collectives of trainers in a simulation: the thread that each has for them, over the executor's own turns (HET 3, 4.1)."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import simpy
from msgspec import structs

from htrain.costs.collectives import Exchange, collectives_of, exchange_of
from htrain.costs.expected import expected, expected_blobs
from htrain.executor.engine.context import Context
from htrain.net.names import TRAINER, WORKERS
from htrain.plan.plan import Plan
from htrain.simulation.costs import Packet, packet_of
from htrain.simulation.machine import Host, Process
from htrain.sync.agreement import BEFORE, Verdict, Word
from htrain.sync.turns import Turns


@dataclass(frozen=True)
class Reduction:
    """A bucket: the blobs of it that a trainer gives, what reducing them asks, and the message with the results."""

    inputs: tuple[str, ...]
    exchange: Exchange
    answer: Packet


def reductions_of(plan: Plan) -> tuple[Reduction, ...]:
    """The collectives of a step of a plan, in their order; none where trainers do without."""
    beside = plan.step_net(WORKERS)
    if beside is None:
        return ()
    cluster, batch = plan.cluster, plan.options.batch_size
    net = expected(beside, expected_blobs(plan.train, cluster, batch))
    return tuple(
        Reduction(
            op.inputs,
            exchange_of(op, net, cluster, batch),
            packet_of(net, TRAINER, op.outputs, cluster, batch, near=True),
        )
        for op in collectives_of(net)
    )


class Meeting:
    """Where all trainers wait for each other."""

    def __init__(self, env: simpy.Environment, size: int) -> None:
        self._env, self._size = env, size
        self._waiting: dict[Hashable, list[simpy.Event]] = {}

    def join(self, what: Hashable) -> simpy.Event:
        """Happens when all have come for `what`."""
        come = self._env.event()
        waiting = self._waiting.setdefault(what, [])
        waiting.append(come)
        if len(waiting) == self._size:
            for event in self._waiting.pop(what):
                event.succeed()
        return come


class World(Protocol):
    """What the thread sees of its simulation."""

    env: simpy.Environment
    meeting: Meeting

    def varied(self, seconds: float) -> float: ...
    def inbox(self, endpoint: str) -> simpy.Store: ...
    def deliver(self, source: str, endpoint: str, context: Context, packet: Packet) -> None: ...


class Reducing:
    """One trainer's thread for collectives. What it sends goes round to `following`, the next trainer's host; `word` is what the trainer says with a step."""

    def __init__(
        self, world: World, endpoint: str, reductions: Sequence[Reduction], host: Host, following: Host
    ) -> None:
        self.word: Callable[[int], Word] = lambda step: Word(has_data=True, wants_pause=False)
        self._world, self._endpoint = world, endpoint
        self._inbox = world.inbox(endpoint)
        self._reductions = reductions
        self._host, self._following = host, following
        self._turns = Turns([each.inputs for each in reductions])
        self._verdicts: dict[int, simpy.Event] = {}
        world.env.process(self._loop())

    def verdict(self, step: int) -> simpy.Event:
        """Happens when all have said something with a step: to go on. Of the numbers BEFORE the first one nobody waits for others."""
        made = self._verdicts.setdefault(step, self._world.env.event())
        if step == BEFORE and not made.triggered:
            made.succeed(Verdict.of(*self.word(step).numbers()))
        return made

    def _loop(self) -> Process:
        while True:
            context, source, packet = yield self._inbox.get()
            yield from self._host.compute(self._world.varied(packet.locked_seconds), 0.0)
            for turn in self._turns.came(context.step, packet.names):
                yield from self._reduce(structs.replace(context, step=turn.step), source, turn.bucket)

    def _reduce(self, context: Context, source: str, bucket: int) -> Process:
        reduction, world = self._reductions[bucket], self._world
        what = WORKERS, (context.step, bucket)
        yield from go_round(world, self._host, self._following, reduction.exchange, what)
        if bucket == 0:
            word = self.word(context.step)
            self.verdict(context.step).succeed(Verdict.of(*word.numbers()))
        yield from self._host.compute(world.varied(reduction.answer.locked_seconds), 0.0)
        world.deliver(self._endpoint, source, context, reduction.answer)


def go_round(world: World, host: Host, following: Host, exchange: Exchange, what: tuple[str, Hashable]) -> Process:
    """One trainer's part in an exchange: over the connection for a purpose, the one of that number.

    Nobody has a result before all have given and passed on; processors and links work at the same time.
    """
    purpose, number = what
    env = world.env
    yield world.meeting.join((purpose, number, "begin"))
    around = env.event()
    if exchange.num_bytes:
        host.send(following, purpose, exchange.num_bytes, _occurs(around))
    else:
        around.succeed()
    locked, free = world.varied(exchange.locked_seconds), world.varied(exchange.free_seconds)
    yield env.process(host.compute(locked, free)) & around
    yield env.timeout(exchange.latency_seconds)
    yield world.meeting.join((purpose, number, "end"))


def _occurs(event: simpy.Event) -> Callable[[], None]:
    def occur() -> None:
        event.succeed()

    return occur

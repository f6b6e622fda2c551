"""A parameter server: the jobs of its machine on a few threads, and the background rounds of its weights (htrain.executor.loops)."""

from collections.abc import Sequence
from typing import Any

from fault_histories.counting import Parts, counts_of
from fault_histories.kept import Kept
from fault_histories.roles import COMPUTE_SECONDS, Mailbox, Role, Try, is_trainer
from fault_histories.world import Killed
from htrain.errors import Error, PeerLost
from htrain.executor.roles import sync as said
from htrain.executor.roles.server import Ended, Instruction, Job, Run, Summon
from htrain.executor.roles.sync import SyncMachine
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Message, Values
from htrain.net.names import GROUP_PS, SPARSE_PS, role_of
from htrain.net.names import Role as Named
from htrain.ops.bundle import Bundle

_THREADS = 2


class ServerRole(Role):
    """A PS of any kind; one of a group goes on with what is `kept`."""

    def __init__(self, name: str, attempt: Try, settings: RunSettings | None = None, kept: Kept | None = None) -> None:
        self.kept = (kept or attempt.machines.kept()) if role_of(name) == GROUP_PS else None
        super().__init__(name, attempt, settings)

    def build(self, parts: Parts) -> None:
        self.machine = parts.server(self.attempt.machines.server)
        self._threads = 1 if self.machine.serves_caches else _THREADS
        self._jobs: list[Job] = []
        self._idle = list(range(self._threads))
        self._has_started = False
        self._gone: list[tuple[int, int, int]] = []
        self._early: list[tuple[Message, Bundle]] = []
        self.listen("", self._came)
        sync = parts.sync(self.kept)
        self.rounds = Rounds(self, sync) if sync else None

    def _give_back(self) -> None:
        """What the rows of a sparse PS were last is known to who counts."""
        if self.parts and self._has_rows:
            (table,) = self.parts.assembly.store.values()
            self.left = counts_of(table.numpy())
        if self.parts and self.kept and self.kept.is_filled:
            self.kept.values = {name: tensor.clone() for name, tensor in self.parts.assembly.store.items()}
        super()._give_back()

    def fill(self) -> None:
        assert self.parts
        if self.kept and self.kept.is_filled:
            for name, tensor in self.parts.assembly.store.items():
                tensor.copy_(self.kept.values[name])
            return
        super().fill()
        if self.kept:
            self.kept.is_filled = True

    @property
    def _weight(self) -> float:
        """The one that counts examples, where steps change it: what a centre has is of rounds."""
        store = self.parts.assembly.store if self.parts and self.kept else {}
        return float(store["count.bias"][0]) if "count.bias" in store else 0.0

    @property
    def _has_rows(self) -> bool:
        return role_of(self.name) == SPARSE_PS

    def start(self, book: dict[str, str]) -> None:
        self._has_started = True
        if self.rounds:
            self.rounds.begin()
        early, self._early = self._early, []
        for each in early:
            self._came(*each)

    def lost(self, role: str, incarnation: int) -> None:
        super().lost(role, incarnation)
        if is_trainer(role):
            group, number = Named.parse(role).place
            self._gone.append((group, number, incarnation))
            self.world.soon(self.process, self._forget, mean=0.02)  # or as soon as its thread has heard of anything

    def found(self, role: str, book: dict[str, str]) -> None:
        super().found(role, book)
        if role_of(role) == GROUP_PS:
            self.world.soon(self.process, lambda: self._carry_out(self.machine.comes_back(role)), mean=0.02)

    def _forget(self) -> None:
        while self._gone:
            self._carry_out(self.machine.forget(*self._gone.pop(0)))

    def pause(self) -> None:
        if self.rounds:
            self.rounds.ordered(paused=True)

    def resume(self) -> None:
        if self.rounds:
            self.rounds.ordered(paused=False)

    @property
    def quiet(self) -> bool:
        return self.rounds is None or self.rounds.machine.quiet

    def _came(self, message: Message, bundle: Bundle) -> None:
        self._forget()
        if not self._has_started:
            self._early.append((message, bundle))
        elif isinstance(message, Values):
            self._carry_out(self.machine.came(message.context, message.source, message.batch_size, bundle))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Run):
                self._jobs.append(each.job)
            elif isinstance(each, Ended):
                self.is_warm = True
                if self.rounds:
                    self.rounds.steps_done(each.passes)
            elif isinstance(each, Summon):
                self.send("0", each.endpoint, Values(self.name, each.context, 0), ((), ()))
        while self._jobs and self._idle:
            job, thread = self._jobs.pop(0), self._idle.pop()
            self.world.soon(self.process, lambda job=job, thread=thread: self._run(job, thread), mean=COMPUTE_SECONDS)  # type: ignore[misc]

    def _run(self, job: Job, thread: int) -> None:
        """Run a job; its messages are on their way before the machine hears that it has run."""
        self.may_be_killed()
        engine, state, stage = job
        until, granted = self.world.now, list[Instruction]()

        def send(peer: str, names: tuple[str, ...], tensors: Any) -> None:
            nonlocal until
            self.may_be_killed()
            values = Values(self.name, state.context, state.batch_size)
            to = self.machine.destination(peer, state)
            until = max(until, self.send(str(thread), to, values, (names, tensors)))

        self.machine.began(job)
        held = self.machine.holds_back(stage)
        before = self._weight
        try:
            ready = engine.run(
                state, stage, send, ended=(lambda: granted.extend(self.machine.wrote(job))) if held else None
            )
        except Error as error:
            self.fail(error)
            return
        finally:
            self.attempt.stepped.examples += before - self._weight
        if stage.writes and not held:
            granted += self.machine.wrote(job)

        def ran() -> None:
            self.may_be_killed()
            self._idle.append(thread)
            self._carry_out([*granted, *self.machine.ran(job, ready, 0.0)])

        seconds = self.world.draw.random() * COMPUTE_SECONDS
        self.world.later(until - self.world.now + seconds, self.process, ran)

    def may_be_killed(self) -> None:
        """Before a stage of a sparse PS or a group PS, be it of a step or of a round, behind it, or while it sends. Raises Killed."""
        if self.attempt.group_kills and self.kept and not self.world.is_calm:
            if self.attempt.apart.random() < self.attempt.group_kills:
                self.world.count("group PSs killed")
                self.attempt.group_kills /= (
                    8  # one that follows soon takes all back, and with them what this one has made of its round
                )
                raise Killed("about a stage")
            return
        has_checkpoint = self.settings.restore or "checkpoints" in self.world.seen  # else nobody could go back to one
        share = self.attempt.ps_kills if self._has_rows and has_checkpoint and not self.world.is_calm else 0.0
        if share and self.world.draw.random() < share:
            self.world.count("sparse PSs killed")
            raise Killed("about a stage")


class Rounds:
    """The thread that keeps weights near their centre."""

    def __init__(self, role: ServerRole, machine: SyncMachine) -> None:
        self.machine, self._role, self._world = machine, role, role.world
        self._mailbox = Mailbox(self._wake)
        self._generator = machine.rounds()
        self._waits = 0
        self._is_idle = False  # it waits for a round to be due
        role.listen("sync", self._mailbox.take)

    def begin(self) -> None:
        self._world.soon(self._role.process, lambda: self._go_on(None), mean=COMPUTE_SECONDS)

    def steps_done(self, passes: int) -> None:
        self.machine.steps_done(passes)
        self._wake_if_due()

    def ordered(self, *, paused: bool) -> None:
        if paused:
            self.machine.pause()
        else:
            self.machine.resume()
        self._wake_if_due()

    def _wake_if_due(self) -> None:
        if self.machine.is_due and self._is_idle:
            self._mailbox.is_awaited = False
            self._wake()

    def _wake(self) -> None:
        self._waits += 1
        self._is_idle = False
        self._world.soon(self._role.process, lambda: self._go_on(self._message()), mean=0.0005)

    def _message(self) -> Any:
        if not self._mailbox.messages:
            return None
        message, bundle = self._mailbox.messages.popleft()
        return (message.context, bundle) if isinstance(message, Values) else None

    def _go_on(self, answer: Any) -> None:
        try:
            was_quiet = self.machine.quiet
            instruction = self._generator.send(answer)
            while isinstance(instruction, said.RoundEnds):
                instruction = self._generator.send(None)
            if self.machine.quiet > was_quiet:
                self._role.call()
            self._begin(instruction)
        except Error as error:
            self._role.fail(error)

    def _begin(self, instruction: Any) -> None:
        if isinstance(instruction, said.RunStage):
            self._run(instruction.state, instruction.stage)
        elif self._mailbox.messages or (instruction.state is None and self.machine.is_due):
            self._wake()
        else:
            assert isinstance(instruction, said.Await)
            self._mailbox.is_awaited = True
            self._is_idle = instruction.state is None
            if instruction.state:
                self._give_up_later(instruction.state)

    def _run(self, state: Any, stage: Any) -> None:
        until = self._world.now

        def send(peer: str, names: tuple[str, ...], tensors: Any) -> None:
            nonlocal until
            self._role.may_be_killed()
            values = Values(self.machine.endpoint, state.context, 0)
            until = max(until, self._role.send("sync", self.machine.destination(peer), values, (names, tensors)))

        self._role.may_be_killed()
        ready = self.machine.engine.run(state, stage, send)
        self._role.may_be_killed()
        self._world.later(until - self._world.now + COMPUTE_SECONDS, self._role.process, lambda: self._go_on(ready))

    def _give_up_later(self, state: Any) -> None:
        self._waits += 1
        this, missing, renewals = self._waits, ", ".join(self.machine.engine.missing(state)), self._role.renewals

        def look() -> None:
            if self._waits == this and self._role.renewals != renewals:
                self._give_up_later(state)
            elif self._waits == this:
                self._role.fail(
                    PeerLost(f"{self.machine.endpoint}: no answer from {missing} to round {state.context.step}")
                )

        self._world.later(self._role.patience, self._role.process, look)

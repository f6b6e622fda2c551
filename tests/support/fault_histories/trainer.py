"""A trainer: its net replicas, each a generator that is sent what comes, and its rests (htrain.executor.loops.trainer, htrain.executor.loops.replica)."""

from collections.abc import Mapping
from typing import Any

from fault_histories.counting import BATCH, Parts
from fault_histories.roles import COMPUTE_SECONDS, Mailbox, Role, Try
from fault_histories.world import Killed
from htrain.data import Batch, Position
from htrain.errors import Error, PeerLost
from htrain.executor.engine.context import first_step
from htrain.executor.engine.gate import WriteGates
from htrain.executor.host.journal import Journal
from htrain.executor.roles import replica as said
from htrain.executor.roles.endpoints import endpoint_of
from htrain.executor.roles.replica import Ahead, Orders, ReplicaMachine, Step, train
from htrain.executor.settings import RunSettings
from htrain.executor.transport.wire import Values


class Replica:
    """A thread of a trainer. It waits at `instruction` for what that asks for."""

    def __init__(self, number: int, trainer: "TrainerRole", parts: Parts, gates: WriteGates[int]) -> None:
        self.number, self._trainer, self._world = number, trainer, trainer.world
        group, shard = trainer.place
        first = first_step(trainer.incarnation)
        self.machine = ReplicaMachine(
            (group, shard, number), f"{trainer.name}/{number}", parts.assembly.engine, gates, first
        )
        source = Ahead(self.machine, parts.assembly.cache_half.announced, parts.flush)
        self._steps = train(
            self.machine, source, trainer.orders, prefetch=trainer.attempt.case.plan.options.looks_ahead
        )
        self.mailbox = Mailbox(self._wake)
        self.ended = False
        self._grants = 0
        self._instruction: Any = None
        self._waits = 0  # so far, to tell one from the next
        self.rests_in: int | None = None

    def begin(self) -> None:
        self._later(lambda: self._go_on(None))

    def _later(self, what: Any, *, mean: float = COMPUTE_SECONDS) -> None:
        self._world.soon(self._trainer.process, what, mean=mean)

    def _go_on(self, answer: Any) -> None:
        """To the next instruction that takes time."""
        try:
            while True:
                instruction = self._instruction = self._steps.send(answer)
                is_done, answer = self._at_once(instruction)
                if not is_done:
                    self._begin(instruction)
                    return
        except StopIteration:
            self.ended = True
            self._trainer.call()
        except Error as error:
            self._trainer.fail(error)

    def _at_once(self, instruction: Any) -> tuple[bool, Any]:
        self._trainer.may_be_killed()
        if isinstance(instruction, said.StepBegins):
            self._trainer.taken(instruction.position)
        elif isinstance(instruction, said.Wake):
            self._trainer.grant(instruction.replicas)
        elif isinstance(instruction, said.StepEnds):
            self._trainer.counted(instruction.step)
        elif isinstance(instruction, said.PollMessage):
            return True, self._message() if self.mailbox.messages else None
        else:
            return False, None
        return True, None

    def _begin(self, instruction: Any) -> None:
        if isinstance(instruction, said.TakeBatch):
            self._later(lambda: self._go_on(self._trainer.next_batch()))
        elif isinstance(instruction, said.RunStage):
            self._run(instruction.step, instruction.stage)
        elif isinstance(instruction, said.AwaitMessage):
            self._await(instruction.step)
        elif isinstance(instruction, said.AwaitGrant):
            if self._grants:
                self._granted()
            else:
                self._give_up_later(
                    f"step {instruction.step.state.context.step} waited for slower replicas to write first"
                )
        elif isinstance(instruction, said.Rest):
            self._later(self._look_at_orders, mean=0.0005)
        else:
            raise AssertionError(instruction)

    def _run(self, step: Any, stage: Any) -> None:
        state, until = step.state, self._world.now

        def send(peer: str, names: tuple[str, ...], tensors: Any) -> None:
            nonlocal until
            self._trainer.may_be_killed()
            values = Values(self.machine.endpoint, state.context, state.batch_size)
            until = max(
                until, self._trainer.send(str(self.number), endpoint_of(peer, state.context), values, (names, tensors))
            )

        ready = step.engine.run(state, stage, send)
        self._world.soon(self._trainer.process, lambda: self._go_on(ready), mean=COMPUTE_SECONDS, after=until)

    # -- waits -------------------------------------------------------------------------------------------------------

    def _await(self, step: Any) -> None:
        if self.mailbox.messages:
            self._wake()
            return
        self.mailbox.is_awaited = True
        missing = ", ".join(step.engine.missing(step.state))
        self._give_up_later(f"nothing from {missing} at step {step.state.context.step}")

    def _wake(self) -> None:
        self._waits += 1
        self._later(lambda: self._go_on(self._message()), mean=0.0005)

    def _message(self) -> Any:
        message, bundle = self.mailbox.messages.popleft()
        assert isinstance(message, Values)
        return message.context, bundle

    def _give_up_later(self, what: str) -> None:
        self._waits += 1
        this, renewals = self._waits, self._trainer.renewals

        def look() -> None:
            if self._waits == this and self._trainer.renewals != renewals:
                self._give_up_later(what)
            elif self._waits == this:
                self._trainer.fail(PeerLost(f"{self.machine.endpoint}: {what}"))

        self._world.later(self._trainer.patience, self._trainer.process, look)

    def grant(self) -> None:
        """The step that waits here may write."""
        self._grants += 1
        if isinstance(self._instruction, said.AwaitGrant) and self._grants == 1:
            self._granted()

    def _granted(self) -> None:
        self._grants -= 1
        self._waits += 1
        self._later(lambda: self._go_on(None), mean=0.0005)

    # -- rests -------------------------------------------------------------------------------------------------------

    def _look_at_orders(self) -> None:
        """Whether to rest here. Requires: no order is waited for, as in lockstep."""
        assert self._trainer.resting.is_told(self._instruction)
        self.rests_in = self._trainer.resting.rests()
        if self.rests_in is None:
            self._go_on(None)
        else:
            self._trainer.call()

    def ordered(self) -> None:
        """The trainer was told something: a thread that rests looks, a moment later."""
        if self.rests_in is not None:
            self._later(self._look_again, mean=0.001)

    def _look_again(self) -> None:
        if self.rests_in is not None and self._trainer.resting.is_over(self.rests_in):
            self.rests_in = None
            self._go_on(None)


class TrainerRole(Role):
    """Its replicas, its share of the data, and what it has trained. One that goes on in the place of another goes on with its `journal`."""

    def __init__(
        self, name: str, attempt: Try, settings: RunSettings | None = None, journal: Journal | None = None
    ) -> None:
        super().__init__(name, attempt, settings)
        self.journal = journal or Journal()
        self.open: set[int] = set()  # the numbers of batches whose steps have begun, and not ended

    def build(self, parts: Parts) -> None:
        self.orders = Orders()
        self.resting = self.attempt.machines.resting(self.orders)
        _, group, shard = self.name.split(":")
        self.place = int(group), int(shard)
        self._steps = self._examples = 0
        engine, bound = parts.assembly.engine, parts.assembly.bound
        self._gates: WriteGates[int] = WriteGates(engine.program.num_clocks, bound)
        self.replicas = [Replica(n, self, parts, self._gates) for n in range(parts.assembly.replicas)]
        for replica in self.replicas:
            self.listen(str(replica.number), replica.mailbox.take)
        self._has_started = False

    def restore(self, state: Mapping[str, Any]) -> None:
        position = Position.from_dict(state["position"]) if "position" in state else Position(0, 0, 0)
        self._handed = self.attempt.machines.handed(
            position, [Position.from_dict(each) for each in state.get("trained", ())]
        )
        totals = state.get("totals", {})
        self._steps, self._examples = totals.get("steps", 0), totals.get("examples", 0)
        self._repeated = state.get("open", 0)
        self._next = position.row // BATCH

    def start(self, book: dict[str, str]) -> None:
        self._has_started = True
        for replica in self.replicas:
            replica.begin()

    def pause(self) -> None:
        self._ordered(paused=True)

    def resume(self) -> None:
        self._ordered(paused=False)

    def _ordered(self, *, paused: bool) -> None:
        self.resting.told(paused=paused, owes=self._handed.is_behind)
        for replica in self.replicas:
            replica.ordered()

    @property
    def quiet(self) -> bool:
        return self.resting.num_idle + sum(replica.ended for replica in self.replicas) == len(self.replicas)

    @property
    def finished(self) -> bool:  # type: ignore[override]
        return self._has_started and all(replica.ended for replica in self.replicas)

    def next_batch(self) -> Batch | None:
        """The next batch of the data that was not trained, None at its end."""
        while self._next < self.attempt.batches:
            batch = self.attempt.case.batch(self.name, self._next)
            self._next += 1
            if not self._handed.hand(batch.position):
                return batch
        return None

    def taken(self, position: Position) -> None:
        """A batch is on its way, and so are all before it."""
        self.open.add(position.row // BATCH - 1)
        self._handed.taken(position)
        self._note()

    def counted(self, step: Step) -> None:
        """A step has ended."""
        self.is_warm = True
        self._steps += 1
        self._examples += BATCH
        assert step.position
        self.open.remove(step.position.row // BATCH - 1)
        self._handed.ended(step.position)
        self._note()
        self.resting.ended(owes=self._handed.is_behind)

    def _note(self) -> None:
        """Keep from where another process would go on, as Trainer does."""
        self.journal.write(self._handed.word(self._totals))

    @property
    def _totals(self) -> dict[str, Any]:
        return {"examples": self._examples, "steps": self._steps, "log_loss": 0.0, "positives": 0.0}

    def may_be_killed(self) -> None:
        """Between two instructions of a replica its process may be killed. Raises Killed."""
        if self.attempt.kills and not self.world.is_calm and self.world.draw.random() < self.attempt.kills:
            self.world.count("trainers killed")
            raise Killed("between two instructions")

    def grant(self, replicas: Any) -> None:
        """These replicas may write."""
        for number in replicas:
            self.replicas[number].grant()

    def state(self) -> dict[str, Any]:
        return {"position": self._handed.position.to_dict(), "totals": self._totals}

    def metrics(self) -> dict[str, Any]:
        repeated = {"repeated": self._repeated} if self.incarnation else {}
        return {**self._totals, **repeated, "malformed": 0, "cpu_seconds": 0.0}

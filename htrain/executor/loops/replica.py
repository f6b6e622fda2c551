"""The thread of a net replica: carries out what its machine says, over sockets (HT 2.2, 3.1.1)."""

import queue
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from htrain.errors import PeerLost
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import Send, Stage
from htrain.executor.host.patience import LOOK_SECONDS, Patience
from htrain.executor.host.watch import Activity
from htrain.executor.roles.endpoints import endpoint_of
from htrain.executor.roles.replica import (
    AwaitGrant,
    AwaitMessage,
    Call,
    Instruction,
    Machine,
    PollMessage,
    ReplicaMachine,
    RunStage,
    Step,
)
from htrain.executor.transport.port import Inbox, Outbox
from htrain.executor.transport.wire import Values
from htrain.net.names import Role, role_at
from htrain.ops.bundle import Bundle

T = TypeVar("T")


class Replica:
    """Drives the machine of one net replica. For one thread.

    `seconds_waited` is the time in which there was nothing to do before a message came, or a slower replica had written. What a replica asks of its trainer,
    batches and rests among them, is carried out by `ask_trainer`; one that only runs passes of its own has none. Steps are numbered from `first_step`.
    """

    def __init__(
        self,
        number: int,
        engine: Engine,
        gates: WriteGates[int],
        inbox: Inbox,
        outbox: Outbox,
        patience: Patience,
        activity: Activity,
        first_step: int = 0,
    ) -> None:
        place = Role.parse(role_at(inbox.name)).place
        self.endpoint = inbox.name
        self.machine = ReplicaMachine((*place, number), inbox.name, engine, gates, first_step=first_step)
        self.stopping: Callable[[], bool] = lambda: False
        self.ask_trainer: Callable[[Instruction], Any] | None = None
        self.seconds_waited = 0.0
        self._grants: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._inbox = inbox
        self._outbox = outbox
        self._patience = patience
        self._activity = activity

    def close(self) -> None:
        """Let go of the sockets. For the thread that has used them, or where none has."""
        self._outbox.close()
        self._inbox.close()

    def open(self, inputs: Mapping[str, torch.Tensor], num_examples: int, activity: Activity) -> Step:
        """Take a batch; caches hear what it will ask for. No parameter is read yet. For a thread of that activity."""
        return self._drive_beside(self.machine.opened(inputs, num_examples), activity)

    def prepare(self, step: Step, activity: Activity) -> None:
        """Bring what is known of an opened step to where it is computed, ahead of it. For a thread of that activity, one step at a time."""
        self._drive_beside(self.machine.prepared(step), activity)

    def _drive_beside(self, machine: Machine[T], activity: Activity) -> T:
        """As `drive`, where all that the machine says is to run stages: by another thread than that of the replica's steps, whose activity is its own."""
        said: list[Stage] | None = None
        while True:
            try:
                instruction = machine.send(said)
            except StopIteration as end:
                return end.value
            assert isinstance(instruction, RunStage), instruction
            with activity.at("computing"):
                step = instruction.step
                said = step.engine.run(step.state, instruction.stage, self._sender(step.state))

    def run_apart(self, engine: Engine, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        """Run another net, such as one that empties the caches, as a step of its own; the values of the pass. Raises PeerLost."""
        return self.drive(self.machine.run_apart(engine, inputs))

    def wake(self) -> None:
        """The step that waits here may write. From any thread."""
        self._grants.put(None)

    def drive(self, machine: Machine[T]) -> T:
        """Carry out what a machine of this replica says, to its end; its result.

        Raises PeerLost when a peer is silent for longer than the deadline.
        """
        answer: Any = None
        while True:
            try:
                instruction = machine.send(answer)
            except StopIteration as end:
                return end.value
            answer = self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> Any:
        if isinstance(instruction, RunStage):
            return self._run_stage(instruction.step, instruction.stage)
        if isinstance(instruction, AwaitMessage):
            return self._await_message(instruction.step)
        if isinstance(instruction, PollMessage):
            return self._take_message(0.0)
        if isinstance(instruction, AwaitGrant):
            return self._await_grant(instruction.step.state.context)
        if isinstance(instruction, Call):
            return instruction.function()
        assert self.ask_trainer, f"{self.endpoint} has no trainer that could do {instruction}"
        return self.ask_trainer(instruction)

    def _run_stage(self, step: Step, stage: Stage) -> list[Stage]:
        self._activity.begin("computing")
        ready = step.engine.run(step.state, stage, self._sender(step.state))
        self._activity.end()
        return ready

    def _await_grant(self, context: Context) -> None:
        began, wait = time.monotonic(), self._patience.begin()
        try:
            while not self._is_granted(wait.until_next_look):
                if wait.is_over:
                    raise PeerLost(
                        f"{self.endpoint}: step {context.step} waited {wait.seconds:.0f} s for slower replicas to write first"
                    )
        finally:
            self.seconds_waited += time.monotonic() - began

    def _is_granted(self, seconds: float) -> bool:
        """Whether the step may write, or may within so many seconds."""
        try:
            self._grants.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def _sender(self, state: Pass) -> Send:
        def send(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...] | Bundle) -> None:
            values = Values(self.endpoint, state.context, state.batch_size)
            if not isinstance(tensors, Bundle):
                tensors = tuple(
                    tensor.cpu() for tensor in tensors
                )  # from an accelerator; what is on the host is itself
            self._outbox.send_values(endpoint_of(peer, state.context), values, names, tensors)

        return send

    def _await_message(self, step: Step) -> tuple[Context, Bundle]:
        """Wait for one message."""
        began, wait = time.monotonic(), self._patience.begin()
        while not (got := self._take_message(LOOK_SECONDS)):
            if wait.is_over or self.stopping():
                waited = ", ".join(step.engine.missing(step.state))
                raise PeerLost(
                    f"{self.endpoint}: nothing from {waited} for {wait.seconds:.0f} s at step {step.state.context.step}"
                )
        self.seconds_waited += time.monotonic() - began
        return got

    def _take_message(self, seconds: float) -> tuple[Context, Bundle] | None:
        """A message with values; None when none came."""
        got = self._inbox.receive(seconds)
        if got is None or not isinstance(got[0], Values):
            return None
        return got[0].context, got[1]

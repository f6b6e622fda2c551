"""One net replica of a trainer: the loop that drives its steps (HT 2.2, 3.1.1)."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from htrain.errors import PeerLost
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import Send, Stage
from htrain.executor.host.patience import Patience
from htrain.executor.host.watch import Activity
from htrain.executor.roles.server import endpoint_of
from htrain.executor.transport.port import Inbox, Outbox
from htrain.executor.transport.wire import Values
from htrain.ops.bundle import Bundle


@dataclass
class Step:
    """A pass of an engine on its way, and its stages that are ready."""

    state: Pass
    engine: Engine
    pending: list[Stage] = field(default_factory=list)


class Replica:
    """Runs one step at a time; the next step's lookups may already be under way. For one thread.

    `seconds_waited` is the time in which there was nothing to do before a message came, or a slower replica had written.
    """

    def __init__(
        self,
        number: int,
        engine: Engine,
        gates: WriteGates[threading.Event],
        inbox: Inbox,
        outbox: Outbox,
        patience: Patience,
        activity: Activity,
    ) -> None:
        role, _, _ = inbox.name.partition("/")
        _, group, trainer = role.split(":")
        self.endpoint = inbox.name
        self.stopping: Callable[[], bool] = lambda: False
        self.seconds_waited = 0.0
        self._place = (int(group), int(trainer), number)
        self._engine = engine
        self._gates = gates
        self._inbox = inbox
        self._outbox = outbox
        self._patience = patience
        self._activity = activity
        self._next_step = 0
        self._open: dict[Context, Step] = {}

    def close(self) -> None:
        """Let go of the sockets. For the thread that has used them, or where none has."""
        self._outbox.close()
        self._inbox.close()

    def open(self, inputs: Mapping[str, torch.Tensor], num_examples: int) -> Step:
        """Take a batch; caches hear what it will ask for. No parameter is read yet."""
        unasked = Context(*self._place, -1)
        step = Step(self._engine.begin(unasked, self.endpoint, num_examples, inputs), self._engine)
        step.pending = self._engine.start(step.state)
        for stage in [stage for stage in step.pending if stage.announces]:
            step.pending.remove(stage)
            step.pending += self._engine.run(step.state, stage, self._sender(step.state))
        return step

    def ask(self, step: Step) -> Step:
        """Ask for a batch's rows; it is the next step of this replica."""
        step.state.context = context = Context(*self._place, self._next_step)
        self._next_step += 1
        self._open[context] = step
        for stage in [stage for stage in step.pending if stage.prefetch]:
            step.pending.remove(stage)
            step.pending += step.engine.run(step.state, stage, self._sender(step.state))
        return step

    def take_rows(self, step: Step) -> None:
        """Go on with a step until all its rows are in the caches, if there are any. Raises PeerLost."""
        while not step.engine.has_taken_rows(step.state):
            ready = next((stage for stage in step.pending if stage.takes_rows), None)
            if ready:
                step.pending.remove(ready)
                self._run_stage(step, ready)
            elif not self._take_message(0.0) and step.pending:
                self._run_stage(step, step.pending.pop(0))
            elif not step.pending:
                self._receive(step)

    def run_apart(self, engine: Engine, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        """Run another net, such as one that empties the caches, as a step of its own; the values of the pass. Raises PeerLost."""
        state = engine.begin(Context(*self._place, -1), self.endpoint, 0, inputs)
        self.run(self.ask(Step(state, engine, engine.start(state))))
        return state.values

    def run(self, step: Step) -> None:
        """Run a step to its end: every update of every device has been made when this returns.

        Raises PeerLost when a peer is silent for longer than the deadline.
        """
        while not step.engine.done(step.state):
            if step.pending:
                self._run_stage(step, step.pending.pop(0))
            else:
                self._receive(step)
        del self._open[step.state.context]

    def _run_stage(self, step: Step, stage: Stage) -> None:
        context = step.state.context
        if stage.writes:
            self._pass_gate(stage.writes[0], context)
        self._gates.begin(stage.reads, context)
        self._activity.begin("computing")
        step.pending += step.engine.run(step.state, stage, self._sender(step.state))
        self._activity.end()
        if stage.writes:
            for event in self._gates.end(stage.writes[0], context):
                event.set()

    def _pass_gate(self, clock: int, context: Context) -> None:
        """Wait until this step may write. The oldest step never waits here, so somebody always goes on."""
        granted = threading.Event()
        for event in self._gates.commit(clock, context, granted):
            event.set()
        began, seconds = time.monotonic(), self._patience.seconds
        in_time = granted.wait(seconds)
        self.seconds_waited += time.monotonic() - began
        if not in_time:
            raise PeerLost(
                f"{self.endpoint}: step {context.step} waited {seconds:.0f} s for slower replicas to write first"
            )

    def _sender(self, state: Pass) -> Send:
        def send(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...] | Bundle) -> None:
            values = Values(self.endpoint, state.context, state.batch_size)
            if not isinstance(tensors, Bundle):
                tensors = tuple(
                    tensor.cpu() for tensor in tensors
                )  # from an accelerator; what is on the host is itself
            self._outbox.send_values(endpoint_of(peer, state.context), values, names, tensors)

        return send

    def _receive(self, step: Step) -> None:
        """Wait for one message and hand it to the step that it belongs to."""
        began, seconds = time.monotonic(), self._patience.seconds
        while not self._take_message(0.5):
            if self.stopping() or time.monotonic() > began + seconds:
                waited = ", ".join(step.engine.missing(step.state))
                raise PeerLost(
                    f"{self.endpoint}: nothing from {waited} for {seconds:.0f} s at step {step.state.context.step}"
                )
        self.seconds_waited += time.monotonic() - began

    def _take_message(self, seconds: float) -> bool:
        """Hand a message to its step; False when none came. One for a step that has ended is a repeated one, and is dropped."""
        got = self._inbox.receive(seconds)
        if got is None:
            return False
        message, tensors = got
        target = self._open.get(message.context) if isinstance(message, Values) else None
        if target:
            target.pending += target.engine.receive(target.state, tensors)
        return True

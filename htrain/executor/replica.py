"""One net replica of a trainer: the loop that drives its steps (HT 2.2, 3.1.1)."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from htrain.errors import PeerLost
from htrain.executor.engine import Engine, Pass
from htrain.executor.gate import Gate
from htrain.executor.port import Inbox, Outbox
from htrain.executor.program import Stage
from htrain.executor.server import endpoint_of
from htrain.executor.wire import Context, GateGrant, Values


@dataclass
class Step:
    """A pass on its way: its context, and the stages that may run once it has begun."""

    context: Context
    state: Pass
    num_examples: int
    pending: list[Stage] = field(default_factory=list)
    begun: bool = False


class Replica:
    """Runs one step at a time; the next step's lookups may already be under way. For one thread."""

    def __init__(self, group: int, trainer: int, number: int, engine: Engine, inbox: Inbox, outbox: Outbox, gate: Gate, deadline_seconds: float) -> None:
        self.endpoint = inbox.name
        self._group, self._trainer, self._number = group, trainer, number
        self._engine = engine
        self._inbox = inbox
        self._outbox = outbox
        self._gate = gate
        self._deadline_seconds = deadline_seconds
        self._next_step = 0
        self._open: dict[Context, Step] = {}
        self.stopping: Callable[[], bool] = lambda: False

    def open(self, inputs: Mapping[str, torch.Tensor], num_examples: int) -> Step:
        """Take a batch and ask for its rows."""
        context = Context(self._group, self._trainer, self._number, self._next_step)
        self._next_step += 1
        step = Step(context, self._engine.begin(num_examples, inputs), num_examples)
        self._open[context] = step
        for stage in self._engine.start(step.state):
            if stage.prefetch:
                step.pending += self._engine.run(step.state, stage, self._sender(step))
            else:
                step.pending.append(stage)
        return step

    def run(self, step: Step) -> None:
        """Run a step to its end: every update of every device has been made when this returns.

        Raises PeerLost when a peer is silent for longer than the deadline.
        """
        step.begun = self._gate.begin(step.context)
        asked = False
        while not self._engine.done(step.state):
            while step.begun and step.pending:
                step.pending += self._engine.run(step.state, step.pending.pop(0), self._sender(step))
            if self._engine.done(step.state):
                break
            if not asked and self._engine.wants_grant(step.state):
                asked = True
                if self._gate.commit(step.context):
                    step.pending += self._engine.grant(step.state)
                    continue
            self._receive(step)
        self._gate.end(step.context)
        del self._open[step.context]

    def _sender(self, step: Step) -> Callable[[str, tuple[str, ...], tuple[torch.Tensor, ...]], None]:
        def send(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]) -> None:
            values = Values(self.endpoint, step.context, step.num_examples, [])
            self._outbox.send_values(endpoint_of(peer, step.context), values, names, tensors)

        return send

    def _receive(self, step: Step) -> None:
        """Wait for one message and hand it to the step that it belongs to."""
        deadline = time.monotonic() + self._deadline_seconds
        while (got := self._inbox.receive(0.5)) is None:
            if self.stopping() or time.monotonic() > deadline:
                waited = ", ".join(self._engine.missing(step.state)) or "the staleness gate"
                raise PeerLost(f"{self.endpoint}: nothing from {waited} for {self._deadline_seconds:.0f} s at step {step.context.step}")
        message, tensors = got
        if isinstance(message, Values):
            target = self._open[message.context]
            target.pending += self._engine.receive(target.state, tensors)
        elif isinstance(message, GateGrant) and message.action == "begin":
            self._open[message.context].begun = True
        elif isinstance(message, GateGrant):
            target = self._open[message.context]
            target.pending += self._engine.grant(target.state)

"""The engine: runs a program for many contexts at once (docs/decisions/engine.md).

A context is one pass of one net replica over one batch. The engine keeps what each context has received and computed, and says
which stages can run; who runs them, and when, is the role's business. Parameters are shared by all contexts without locks (Hogwild).
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from htrain.executor.engine.context import Context
from htrain.executor.engine.program import Program, Send, Stage, Values
from htrain.executor.engine.stage_keys import GATE
from htrain.ops.bundle import Bundle, Kinds


@dataclass
class Pass:
    """The state of one context. `arrived` are its messages; `started` and `ended` its stages; `source` the endpoint that it came from."""

    context: Context
    source: str
    batch_size: int
    values: Values
    arrived: set[int] = field(default_factory=lambda: {GATE})
    counts: dict[int, int] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Engine:
    """A program, and how to begin, feed and run passes over it. Thread-safe; passes are the caller's to keep.

    A stage with a clock in `writes` counts as ready when its inputs are there; the caller takes it through the gate.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._message_sizes: dict[int, int] = {}
        for message in program.messages.values():
            self._message_sizes[message] = self._message_sizes.get(message, 0) + 1
        self._whole: dict[Kinds, int | None] = {}

    def begin(self, context: Context, source: str, batch_size: int, inputs: Mapping[str, torch.Tensor]) -> Pass:
        """A new pass with the net's inputs."""
        return Pass(context, source, batch_size, Values(inputs, self.program.messages))

    def start(self, state: Pass) -> list[Stage]:
        """The stages that can start before anything is received."""
        with state.lock:
            return self._ready(state)

    def receive(self, state: Pass, tensors: Mapping[str, torch.Tensor]) -> list[Stage]:
        """Take blobs from a peer; return the stages that can start now. A blob that is there already is ignored.

        Raises KeyError for a blob that the net does not receive.
        """
        whole = self._whole_message(tensors.kinds) if isinstance(tensors, Bundle) else None
        with state.lock:
            if whole is not None and isinstance(tensors, Bundle) and whole not in state.counts:
                state.values.bundles.setdefault(whole, tensors)
                state.arrived.add(whole)
                return self._ready(state)
            for name, tensor in tensors.items():
                message = self.program.messages[name]
                if message in state.values.bundles:
                    continue
                if name not in state.values:
                    state.values[name] = tensor
                    state.counts[message] = state.counts.get(message, 0) + 1
                if state.counts[message] == self._message_sizes[message]:
                    state.arrived.add(message)
            return self._ready(state)

    def _whole_message(self, kinds: Kinds) -> int | None:
        """The message that such tensors are, all together; None where they are a part of one."""
        if kinds not in self._whole:
            messages = {self.program.messages[name] for name in kinds.names}
            one = len(messages) == 1 and len(kinds.names) == self._message_sizes[next(iter(messages))]
            self._whole[kinds] = messages.pop() if one else None
        return self._whole[kinds]

    def run(self, state: Pass, stage: Stage, send: Send, *, ended: Callable[[], None] | None = None) -> list[Stage]:
        """Run one stage to its end; return the stages that can start now.

        `ended` is called when the last op has run, before anybody hears of it: messages leave behind it, and no other stage is ready before. Where a gate
        counts the stage's writes, its end must be known before a peer can begin its next step.
        """
        if ended:
            _run_and_send(state, stage, send, ended)
        else:
            stage.run(state.values, send, state.batch_size)
        with state.lock:
            state.ended.add(stage.index)
            return self._ready(state)

    def grant(self, state: Pass, signal: int) -> list[Stage]:
        """Something that stages wait for besides messages has come; the stages that can start now."""
        with state.lock:
            state.arrived.add(signal)
            return self._ready(state)

    def waits_for(self, state: Pass, signal: int) -> bool:
        """Whether all has run but what waits for a signal."""
        with state.lock:
            return signal not in state.arrived and all(
                (s.index in state.ended) != (signal in s.waits) for s in self.program.stages
            )

    def has_taken_rows(self, state: Pass) -> bool:
        """Whether all that was asked for ahead is in the caches: the next batch may ask."""
        return all(stage.index in state.ended for stage in self.program.stages if stage.takes_rows)

    def done(self, state: Pass) -> bool:
        """Whether every stage of the pass has run."""
        return len(state.ended) == len(self.program.stages)

    def missing(self, state: Pass) -> list[str]:
        """The peers whose messages the pass waits for."""
        messages = {
            m for stage in self.program.stages if stage.index not in state.started for m in stage.waits - state.arrived
        }
        return sorted({self.program.peers.get(m, "the other trainers") for m in messages})

    def _ready(self, state: Pass) -> list[Stage]:
        stages = [
            s
            for s in self.program.stages
            if s.index not in state.started and s.waits <= state.arrived and s.after <= state.ended
        ]
        state.started.update(s.index for s in stages)
        return stages


def _run_and_send(state: Pass, stage: Stage, send: Send, ended: Callable[[], None]) -> None:
    """Run a stage, tell of its end, and only then send what it has made."""
    held: list[tuple[str, tuple[str, ...], tuple[torch.Tensor, ...] | Bundle]] = []
    stage.run(state.values, lambda *message: held.append(message), state.batch_size)
    ended()
    for message in held:
        send(*message)

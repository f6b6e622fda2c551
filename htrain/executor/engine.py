"""The engine: runs a program for many contexts at once (DESIGN 5).

A context is one pass of one net replica over one batch. The engine keeps what each context has received and computed, and says
which stages can run; who runs them, and when, is the role's business. Parameters are shared by all contexts without locks (Hogwild).
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from htrain.executor.program import GATE, Program, Send, Stage, Values


class Clocks:
    """Counts the writes of dense weights, to measure staleness: the writes of others between a read and the write of one step."""

    def __init__(self, count: int) -> None:
        self._written = [0] * count
        self._lock = threading.Lock()
        self.histogram: dict[int, int] = {}

    def read(self, values: Values, clocks: tuple[int, ...]) -> None:
        for clock in clocks:
            values[f"#clock{clock}"] = self._written[clock]

    def wrote(self, values: Values, clocks: tuple[int, ...]) -> None:
        with self._lock:
            for clock in clocks:
                staleness = self._written[clock] - values[f"#clock{clock}"]
                self.histogram[staleness] = self.histogram.get(staleness, 0) + 1
                self._written[clock] += 1


@dataclass
class Pass:
    """The state of one context. `arrived` are its messages; `started` and `ended` its stages."""

    batch_size: int
    values: Values = field(default_factory=dict)
    arrived: set[int] = field(default_factory=set)
    partial: dict[int, int] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Engine:
    """A program, its clocks, and how to start, feed and finish passes over it. Thread-safe; passes are the caller's to keep."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.clocks = Clocks(program.num_clocks)
        self._message_sizes: dict[int, int] = {}
        for message in program.messages.values():
            self._message_sizes[message] = self._message_sizes.get(message, 0) + 1

    def begin(self, batch_size: int, inputs: Mapping[str, torch.Tensor]) -> Pass:
        """A new pass with the net's inputs."""
        return Pass(batch_size, dict(inputs))

    def receive(self, state: Pass, tensors: Mapping[str, torch.Tensor]) -> list[Stage]:
        """Take blobs from a peer; return the stages that can start now. Raises KeyError for a blob that the net does not receive."""
        with state.lock:
            for name, tensor in tensors.items():
                message = self.program.messages[name]
                if name not in state.values:
                    state.values[name] = tensor
                    state.partial[message] = state.partial.get(message, 0) + 1
                if state.partial[message] == self._message_sizes[message]:
                    state.arrived.add(message)
            return self._ready(state)

    def grant(self, state: Pass) -> list[Stage]:
        """The gate lets this pass write; return the stages that can start now."""
        with state.lock:
            state.arrived.add(GATE)
            return self._ready(state)

    def start(self, state: Pass) -> list[Stage]:
        """The stages that can start before anything is received."""
        with state.lock:
            return self._ready(state)

    def run(self, state: Pass, stage: Stage, send: Send) -> list[Stage]:
        """Run one stage to its end; return the stages that can start now."""
        if stage.reads:
            self.clocks.read(state.values, stage.reads)
        stage.run(state.values, send, state.batch_size)
        if stage.writes:
            self.clocks.wrote(state.values, stage.writes)
        with state.lock:
            state.ended.add(stage.index)
            return self._ready(state)

    def done(self, state: Pass) -> bool:
        """Whether every stage of the pass has run."""
        return len(state.ended) == len(self.program.stages)

    def missing(self, state: Pass) -> list[str]:
        """The peers whose messages the pass waits for."""
        messages = {m for stage in self.program.stages if stage.index not in state.started for m in stage.waits - state.arrived}
        return sorted({self.program.peers[m] for m in messages if m in self.program.peers})

    def wants_grant(self, state: Pass) -> bool:
        """Whether the pass has come to its backward half and only the gate holds it."""
        stages = [s for s in self.program.stages if GATE in s.waits and s.index not in state.started]
        return GATE not in state.arrived and any(s.waits - state.arrived == {GATE} and s.after <= state.ended for s in stages)

    def _ready(self, state: Pass) -> list[Stage]:
        stages = [s for s in self.program.stages if s.index not in state.started and s.waits <= state.arrived and s.after <= state.ended]
        state.started.update(s.index for s in stages)
        return stages

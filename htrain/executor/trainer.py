"""A trainer: reads its share of the data and drives its net replicas (HT 3.1)."""

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from htrain.data import Position
from htrain.errors import Error, RunError
from htrain.executor.collective import CollectiveLoop
from htrain.executor.engine import Engine
from htrain.executor.feed import Feed
from htrain.executor.gate import WriteGates
from htrain.executor.lockstep import Lockstep, no_examples
from htrain.executor.port import Network, Outbox, sent_by_role
from htrain.executor.replica import Replica, Step


@dataclass
class Totals:
    """What the trainer has done since the run began, resumed parts included."""

    examples: int = 0
    steps: int = 0
    log_loss: float = 0.0
    positives: float = 0.0


class Trainer:
    """The replica threads of one trainer. They stop between steps when paused, and end with the data."""

    def __init__(
        self,
        role: str,
        network: Network,
        engine: Engine,
        replicas: int,
        bound: int,
        prefetch: bool,
        deadline_seconds: float,
        flush: Engine,
        collective: CollectiveLoop | None,
        ahead: int,
    ) -> None:
        self.role = role
        self.engine = engine
        self.gates: WriteGates[threading.Event] = WriteGates(engine.program.num_clocks, bound)
        self.totals = Totals()
        self.error: Exception | None = None
        self.inboxes = [network.inbox(f"{role}/{r}") for r in range(replicas)]
        self.losses: list[float] = []
        self.keep_losses = False
        self._network = network
        self._prefetch = prefetch
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._resumed = threading.Event()
        self._resumed.set()
        self._stopping = threading.Event()
        self._idle = 0
        self._finished = 0
        self._outboxes: list[Outbox] = []
        self._threads: list[threading.Thread] = []
        self._replicas: list[Replica] = []
        self._stop_after_steps = 0
        self._flush = flush
        self._taken = 0
        self._ahead = ahead
        self._windows: dict[int, deque[tuple[Step, Position]]] = {}
        self._lockstep = Lockstep(collective, deadline_seconds, self._is_told_to_pause) if collective else None

    def start(self, book: dict[str, str], feed: Feed, stop_after_steps: int) -> None:
        """Train from now on."""
        self._feed = feed
        self._stop_after_steps = stop_after_steps
        for number, inbox in enumerate(self.inboxes):
            outbox = self._network.outbox(book)
            self._outboxes.append(outbox)
            replica = Replica(number, self.engine, self.gates, inbox, outbox, self._deadline_seconds)
            replica.stopping = self._stopping.is_set
            self._replicas.append(replica)
            thread = threading.Thread(target=self._guarded, args=(replica,), name=inbox.name, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        return [*self._threads, self._feed.thread] if self._threads else []

    def pause(self) -> None:
        """Ask the replicas to stop after the steps they have taken."""
        self._resumed.clear()

    def resume(self) -> None:
        self._resumed.set()

    def _is_told_to_pause(self) -> bool:
        return not self._resumed.is_set()

    @property
    def seconds_waited(self) -> float:
        """Seconds for which a replica, in the mean, has waited for what others send."""
        waited = sum(replica.seconds_waited for replica in self._replicas)
        return (waited + (self._lockstep.seconds_waited if self._lockstep else 0.0)) / max(1, len(self._replicas))

    @property
    def quiet(self) -> bool:
        """No replica has a step under way."""
        return self._idle + self._finished == len(self._threads)

    @property
    def finished(self) -> bool:
        """All data has been trained."""
        return bool(self._threads) and self._finished == len(self._threads)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of a trainer besides parameters."""
        totals = {
            "examples": self.totals.examples,
            "steps": self.totals.steps,
            "log_loss": self.totals.log_loss,
            "positives": self.totals.positives,
        }
        return {"position": self._feed.position.to_dict(), "totals": totals}

    def stop(self) -> None:
        """End all threads."""
        self._stopping.set()
        self._resumed.set()
        for thread in self._threads:
            thread.join(timeout=10)
        for outbox in self._outboxes:
            outbox.close()
        for inbox in self.inboxes:
            inbox.close()
        if self._threads:
            self._feed.stop()

    @property
    def sent_to(self) -> dict[str, int]:
        return sent_by_role(self._outboxes)

    def _guarded(self, replica: Replica) -> None:
        torch.set_grad_enabled(False)
        try:
            if self._lockstep:
                self._step_together(replica, self._lockstep)
            else:
                self._loop(replica)
            with self._lock:
                self._finished += 1
        except Exception as error:
            self.error = (
                error if isinstance(error, Error) else RunError(f"{replica.endpoint}: {type(error).__name__}: {error}")
            )

    def _loop(self, replica: Replica) -> None:
        upcoming = self._open(replica)
        taken = int(upcoming is not None)
        while upcoming is not None and not self._stopping.is_set():
            step = upcoming
            replica.take_rows(step)
            more = not (self._stop_after_steps and taken >= self._stop_after_steps)
            upcoming = self._open(replica) if more and self._prefetch and self._resumed.is_set() else None
            replica.run(step)
            self._count(step)
            if upcoming is None and more:
                self._wait(replica)
                upcoming = self._open(replica)
            taken += int(upcoming is not None)
        self._empty_caches(replica)

    def _empty_caches(self, replica: Replica) -> None:
        if not self._stopping.is_set():
            replica.flush(self._flush)

    def _wait(self, replica: Replica) -> None:
        """Between steps: stay here while the trainer is paused, its caches empty."""
        if self._resumed.is_set():
            return
        self._empty_caches(replica)
        with self._lock:
            self._idle += 1
        self._resumed.wait()
        with self._lock:
            self._idle -= 1

    def _step_together(self, replica: Replica, lockstep: Lockstep) -> None:
        """The loop in lockstep: all trainers run the same steps, those without data empty ones, and stop behind the same step."""
        over = False
        while not over and not self._stopping.is_set():
            upcoming: Step | None = self._open_or_empty(replica, lockstep)
            while upcoming and not self._stopping.is_set():
                step = upcoming
                replica.take_rows(step)
                stops = lockstep.verdict.stops
                upcoming = self._open_or_empty(replica, lockstep) if self._prefetch and not stops else None
                replica.run(step)
                self._count(step)
                stops = lockstep.hear(step.state.context.step).stops or stops
                if not self._prefetch and not stops:
                    upcoming = self._open_or_empty(replica, lockstep)
            over = lockstep.verdict.over
            self._empty_caches(replica)
            if not over:
                self._wait_in_lockstep(lockstep)

    def _wait_in_lockstep(self, lockstep: Lockstep) -> None:
        """All have stopped behind the same step; the order to pause may still be on its way here."""
        while not self._is_told_to_pause() and not self._stopping.is_set():
            time.sleep(0.01)
        with self._lock:
            self._idle += 1
        self._resumed.wait()
        lockstep.go_on()
        with self._lock:
            self._idle -= 1

    def _open_or_empty(self, replica: Replica, lockstep: Lockstep) -> Step:
        """The next batch, or an empty one."""
        more = not (self._stop_after_steps and self._taken >= self._stop_after_steps)
        step = self._open(replica) if more else None
        if step is None:
            step = replica.ask(replica.open(no_examples(self.engine.program.net), 0))
        else:
            self._taken += 1
        lockstep.opened(step.state.context.step, has_data=step.state.batch_size > 0)
        return step

    def _open(self, replica: Replica) -> Step | None:
        """The next batch, its rows asked for; caches have heard of those that the window holds behind it."""
        window = self._windows.setdefault(id(replica), deque())
        while len(window) < self._ahead and (batch := None if self._stopping.is_set() else self._feed.next()):
            inputs = {name: torch.from_numpy(column) for name, column in batch.columns.items()}
            window.append((replica.open(inputs, batch.num_examples), batch.position))
        if not window:
            return None
        step, position = window.popleft()
        self._feed.taken(position)
        return replica.ask(step)

    def _count(self, step: Step) -> None:
        if not step.state.batch_size:
            return
        loss = float(step.state.values[self.engine.program.net.outputs[0]])
        if not math.isfinite(loss):
            raise RunError(
                f"{self.role}: the loss is {loss} at step {step.state.context.step} of replica {step.state.context.replica}: "
                f"compile with smaller --dense-lr and --sparse-lr"
            )
        positives = float(step.state.values["label"].sum())
        with self._lock:
            self.totals.examples += step.state.batch_size
            self.totals.steps += 1
            self.totals.log_loss += loss * step.state.batch_size
            self.totals.positives += positives
            if self.keep_losses:
                self.losses.append(loss)

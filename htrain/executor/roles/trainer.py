"""A trainer: reads its share of the data and drives its net replicas (HT 3.1)."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from htrain.errors import Error, RunError
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.gate import WriteGates
from htrain.executor.host.patience import Patience
from htrain.executor.host.threads import begin_thread
from htrain.executor.host.watch import Watch
from htrain.executor.roles.feed import Feed
from htrain.executor.roles.lockstep import Lockstep, no_examples
from htrain.executor.roles.replica import Replica, Step
from htrain.executor.roles.upcoming import Ahead, Upcoming
from htrain.executor.transport.collective import CollectiveLoop
from htrain.executor.transport.port import Network, Outbox, sent_by_role


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
        patience: Patience,
        watch: Watch,
        flush: Engine,
        collective: CollectiveLoop | None,
        ahead: int,
    ) -> None:
        self.role = role
        self.engine = engine
        self.upcoming: list[Upcoming] = []
        self.gates: WriteGates[threading.Event] = WriteGates(engine.program.num_clocks, bound)
        self.totals = Totals()
        self.error: Exception | None = None
        self.inboxes = [network.inbox(f"{role}/{r}") for r in range(replicas)]
        self.losses: list[float] = []
        self.keep_losses = False
        self.on_step: Callable[[int], None] = lambda count: None
        self._network = network
        self._prefetch = prefetch
        self._patience = patience
        self._watch = watch
        self._lock = threading.Lock()
        self._resumed = threading.Event()
        self._resumed.set()
        self._stopping = threading.Event()
        self._idle = 0
        self._finished = 0
        self._outboxes: list[Outbox] = []
        self._threads: list[threading.Thread] = []
        self._replicas: list[Replica] = []
        self._stop_after_steps: int | None = None
        self._flush = flush
        self._taken = 0
        self._ahead = ahead
        self._lockstep = Lockstep(collective, patience, self._is_told_to_pause) if collective else None

    def start(self, book: dict[str, str], feed: Feed, stop_after_steps: int | None, upcoming: Upcoming | None) -> None:
        """Train from now on, the batches of `upcoming` or straight from the data."""
        self._feed = feed
        self._stop_after_steps = stop_after_steps
        for number, inbox in enumerate(self.inboxes):
            outbox = self._network.outbox(book)
            self._outboxes.append(outbox)
            replica = Replica(
                number, self.engine, self.gates, inbox=inbox, outbox=outbox, patience=self._patience, activity=self._watch.activity(f"replica {number}"),
            )  # fmt: skip
            replica.stopping = self._stopping.is_set
            self._replicas.append(replica)
            source = upcoming or Ahead(replica, feed, self._ahead, self._flush, self._stopping.is_set)
            source.start(feed, replica.open, no_examples(self.engine.program.net))
            self.upcoming.append(source)
            thread = threading.Thread(target=self._guarded, args=(replica, source), name=inbox.name, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        others = [thread for source in self.upcoming for thread in source.threads]
        return [*self._threads, self._feed.thread, *others] if self._threads else []

    def hold_writes(self) -> None:
        """Let no step write weights from now on."""
        self.gates.hold()

    def await_rest(self, seconds: float) -> bool:
        """Wait until none does; False where one still does after `seconds`."""
        return self.gates.await_rest(seconds)

    def release_writes(self) -> None:
        """Let steps write weights again."""
        for event in self.gates.release():
            event.set()

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
        waited += sum(source.seconds_waited for source in self.upcoming)
        return (waited + (self._lockstep.seconds_waited if self._lockstep else 0.0)) / max(1, len(self._replicas))

    @property
    def upcoming_report(self) -> dict[str, Any]:
        """What a role says of where its steps come from."""
        return {name: value for source in self.upcoming for name, value in source.report.items()}

    @property
    def quiet(self) -> bool:
        """No replica has a step under way."""
        return self._idle + self._finished == len(self._threads)

    @property
    def reader_error(self) -> Exception | None:
        """Why the data has ended before its end."""
        return self._feed.error if self._threads else None

    @property
    def finished(self) -> bool:
        """All data has been trained, or all that could be read."""
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
        for source in self.upcoming:
            source.stop()
        if self._threads:
            self._feed.stop()
        for inbox in self.inboxes if not self._threads else ():
            inbox.close()

    @property
    def sent_to(self) -> dict[str, int]:
        return sent_by_role(self._outboxes)

    def _guarded(self, replica: Replica, upcoming: Upcoming) -> None:
        begin_thread()
        try:
            if self._lockstep:
                self._step_together(replica, upcoming, self._lockstep)
            else:
                self._loop(replica, upcoming)
            with self._lock:
                self._finished += 1
        except Exception as error:
            self.error = (
                error if isinstance(error, Error) else RunError(f"{replica.endpoint}: {type(error).__name__}: {error}")
            )
        finally:  # not by who stops the trainer: a socket that is closed under a thread which uses it ends the process
            replica.close()
            upcoming.close()

    def _loop(self, replica: Replica, upcoming: Upcoming) -> None:
        following = self._ask(replica, upcoming)
        taken = int(following is not None)
        while following is not None and not self._stopping.is_set():
            step = following
            replica.take_rows(step)
            more = not (self._stop_after_steps is not None and taken >= self._stop_after_steps)
            following = self._ask(replica, upcoming) if more and self._prefetch and self._resumed.is_set() else None
            replica.run(step)
            upcoming.ended()
            self._count(step)
            if following is None and more:
                self._wait(upcoming)
                following = self._ask(replica, upcoming)
            taken += int(following is not None)
        self._flush_caches(upcoming)

    def _flush_caches(self, upcoming: Upcoming) -> None:
        if not self._stopping.is_set():
            upcoming.flush()

    def _wait(self, upcoming: Upcoming) -> None:
        """Between steps: stay here while the trainer is paused, its caches empty."""
        if self._resumed.is_set():
            return
        self._flush_caches(upcoming)
        with self._lock:
            self._idle += 1
        self._resumed.wait()
        with self._lock:
            self._idle -= 1

    def _step_together(self, replica: Replica, upcoming: Upcoming, lockstep: Lockstep) -> None:
        """The loop in lockstep: all trainers run the same steps, those without data empty ones, and stop behind the same step."""
        over = False
        while not over and not self._stopping.is_set():
            following: Step | None = self._ask_or_empty(replica, upcoming, lockstep)
            while following and not self._stopping.is_set():
                step = following
                replica.take_rows(step)
                stops = lockstep.verdict.stops
                following = self._ask_or_empty(replica, upcoming, lockstep) if self._prefetch and not stops else None
                replica.run(step)
                upcoming.ended()
                self._count(step)
                stops = lockstep.hear(step.state.context.step).stops or stops
                if not self._prefetch and not stops:
                    following = self._ask_or_empty(replica, upcoming, lockstep)
            over = lockstep.verdict.over
            self._flush_caches(upcoming)
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

    def _ask_or_empty(self, replica: Replica, upcoming: Upcoming, lockstep: Lockstep) -> Step:
        """The next batch, or an empty one, its rows asked for."""
        more = not (self._stop_after_steps is not None and self._taken >= self._stop_after_steps)
        step = self._ask(replica, upcoming) if more else None
        if step is None:
            step = replica.ask(replica.open(no_examples(self.engine.program.net), 0))
        else:
            self._taken += 1
        lockstep.opened(step.state.context.step, has_data=step.state.batch_size > 0)
        return step

    def _ask(self, replica: Replica, upcoming: Upcoming) -> Step | None:
        """The next batch, its rows asked for."""
        step = upcoming.next()
        return replica.ask(step) if step else None

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
            self.on_step(self.totals.steps)

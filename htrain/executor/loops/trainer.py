"""The threads of a trainer, one for each net replica: its share of the data, its totals, the orders that it is given (HT 3.1)."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from htrain.data import Batch
from htrain.errors import Error, RunError
from htrain.executor.engine.engine import Engine
from htrain.executor.engine.gate import WriteGates
from htrain.executor.host.journal import Journal
from htrain.executor.host.patience import Patience
from htrain.executor.host.threads import begin_thread
from htrain.executor.host.watch import Watch
from htrain.executor.loops.feed import Feed
from htrain.executor.loops.losses import CountedStep, Losses
from htrain.executor.loops.replica import Replica
from htrain.executor.loops.upcoming import Called, Upcoming
from htrain.executor.roles.lockstep import Lockstep, no_examples
from htrain.executor.roles.replica import (
    Ahead,
    AwaitVerdict,
    Instruction,
    Machine,
    Orders,
    ReplicaMachine,
    Rest,
    Source,
    Step,
    StepBegins,
    StepEnds,
    TakeBatch,
    Wake,
    train,
    train_together,
)
from htrain.executor.roles.resting import Resting
from htrain.executor.transport.collective import CollectiveLoop
from htrain.executor.transport.port import Network, Outbox, sent_by_role
from htrain.sync.agreement import Verdict

_MOST_KEPT = 4096  # batches behind one that is under way, in a journal


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
        journal: Journal | None = None,
        first_step: int = 0,
    ) -> None:
        self.role = role
        self.engine = engine
        self.gates: WriteGates[int] = WriteGates(engine.program.num_clocks, bound)
        self.totals = Totals()
        self.error: Exception | None = None
        self.inboxes = [network.inbox(f"{role}/{r}") for r in range(replicas)]
        self.losses: list[float] = []
        self.keep_losses = False
        self.on_step: Callable[[int], None] = lambda count: None
        self.on_change: Callable[[], None] = lambda: None  # of what `quiet`, `finished` and `error` say, by any thread
        self._network = network
        self._prefetch = prefetch
        self._patience = patience
        self._watch = watch
        self._journal = journal
        self._first_step = first_step
        # Whether an earlier incarnation has trained batches behind where this one stands.
        self._owes: Callable[[], bool] = lambda: False
        self._lock = threading.RLock()
        self._orders = Orders()
        self._resting = Resting(self._orders)
        self._ordered = threading.Condition()  # and the lock of who asks `_resting`
        self._finished = 0
        self._outboxes: list[Outbox] = []
        self._threads: list[threading.Thread] = []
        self._replicas: list[Replica] = []
        self._losses: list[Losses] = []
        self._flush = flush
        self._ahead = ahead
        self.upcoming: Upcoming | None = None
        self._collective = collective
        self._seconds_in_lockstep = 0.0
        self._lockstep = Lockstep(lambda: self._orders.paused) if collective else None
        if collective and self._lockstep:
            collective.word = self._lockstep.word

    def start(self, book: dict[str, str], feed: Feed, stop_after_steps: int | None, upcoming: Upcoming | None) -> None:
        """Train from now on, the batches of `upcoming` or straight from the data."""
        self._feed = feed
        self._owes = lambda: feed.is_behind
        feed.on_error = self.on_change  # what has failed before is seen by whoever has told the trainer to start
        self._orders.stop_after_steps = stop_after_steps
        self.upcoming = upcoming
        for number, inbox in enumerate(self.inboxes):
            outbox, activity = self._network.outbox(book), self._watch.activity(f"replica {number}")
            self._outboxes.append(outbox)
            self._losses.append(Losses(activity))
            replica = Replica(
                number, self.engine, self.gates, inbox=inbox, outbox=outbox, patience=self._patience, activity=activity,
                first_step=self._first_step,
            )  # fmt: skip
            replica.stopping = lambda: self._orders.stopping
            replica.ask_trainer = partial(self._carry_out, number)
            self._replicas.append(replica)
        for replica in self._replicas:
            source: Source = Called(upcoming) if upcoming else Ahead(replica.machine, self._ahead, self._flush)
            if upcoming:
                upcoming.start(feed, replica, no_examples(self.engine.program.net))
            thread = threading.Thread(target=self._guarded, args=(replica, source), name=replica.endpoint, daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """Those of the replicas, of the data's reader and of `upcoming`; none before `start`."""
        others = self.upcoming.threads if self.upcoming else ()
        return [*self._threads, self._feed.thread, *others] if self._threads else []

    @property
    def staleness(self) -> Mapping[int, int]:
        """How many dense updates missed so many of others."""
        return self.gates.histogram

    def hold_writes(self) -> None:
        """Let no step write weights from now on."""
        self.gates.hold()

    def await_rest(self, seconds: float) -> bool:
        """Wait until none does; False where one still does after `seconds`."""
        return self.gates.await_rest(seconds)

    def release_writes(self) -> None:
        """Let steps write weights again."""
        for number in self.gates.release():
            self._replicas[number].wake()

    def pause(self) -> None:
        """Ask the replicas to stop after the steps they have taken; not before those batches that an earlier incarnation has trained."""
        self._order(paused=True)

    def resume(self) -> None:
        """Let the replicas take batches again."""
        self._order(paused=False)

    def _order(self, *, paused: bool) -> None:
        with self._ordered:
            self._resting.told(paused=paused, owes=self._owes())
            self._ordered.notify_all()

    @property
    def seconds_waited(self) -> float:
        """Seconds for which a replica, in the mean, has waited for what others send."""
        waited = sum(replica.seconds_waited for replica in self._replicas)
        waited += (self.upcoming.seconds_waited if self.upcoming else 0.0) + self._seconds_in_lockstep
        return waited / max(1, len(self._replicas))

    @property
    def upcoming_report(self) -> Mapping[str, Any]:
        """What a role says of where its steps come from."""
        return self.upcoming.report if self.upcoming else {}

    @property
    def quiet(self) -> bool:
        """No replica has a step under way."""
        return self._resting.num_idle + self._finished == len(self._threads)

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
        return {"position": self._feed.position.to_dict(), "totals": asdict(self.totals)}

    def _note(self) -> None:
        """Keep from where another process would go on, should this one end here. Requires: the lock.

        Where one replica is far behind others, what was kept before stays: then more is trained again.
        """
        if self._journal and self._feed.num_kept <= _MOST_KEPT:
            self._journal.write(self._feed.word(self.totals))

    def stop(self) -> None:
        """End all threads."""
        self._orders.stopping = True
        self._order(paused=False)
        if self.upcoming:  # first: a replica may wait for it
            self.upcoming.stop()
        for thread in self._threads:
            thread.join(timeout=10)
        if self._threads:
            self._feed.stop()
        for inbox in self.inboxes if not self._threads else ():
            inbox.close()

    @property
    def sent_to(self) -> dict[str, int]:
        """Bytes of tensors sent by the replicas, by the role that they went to."""
        return sent_by_role(self._outboxes)

    def _guarded(self, replica: Replica, source: Source) -> None:
        begin_thread()
        try:
            replica.drive(self._training(replica.machine, source))
            self._count_rest(replica.machine.place[2])
            with self._lock:
                self._finished += 1
        except Exception as error:
            self.error = (
                error if isinstance(error, Error) else RunError(f"{replica.endpoint}: {type(error).__name__}: {error}")
            )
        finally:
            self.on_change()
            # Not by who stops the trainer: a socket that is closed under a thread which uses it ends the process
            replica.close()
            if self.upcoming:
                self.upcoming.close()

    def _training(self, machine: ReplicaMachine, source: Source) -> Machine[None]:
        if self._lockstep:
            empty = no_examples(self.engine.program.net)
            return train_together(machine, source, self._orders, self._lockstep, empty, prefetch=self._prefetch)
        return train(machine, source, self._orders, prefetch=self._prefetch)

    def _carry_out(self, replica: int, instruction: Instruction) -> Batch | Verdict | None:
        """What the replica of a number asks of its trainer."""
        if isinstance(instruction, TakeBatch):
            return None if self._orders.stopping else self._feed.next()
        if isinstance(instruction, AwaitVerdict):
            return self._verdict(instruction.step)
        if isinstance(instruction, Wake):
            for number in instruction.replicas:
                self._replicas[number].wake()
        elif isinstance(instruction, StepBegins):
            with self._lock:
                self._feed.taken(instruction.position)
                self._note()
        elif isinstance(instruction, StepEnds):
            self._ended(instruction.step)
        elif isinstance(instruction, Rest):
            self._count_rest(replica)
            self._rest(instruction)
        return None

    def _rest(self, rest: Rest) -> None:
        """Between steps, a replica stays here while the trainer is paused, not longer."""
        with self._ordered:
            self._ordered.wait_for(lambda: self._resting.is_told(rest))
            pause = self._resting.rests()
            if pause is None:
                return
            self.on_change()
            self._ordered.wait_for(lambda: self._resting.is_over(pause))

    def _verdict(self, step: int) -> Verdict:
        """What all trainers have said with a step. Raises PeerLost."""
        assert self._collective
        began = time.monotonic()
        verdict = self._collective.verdict(step, self._patience.seconds)
        self._seconds_in_lockstep += time.monotonic() - began
        return verdict

    def _ended(self, step: Step) -> None:
        with self._lock:
            self._count(step)
            if step.position:
                self._feed.ended(step.position)
            self._note()
        with self._ordered:
            self._resting.ended(owes=self._owes())  # nobody waits there who is to be told

    def _count(self, step: Step) -> None:
        if not step.state.batch_size:
            return
        values, context = step.state.values, step.state.context
        counted = CountedStep(context.replica, context.step, step.state.batch_size, float(values["label"].sum()))
        for each, loss in self._losses[context.replica].add(counted, values[self.engine.program.net.outputs[0]]):
            self._add(each, loss)

    def _count_rest(self, replica: int) -> None:
        """Of a replica that stands still, all steps are in the totals from now on."""
        for each, loss in self._losses[replica].rest():
            self._add(each, loss)

    def _add(self, step: CountedStep, loss: float) -> None:
        if not math.isfinite(loss):
            raise RunError(
                f"{self.role}: the loss is {loss} at step {step.step} of replica {step.replica}: compile with smaller --dense-lr and --sparse-lr"
            )
        with self._lock:
            self.totals.examples += step.examples
            self.totals.steps += 1
            self.totals.log_loss += loss * step.examples
            self.totals.positives += step.positives
            if self.keep_losses:
                self.losses.append(loss)
            self.on_step(self.totals.steps)

"""A parameter server of any kind: passes come in by message, their stages run on shared parameters (HT 3.1.1).

A group PS serves its group's trainers, a sparse PS all trainers, a dense PS the background rounds of every sync net. They differ by
their nets alone.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from htrain.errors import Error, RunError
from htrain.executor.engine.context import APART, SYNC_REPLICA, Context
from htrain.executor.engine.engine import Engine, Pass
from htrain.executor.engine.gate import WriteGates
from htrain.executor.engine.program import Stage
from htrain.executor.engine.stage_keys import ROUND
from htrain.executor.host.threads import begin_thread
from htrain.executor.host.watch import Activity, Watch
from htrain.executor.transport.port import Network, Outbox, sent_by_role
from htrain.executor.transport.wire import Values
from htrain.ops.bundle import Bundle
from htrain.ops.collective import WORKERS
from htrain.sync.ordered import InOrder, Rounds
from htrain.sync.rounds import AnswerAll, AppliedRounds, Invite, JointRounds

HAND_OVER_SECONDS = (
    100e-6  # of CPU, to have another thread run a stage: tools/bench/sparse_ps.py --ids 8 with 1 and 2 workers
)
_LATELY_RUNS = 8
Job = tuple[Engine, Pass, Stage]


@dataclass(frozen=True)
class Centre:
    """What answers the rounds of one holder of weights. `members` are the endpoints of those who play it, one of each group; `engines` one for each, or one
    for all."""

    engines: Sequence[Engine]
    members: Sequence[str]

    def engine_of(self, group: int) -> Engine:
        return self.engines[group % len(self.engines)]

    @property
    def is_joint(self) -> bool:
        """Whether nobody is answered before all have come."""
        return any(ROUND in stage.waits for stage in self.engines[0].program.stages)


@dataclass(frozen=True)
class _Worker:
    """What a serving thread has to itself."""

    outbox: Outbox
    activity: Activity


def endpoint_of(peer: str, context: Context) -> str:
    """The endpoint behind a device's name in a net, for a context: its own group's, or its own replica."""
    if peer == "trainer":
        return f"trainer:{context.group}:{context.trainer}/{context.replica}"
    kind, _, index = peer.partition(":")
    if kind == WORKERS:
        return f"trainer:{context.group}:{context.trainer}/{WORKERS}"
    return f"group_ps:{context.group}:{index}" if kind == "group_ps" else peer


def _source(context: Context) -> tuple[int, int, int]:
    return context.group, context.trainer, context.replica


class Server:
    """The serving threads of one role. `engine` runs training passes; `centers` the rounds of sync nets, by holder's index; `apart` what
    look-ahead caches read and write back.
    `trainers` are those that come to every round of a bulk-synchronous server. `on_step` hears how many passes have ended.

    One thread receives, and runs itself what takes less time than to tell another thread; of the rest it runs all with one worker, unless its writes may be
    held, while `workers` threads run it otherwise.
    """

    def __init__(
        self,
        role: str,
        network: Network,
        engine: Engine,
        centers: Mapping[int, Centre],
        bound: int,
        workers: int,
        trainers: int = 1,
        apart: Engine | None = None,
        *,
        watch: Watch,
        is_held: bool = False,
    ) -> None:
        self.role = role
        self._watch = watch
        self.engine = engine
        self.centers = centers
        self.apart = apart or engine
        self.gates: WriteGates[Job] = WriteGates(engine.program.num_clocks, bound)
        self.passes_done = 0
        self.error: Exception | None = None
        self.inbox = network.inbox(role)
        self._network = network
        serves_caches = any(stage.ends_push for e in (engine, self.apart) for stage in e.program.stages)
        self._workers = 1 if serves_caches else workers  # clocks and rows of a request change together
        self._queued = self._workers > 1 or is_held
        self._cpu_seconds: dict[Stage, float] = {}  # that a run of a stage takes, lately
        self._has_rounds = any(ROUND in stage.waits for stage in engine.program.stages)
        self._in_order: InOrder[Job] = InOrder()
        self._pushed: Rounds[tuple[Engine, Pass]] = Rounds(trainers)
        self._rounds: AppliedRounds[str] = AppliedRounds({})
        self._joint = {holder: JointRounds(centre.members) for holder, centre in centers.items() if centre.is_joint}
        self.on_step: Callable[[int], None] = lambda count: None
        self._count_lock = threading.Lock()
        self._outboxes: list[Outbox] = []
        self._passes: dict[Context, tuple[Engine, Pass]] = {}
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, book: dict[str, str]) -> None:
        """Serve from now on."""
        loops: list[Callable[[_Worker], None]] = [self._receive_loop]
        loops += [self._work_loop] * (self._workers if self._queued else 0)
        for number, loop in enumerate(loops):
            worker = _Worker(self._network.outbox(book), self._watch.activity(f"server {number}"))
            self._outboxes.append(worker.outbox)
            thread = threading.Thread(
                target=self._guarded, args=(loop, worker), name=f"{self.role} {number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        return self._threads

    def hold_writes(self) -> None:
        """Let no pass step weights from now on."""
        self.gates.hold()

    def await_rest(self, seconds: float) -> bool:
        """Wait until none does; False where one still does after `seconds`."""
        return self.gates.await_rest(seconds)

    def release_writes(self) -> None:
        """Let passes step weights again. From any thread: those that have waited are run by the server's own."""
        for job in self.gates.release():
            self._jobs.put(job)

    def stop(self) -> None:
        """End all threads; what has arrived is dropped."""
        self._stopping.set()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=10)
        if not self._threads:
            self.inbox.close()

    @property
    def sent_to(self) -> dict[str, int]:
        return sent_by_role(self._outboxes)

    def _guarded(self, loop: Callable[[_Worker], None], worker: _Worker) -> None:
        """Run a loop; keep what it raises for the role's main thread, which tells the launcher."""
        begin_thread()
        try:
            loop(worker)
        except Exception as error:
            self.error = (
                error if isinstance(error, Error) else RunError(f"{self.role}: {type(error).__name__}: {error}")
            )
            self._stopping.set()
        finally:  # not by who stops the server: a socket that is closed under a thread which uses it ends the process
            worker.outbox.close()
            if loop == self._receive_loop:
                self.inbox.close()

    def _receive_loop(self, worker: _Worker) -> None:
        while not self._stopping.is_set():
            self._receive(worker)

    def _receive(self, worker: _Worker) -> None:
        """Take one message. What it brought is kept by its pass alone: a loop's own variable would keep it until the next one comes."""
        got = self.inbox.receive(0.2)
        if got and isinstance(got[0], Values):
            self._on_values(got[0], got[1], worker)

    def _on_values(self, message: Values, tensors: Mapping[str, torch.Tensor], worker: _Worker) -> None:
        context = message.context
        known = self._passes.get(context)
        if known is None:
            if self._is_repeated(context):
                return
            if context.replica == SYNC_REPLICA and not self._rounds.admit(message.source, context.step):
                return  # a repeated message of a round that has been absorbed
            engine = self._engine_of(context)
            known = self._passes[context] = (engine, engine.begin(context, message.source, message.batch_size, {}))
            if context.replica == SYNC_REPLICA and context.trainer in self._joint:
                self._invite(self._joint[context.trainer].begun(message.source, context.step), context, worker)
            self._offer(engine, known[1], engine.start(known[1]), worker)
        engine, state = known
        self._offer(engine, state, engine.receive(state, tensors), worker)

    def _engine_of(self, context: Context) -> Engine:
        if context.replica == SYNC_REPLICA:
            return self.centers[context.trainer].engine_of(context.group)
        return self.apart if context.replica in APART else self.engine

    def _is_repeated(self, context: Context) -> bool:
        """Whether a cache's request of this step has been served: a repeated message must not be carried out again."""
        return self._in_order.is_past(_source(context), context.step)

    def _offer(self, engine: Engine, state: Pass, stages: Sequence[Stage], worker: _Worker) -> None:
        """Stages that are ready: those that write pass the gate first."""
        for stage in stages:
            job = (engine, state, stage)
            if stage.ends_push and ROUND not in stage.waits:  # a cache's request: in the order in which they were sent
                self._dispatch(self._in_order.admit(_source(state.context), state.context.step, job), worker)
                continue
            self._dispatch(self.gates.commit(stage.writes[0], state.context, job) if stage.writes else [job], worker)

    def _invite(self, instructions: Sequence[Invite[str]], context: Context, worker: _Worker) -> None:
        for endpoint in sorted(endpoint for invite in instructions for endpoint in invite.sources):
            worker.outbox.send_values(endpoint, Values(self.role, context, 0), (), ())

    def _answer_all(self, instructions: Sequence[AnswerAll[str]], context: Context, worker: _Worker) -> None:
        """All groups have come to a round: go on with its passes."""
        for _ in instructions:
            together = [
                known
                for c, known in self._passes.items()
                if (c.trainer, c.replica, c.step) == (context.trainer, SYNC_REPLICA, context.step)
            ]
            for engine, state in together:
                self._offer(engine, state, engine.grant(state, ROUND), worker)

    def _dispatch(self, jobs: Sequence[Job], worker: _Worker) -> None:
        for job in jobs:
            if self._queued and self._cpu_seconds.get(job[2], 0.0) > HAND_OVER_SECONDS:
                self._jobs.put(job)
            else:
                self._run(job, worker)

    def _work_loop(self, worker: _Worker) -> None:
        while not self._stopping.is_set():
            self._run_next(worker)

    def _run_next(self, worker: _Worker) -> None:
        job = self._jobs.get()
        if job is not None:
            self._run(job, worker)

    def _run(self, job: Job, worker: _Worker) -> None:
        engine, state, stage = job
        context = state.context

        def send(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...] | Bundle) -> None:
            to = state.source if context.replica == SYNC_REPLICA else endpoint_of(peer, context)
            worker.outbox.send_values(to, Values(self.role, context, state.batch_size), names, tensors)

        self.gates.begin(stage.reads, context)
        worker.activity.begin("computing")
        began = time.thread_time()
        granted: list[Job] = []
        bounded = stage.writes and self.gates.is_bounded
        ended = partial(self._end_write, stage, context, granted) if bounded else None
        ready = engine.run(state, stage, send, ended=ended)
        lately = self._cpu_seconds.get(stage, 0.0)
        self._cpu_seconds[stage] = lately + (time.thread_time() - began - lately) / _LATELY_RUNS
        worker.activity.end()
        if stage.writes and not ended:
            self._end_write(stage, context, granted)
        self._dispatch(granted, worker)
        self._offer(engine, state, ready, worker)
        if stage.ends_push and self._has_rounds:
            for other_engine, other in self._pushed.arrive(context.step, (engine, state)):
                self._offer(other_engine, other, other_engine.grant(other, ROUND), worker)
        if context.replica == SYNC_REPLICA and context.trainer in self._joint and engine.waits_for(state, ROUND):
            self._answer_all(self._joint[context.trainer].collected(state.source, context.step), context, worker)
        if engine.done(state):
            self._end(context)

    def _end_write(self, stage: Stage, context: Context, granted: list[Job]) -> None:
        """A stage has written; others that may now are added to `granted`."""
        granted += self.gates.end(stage.writes[0], context)

    def _end(self, context: Context) -> None:
        with self._count_lock:
            if self._passes.pop(context, None) is None:
                return
            self.passes_done += 1
            self.on_step(self.passes_done)

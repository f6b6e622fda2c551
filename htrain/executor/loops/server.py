"""The threads of a parameter server: one receives, others may run what takes longer; what they do is decided by its machine."""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from htrain.errors import Error, RunError
from htrain.executor.host.threads import begin_thread
from htrain.executor.host.watch import Activity, Watch
from htrain.executor.roles.server import Ended, Instruction, Job, Run, ServerMachine, Summon
from htrain.executor.transport.port import Network, Outbox, sent_by_role
from htrain.executor.transport.wire import Values
from htrain.ops.bundle import Bundle


@dataclass(frozen=True)
class _Worker:
    """What a serving thread has to itself."""

    outbox: Outbox
    activity: Activity


class Server:
    """The serving threads of one endpoint. `on_step` hears how many passes have ended.

    One thread receives, and runs itself what takes less time than to tell another thread; of the rest it runs all with one worker, unless its writes may be
    held, while `workers` threads run it otherwise.
    """

    def __init__(
        self,
        endpoint: str,
        network: Network,
        machine: ServerMachine,
        *,
        workers: int,
        watch: Watch,
        is_held: bool = False,
    ) -> None:
        self.role = endpoint
        self.machine = machine
        self.error: Exception | None = None
        self.inbox = network.inbox(endpoint)
        self.on_step: Callable[[int], None] = lambda count: None
        self.on_change: Callable[[], None] = lambda: None  # of what `error` says, by any thread
        self._watch = watch
        self._network = network
        self._workers = 1 if self.machine.serves_caches else workers
        self._queued = self._workers > 1 or is_held
        self._is_held = is_held
        self._deciding = threading.Lock()  # of who asks the machine
        self._outboxes: list[Outbox] = []
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._gone: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        self._back: queue.SimpleQueue[str] = queue.SimpleQueue()
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
        """Those that serve; none before `start`."""
        return self._threads

    @property
    def passes_done(self) -> int:
        """How many passes have run all of their stages."""
        return self.machine.passes_done

    @property
    def staleness(self) -> Mapping[int, int]:
        """How many dense updates missed so many of others."""
        return self.machine.gates.histogram

    def hold_writes(self) -> None:
        """Let no pass step weights from now on."""
        self.machine.gates.hold()

    def await_rest(self, seconds: float) -> bool:
        """Wait until none does; False where one still does after `seconds`."""
        return self.machine.gates.await_rest(seconds)

    def release_writes(self) -> None:
        """Let passes step weights again. From any thread: those that have waited are run by the server's own."""
        with self._deciding:
            instructions = self.machine.release()
        for each in instructions:
            if isinstance(each, Run):
                self._jobs.put(each.job)

    def forget(self, group: int, trainer: int, incarnation: int) -> None:
        """A trainer is gone, and will be begun again as this incarnation (`ServerMachine.forget`): within 0.2 s nobody waits for it. From any thread."""
        self._gone.put((group, trainer, incarnation))

    def comes_back(self, role: str) -> None:
        """A holder of weights has been begun again: within 0.2 s it is invited to the rounds that others have come to. From any thread."""
        self._back.put(role)

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
        """Bytes of tensors sent, by the role that they went to."""
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
            self.on_change()
        finally:  # not by who stops the server: a socket that is closed under a thread which uses it ends the process
            worker.outbox.close()
            if loop == self._receive_loop:
                self.inbox.close()

    def _receive_loop(self, worker: _Worker) -> None:
        while not self._stopping.is_set():
            self._receive(worker)

    def _forget(self, worker: _Worker) -> None:
        while not self._gone.empty():
            with self._deciding:
                instructions = self.machine.forget(*self._gone.get())
            self._carry_out(instructions, worker)
        while not self._back.empty():
            with self._deciding:
                instructions = self.machine.comes_back(self._back.get())
            self._carry_out(instructions, worker)

    def _receive(self, worker: _Worker) -> None:
        """Take one message. What it brought is kept by its pass alone: a loop's own variable would keep it until the next one comes."""
        got = self.inbox.receive(0.2)
        self._forget(worker)  # before what another process of that trainer asks for
        if got is None:
            return
        message, values = got
        if isinstance(message, Values):
            with self._deciding:
                instructions = self.machine.came(message.context, message.source, message.batch_size, values)
            del got, values
            self._carry_out(instructions, worker)

    def _work_loop(self, worker: _Worker) -> None:
        while not self._stopping.is_set():
            job = self._jobs.get()
            if job is not None:
                self._run(job, worker)
            del job

    def _carry_out(self, instructions: Sequence[Instruction], worker: _Worker) -> None:
        for each in instructions:
            if isinstance(each, Run):
                if self._queued and not each.is_short:
                    self._jobs.put(each.job)
                else:
                    self._run(each.job, worker)
            elif isinstance(each, Ended):
                self.on_step(each.passes)
            else:
                self._summon(each, worker)

    def _summon(self, to: Summon, worker: _Worker) -> None:
        worker.outbox.send_values(to.endpoint, Values(self.role, to.context, 0), (), ())

    def _run(self, job: Job, worker: _Worker) -> None:
        engine, state, stage = job
        granted: list[Instruction] = []

        def send(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...] | Bundle) -> None:
            to = self.machine.destination(peer, state)
            worker.outbox.send_values(to, Values(self.role, state.context, state.batch_size), names, tensors)

        if stage.reads:
            with self._deciding:  # no trainer is forgotten between the look at whether it is and what follows
                self.machine.began(job)
        worker.activity.begin("computing")
        began = time.thread_time()
        held = self.machine.holds_back(stage)
        late: list[Any] = []
        ready = engine.run(
            state,
            stage,
            (lambda *message: late.append(message)) if self._is_held else send,
            ended=partial(self._wrote, job, granted) if held else None,
        )
        seconds = time.thread_time() - began
        worker.activity.end()
        if stage.writes and not held:
            self._wrote(job, granted)
        with self._deciding:
            granted += self.machine.ran(job, ready, seconds)
        if self._is_held:
            granted = self._counted(granted)
            for message in late:
                send(*message)
        if granted:
            self._carry_out(granted, worker)

    def _counted(self, instructions: Sequence[Instruction]) -> list[Instruction]:
        """Tell of passes that have ended, before their trainers hear of it; what is left to do.

        A round that has the weights to itself is due behind a step, and is to be known of when that step's trainer comes to rest: a checkpoint would be made
        between the two.
        """
        for each in instructions:
            if isinstance(each, Ended):
                self.on_step(each.passes)
        return [each for each in instructions if not isinstance(each, Ended)]

    def _wrote(self, job: Job, granted: list[Instruction]) -> None:
        """A stage has written; what may run now is added to `granted`."""
        with self._deciding:
            granted += self.machine.wrote(job)

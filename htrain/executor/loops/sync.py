"""The background thread that keeps a holder's dense weights near their centres: carries out what its machine says (HT 2.2, ShadowSync)."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from htrain.errors import Error, PeerLost, RunError
from htrain.executor.engine.context import Context
from htrain.executor.engine.engine import Pass
from htrain.executor.engine.program import Stage
from htrain.executor.host.patience import Patience, Wait
from htrain.executor.host.threads import begin_thread
from htrain.executor.host.watch import Activity
from htrain.executor.roles.sync import Await, Hold, Instruction, Release, RoundEnds, RunStage, SyncMachine
from htrain.executor.transport.port import Network, Outbox, sent_by_role
from htrain.executor.transport.wire import Order, Values
from htrain.ops.bundle import Bundle

_IDLE_SECONDS = 1.0  # between two looks, where nothing wakes the thread
_WAKE = Order("look")


class Weights(Protocol):
    """The dense weights of a role, as a round at a fixed rate has them to itself."""

    def hold_writes(self) -> None:
        """Let no step write them from now on."""

    def await_rest(self, seconds: float) -> bool:
        """Wait until none does; False where one still does after `seconds`."""

    def release_writes(self) -> None:
        """Let steps write them again."""


class SyncLoop:
    """Runs a sync net round after round. Steps go on meanwhile; where `held` weights are given, they wait with their writes."""

    def __init__(
        self, machine: SyncMachine, network: Network, held: Weights | None, patience: Patience, activity: Activity
    ) -> None:
        self.machine = machine
        self.inbox = network.inbox(machine.endpoint)
        self.error: Exception | None = None
        self.on_change: Callable[[], None] = lambda: None  # of what `quiet` and `error` say, by its thread
        self.sent_to: dict[str, int] = {}
        self._network, self._held = network, held
        self._patience, self._activity = patience, activity
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # of who asks the machine
        self._thread = threading.Thread(target=self._guarded, name=machine.endpoint, daemon=True)
        self._book: dict[str, str] = {}
        self._bell: Outbox | None = None
        self._wait: Wait | None = None  # for the round under way

    def start(self, book: dict[str, str]) -> None:
        """Run rounds from now on. `book` has the addresses of all endpoints that are sent to, by name."""
        self._book = book
        self._bell = self._network.outbox(book)
        self._bell.send(self.machine.endpoint, _WAKE)  # connects
        self._thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The one that runs the rounds."""
        return (self._thread,)

    @property
    def quiet(self) -> bool:
        """Whether no round is under way while the holder is paused."""
        return self.machine.quiet

    @property
    def rounds_done(self) -> int:
        """How many rounds have ended."""
        return self.machine.rounds_done

    def steps_done(self, n: int) -> None:
        """The holder has done `n` steps in all. From any of its threads."""
        with self._lock:
            self.machine.steps_done(n)
            self._wake_if_due()

    def pause(self) -> None:
        """Start no more rounds; `quiet` while none is in flight."""
        with self._lock:
            self.machine.pause()
            self._wake_if_due()

    def resume(self) -> None:
        """Start rounds again; one that fell due meanwhile starts now."""
        with self._lock:
            self.machine.resume()
            self._wake_if_due()

    def stop(self) -> None:
        """End the thread, in at most 10 s; a round that is under way is not finished."""
        self._stopping.set()
        if self._thread.ident is None:
            self.inbox.close()
            return
        with self._lock:
            self._wake()
        self._thread.join(timeout=10)
        with self._lock:
            if self._bell:
                self._bell.close()
            self._bell = None

    def _wake_if_due(self) -> None:
        """Have the thread begin the round that is due. Requires: the lock."""
        if self.machine.is_due:
            if self._held and self.machine.waits_for_writes:
                self._held.hold_writes()
            self._wake()

    def _wake(self) -> None:
        if self._bell:
            self._bell.offer(self.machine.endpoint, _WAKE)  # nobody takes it where the thread has ended

    def _guarded(self) -> None:
        outbox = self._network.outbox(self._book)
        begin_thread()
        try:
            self._loop(outbox)
        except Exception as error:
            self.error = (
                error
                if isinstance(error, Error)
                else RunError(f"{self.machine.endpoint}: {type(error).__name__}: {error}")
            )
            self.on_change()
        finally:
            if self._held:
                self._held.release_writes()
            outbox.close()
            self.inbox.close()

    def _loop(self, outbox: Outbox) -> None:
        rounds, answer = self.machine.rounds(), None
        while not self._stopping.is_set():
            with self._lock:
                was_quiet = self.machine.quiet
                instruction = rounds.send(answer)
            if self.machine.quiet > was_quiet:
                self.on_change()
            answer = self._carry_out(instruction, outbox)

    def _carry_out(self, instruction: Instruction, outbox: Outbox) -> Any:
        if isinstance(instruction, RunStage):
            return self._run(instruction.state, instruction.stage, outbox)
        if isinstance(instruction, Await):
            return self._await(instruction.state)
        if isinstance(instruction, Hold):
            self._hold(instruction.round)
        elif isinstance(instruction, Release) and self._held:
            self._held.release_writes()
        elif isinstance(instruction, RoundEnds):
            self.sent_to = sent_by_role([outbox])
            self._wait = None
        return None

    def _run(self, state: Pass, stage: Stage, outbox: Outbox) -> list[Stage]:
        def send(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...] | Bundle) -> None:
            to = self.machine.destination(peer)
            outbox.send_values(to, Values(self.machine.endpoint, state.context, 0), names, tensors)

        self._activity.begin(f"synchronising, round {state.context.step}")
        ready = self.machine.engine.run(state, stage, send)
        self._activity.end()
        return ready

    def _hold(self, number: int) -> None:
        if self._held:
            self._held.hold_writes()
            wait = self._patience.begin()
            while not self._held.await_rest(wait.until_next_look):
                if wait.is_over:
                    raise PeerLost(
                        f"{self.machine.endpoint}: a step has written weights for {wait.seconds:.0f} s before round {number}"
                    )

    def _await(self, state: Pass | None) -> tuple[Context, Bundle] | None:
        """A message with values; None where none has come for a while, or a call to look what is due. Raises PeerLost for a round without an answer."""
        if state:
            self._wait = self._wait or self._patience.begin()
        got = self.inbox.receive(min(_IDLE_SECONDS, self._patience.seconds))
        message = (got[0].context, got[1]) if got and isinstance(got[0], Values) else None
        answers = state and message and message[0] == state.context and message[1]
        if state and not answers and self._wait and self._wait.is_over:
            missing = ", ".join(self.machine.engine.missing(state))
            raise PeerLost(
                f"{self.machine.endpoint}: no answer from {missing} to round {state.context.step} within {self._wait.seconds:.0f} s"
            )
        return message

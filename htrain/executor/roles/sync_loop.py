"""The background thread that keeps one group's dense parameters near the centre (HT 2.2, ShadowSync)."""

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from htrain.errors import Error, PeerLost, RunError
from htrain.executor.engine.context import SYNC_REPLICA, Context
from htrain.executor.engine.engine import Engine
from htrain.executor.host.patience import Patience
from htrain.executor.host.threads import begin_thread
from htrain.executor.host.watch import Activity
from htrain.executor.transport.port import Network, Outbox, sent_by_role
from htrain.executor.transport.wire import Order, Values
from htrain.ops.bundle import Bundle
from htrain.spec.centres import in_group
from htrain.sync.rounds import Instruction, Quiet, StartRound, SyncRounds

_IDLE_SECONDS = 1.0  # between two looks, where nothing wakes the thread
_WAKE = Order("look")


def holder_number(device: str) -> int:
    """The number under which a sync net's rounds travel: k of group_ps:k, -1 of the trainer, which may hold weights beside it."""
    return int(device.partition(":")[2] or -1)


def sync_endpoint(role: str) -> str:
    """Where a holder of weights takes the answers to its rounds."""
    return f"{role}/sync"


def centre_endpoint(host: str, holder: str) -> str:
    """Where a host of centres answers a role that holds weights: a dense PS, or the role of another group that holds what this one does."""
    if not in_group(host):
        return host
    kind, _, index = holder.split(":")
    return f"{kind}:{host.partition(':')[2]}:{index}/centre"


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
        self,
        holder: str,
        context: Context,
        network: Network,
        engine: Engine,
        rounds: SyncRounds,
        held: Weights | None,
        patience: Patience,
        activity: Activity,
    ) -> None:
        """`context` is that of the first round."""
        self.endpoint = sync_endpoint(holder)
        self.inbox = network.inbox(self.endpoint)
        self.error: Exception | None = None
        self.rounds_done = 0
        self.sent_to: dict[str, int] = {}
        self.quiet = False
        self._holder, self._context = holder, context
        self._network = network
        self._engine = engine
        self._rounds = rounds
        self._held = held
        self._patience = patience
        self._activity = activity
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._guarded, name=self.endpoint, daemon=True)
        self._book: dict[str, str] = {}
        self._due: list[int] = []
        self._bell: Outbox | None = None

    def start(self, book: dict[str, str]) -> None:
        self._book = book
        self._bell = self._network.outbox(book)
        self._bell.send(self.endpoint, _WAKE)  # connects
        self._thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        return (self._thread,)

    def steps_done(self, n: int) -> None:
        """The holder has done `n` steps in all. From any of its threads."""
        with self._lock:
            self._take(self._rounds.steps_done(n))

    def pause(self) -> None:
        """Start no more rounds; `quiet` while none is in flight."""
        with self._lock:
            self._take(self._rounds.pause())

    def resume(self) -> None:
        with self._lock:
            self.quiet = False
            self._take(self._rounds.resume())

    def _take(self, instructions: Sequence[Instruction]) -> None:
        """Remember what is to be done, and wake the thread for it. Requires: the lock."""
        for instruction in instructions:
            if isinstance(instruction, StartRound):
                self.quiet = False
                self._due.append(instruction.round)
                if self._held:
                    self._held.hold_writes()
                self._wake()
            elif isinstance(instruction, Quiet):
                self.quiet = True

    def _wake(self) -> None:
        if self._bell and threading.current_thread() is not self._thread:
            self._bell.offer(self.endpoint, _WAKE)  # nobody takes it where the thread has ended

    def stop(self) -> None:
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

    def _guarded(self) -> None:
        outbox = self._network.outbox(self._book)
        begin_thread()
        try:
            while not self._stopping.is_set():
                if self._due:
                    self._round(self._due.pop(0), outbox)
                else:
                    self._hear(self.inbox.receive(_IDLE_SECONDS))
        except Exception as error:
            self.error = (
                error if isinstance(error, Error) else RunError(f"{self.endpoint}: {type(error).__name__}: {error}")
            )
        finally:
            if self._held:
                self._held.release_writes()
            outbox.close()
            self.inbox.close()

    def _hear(self, got: tuple[object, Bundle] | None) -> None:
        """A message that brings nothing for a round in flight: an invitation to one, a late answer, or a call to look what is due."""
        if got and isinstance(got[0], Values):
            with self._lock:
                self._take(self._rounds.invited(got[0].context.step))

    def _round(self, number: int, outbox: Outbox) -> None:
        context = Context(self._context.group, self._context.trainer, SYNC_REPLICA, number)
        state = self._engine.begin(context, self.endpoint, 0, {})

        def send(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...] | Bundle) -> None:
            outbox.send_values(centre_endpoint(peer, self._holder), Values(self.endpoint, context, 0), names, tensors)

        if self._held and not self._held.await_rest(self._patience.seconds):
            raise PeerLost(
                f"{self.endpoint}: a step has written weights for {self._patience.seconds:.0f} s before round {number}"
            )
        ready = self._engine.start(state)
        seconds = self._patience.seconds
        deadline = time.monotonic() + seconds
        while not self._engine.done(state):
            while ready:
                self._activity.begin(f"synchronising, round {number}")
                ready += self._engine.run(state, ready.pop(0), send)
                self._activity.end()
            if self._engine.done(state) or self._stopping.is_set():
                break
            got = self.inbox.receive(min(_IDLE_SECONDS, seconds))
            if got and isinstance(got[0], Values) and got[0].context == context and got[1]:
                ready += self._engine.receive(
                    state, got[1]
                )  # each is taken once, so a repeated message changes nothing
            else:
                self._hear(got)
            if not ready and time.monotonic() > deadline:
                raise PeerLost(
                    f"{self.endpoint}: no answer from {', '.join(self._engine.missing(state))} to round {number} within {seconds:.0f} s"
                )
        if self._held:
            self._held.release_writes()
        with self._lock:
            self._take(self._rounds.reply(number))
        self.rounds_done += 1
        self.sent_to = sent_by_role([outbox])

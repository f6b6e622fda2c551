"""The background thread that keeps one group's dense parameters near the centre (HT 2.2, ShadowSync)."""

import threading
import time
from collections.abc import Callable, Sequence

import torch

from htrain.errors import Error, PeerLost, RunError
from htrain.executor.engine import Engine
from htrain.executor.patience import Patience
from htrain.executor.port import Network, Outbox, sent_by_role
from htrain.executor.threads import begin_thread
from htrain.executor.watch import Activity
from htrain.executor.wire import SYNC_REPLICA, Context, Values
from htrain.sync.rounds import Instruction, Quiet, StartRound, SyncRounds

_POLL_SECONDS = 0.005


def holder_number(device: str) -> int:
    """The number under which a sync net's rounds travel: k of group_ps:k, -1 of the trainer, which may hold weights beside it."""
    return int(device.partition(":")[2] or -1)


class SyncLoop:
    """Runs a sync net round after round, never in the way of a step. `steps` tells how many steps the group has done."""

    def __init__(
        self,
        holder: str,
        group: int,
        index: int,
        network: Network,
        engine: Engine,
        rounds: SyncRounds,
        steps: Callable[[], int],
        patience: Patience,
        activity: Activity,
    ) -> None:
        self.endpoint = f"{holder}/sync"
        self.inbox = network.inbox(self.endpoint)
        self.error: Exception | None = None
        self.rounds_done = 0
        self.sent_to: dict[str, int] = {}
        self._group, self._index = group, index
        self._network = network
        self._engine = engine
        self._rounds = rounds
        self._steps = steps
        self._patience = patience
        self._activity = activity
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._guarded, name=self.endpoint, daemon=True)
        self._book: dict[str, str] = {}
        self._due: list[int] = []
        self.quiet = False

    def start(self, book: dict[str, str]) -> None:
        self._book = book
        self._thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        return (self._thread,)

    def pause(self) -> None:
        """Start no more rounds; `quiet` once none is in flight."""
        with self._lock:
            self._take(self._rounds.pause())

    def resume(self) -> None:
        with self._lock:
            self.quiet = False
            self._take(self._rounds.resume())

    def _take(self, instructions: Sequence[Instruction]) -> None:
        """Remember what is to be done."""
        for instruction in instructions:
            if isinstance(instruction, StartRound):
                self._due.append(instruction.round)
            elif isinstance(instruction, Quiet):
                self.quiet = True

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)
        else:
            self.inbox.close()

    def _guarded(self) -> None:
        outbox = self._network.outbox(self._book)
        begin_thread()
        try:
            while not self._stopping.is_set():
                with self._lock:
                    self._take(self._rounds.steps_done(self._steps()))
                if self._due:
                    self._round(self._due.pop(0), outbox)
                else:
                    self._stopping.wait(_POLL_SECONDS)
        except Exception as error:
            self.error = (
                error if isinstance(error, Error) else RunError(f"{self.endpoint}: {type(error).__name__}: {error}")
            )
        finally:
            outbox.close()
            self.inbox.close()

    def _round(self, number: int, outbox: Outbox) -> None:
        context = Context(self._group, self._index, SYNC_REPLICA, number)
        state = self._engine.begin(context, self.endpoint, 0, {})

        def send(peer: str, names: tuple[str, ...], tensors: tuple[torch.Tensor, ...]) -> None:
            outbox.send_values(peer, Values(self.endpoint, context, 0, []), names, tensors)

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
            got = self.inbox.receive(0.2)
            if got and isinstance(got[0], Values) and got[0].context == context:
                ready += self._engine.receive(
                    state, got[1]
                )  # one Relax per blob, so a repeated message changes nothing
            elif time.monotonic() > deadline:
                raise PeerLost(
                    f"{self.endpoint}: no answer from {', '.join(self._engine.missing(state))} to round {number} within {seconds:.0f} s"
                )
        with self._lock:
            self._take(self._rounds.reply(number))
        self.rounds_done += 1
        self.sent_to = sent_by_role([outbox])

"""A role's pulse: a thread that does nothing else, so that a role which loads, saves or computes is not taken for a dead one.

It tells the launcher twice a second, or less often among many, that the role lives, looks after its other threads, and notices when the launcher is gone.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from htrain.errors import Error, PeerLost, RunError
from htrain.executor.transport.link import LAUNCHER, Launcher
from htrain.executor.transport.port import Inbox, Network, Outbox
from htrain.executor.transport.wire import Beat, Failed

BEAT_SECONDS = 0.5
_BEATS_A_SECOND = 300  # that a launcher hears of all roles together, and no more
_LIVENESS_SHARE = 0.25  # of the time for which a role may be silent, between two of its beats at most
LAUNCHER_SECONDS = (
    15.0  # without a word of it, where it does not bear the silence of roles for longer; it speaks every second
)
_ENDED_SECONDS = 3.0  # of a launcher whose process has ended
_TICK_SECONDS = 0.2
_MOST_SECONDS = 1.0  # of one tick: a role that was stopped has not listened
_LAST_SECONDS = 5.0  # for a role to end by itself, once its launcher is gone


def beat_seconds(roles: int, liveness_seconds: float) -> float:
    """Between two beats of one of so many roles: what a launcher has to hear does not grow with a cluster of hundreds."""
    return max(BEAT_SECONDS, min(roles / _BEATS_A_SECOND, _LIVENESS_SHARE * liveness_seconds))


class Pulse:
    """The pulse of one role, from the moment it is made: a beat `every_seconds`, but no more than two a second. `ends_process`: the process ends with the
    role. A launcher that cannot be seen from here is gone once it is silent for `liveness_seconds`, as a role is for it, but not before 15 s.

    `exchanged` tells how much the role has said, and how much it has heard. `error` is set when the launcher is gone: the role's own loop is to end it then,
    and the process goes where that does not.
    """

    def __init__(
        self,
        role: str,
        network: Network,
        launcher: Launcher,
        *,
        ends_process: bool,
        every_seconds: float = 0.0,
        liveness_seconds: float = 0.0,
        incarnation: int = 0,
    ) -> None:
        self.error: Error | None = None
        self.metrics: Callable[[], dict[str, Any]] = dict
        self.exchanged: Callable[[], tuple[int, int]] = lambda: (-1, -1)
        self.hangs: Callable[[], str] = str
        self.on_error: Callable[[], None] = lambda: None
        self._role = role
        self._incarnation = incarnation
        self._network = network
        self._launcher = launcher
        self._ends_process = ends_process
        self._every_seconds = every_seconds
        self._silent_seconds = max(LAUNCHER_SECONDS, liveness_seconds)
        self._inbox: Inbox = network.inbox(f"{role}/pulse")
        self.endpoints = {self._inbox.name: self._inbox.address}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self._inbox.name, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises PeerLost when the launcher is gone."""
        if self.error:
            raise self.error

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        outbox = self._network.outbox({LAUNCHER: self._launcher.address})
        try:
            self._beat(outbox)
        except Exception as error:  # the role's own loop tells the launcher
            self._fail(
                error if isinstance(error, Error) else RunError(f"{self._role}: {type(error).__name__}: {error}")
            )
        finally:
            outbox.close()
            self._inbox.close()

    def _beat(self, outbox: Outbox) -> None:
        """Until the role ends, or its launcher is gone."""
        silence, beaten, ticked = 0.0, 0.0, time.monotonic()
        has_spoken = has_told = False
        while not self._stopping.is_set():
            heard = self._inbox.receive(_TICK_SECONDS) is not None
            has_spoken = has_spoken or heard
            now = time.monotonic()
            silence = 0.0 if heard else silence + min(now - ticked, _MOST_SECONDS)
            ticked = now
            if now - beaten >= max(BEAT_SECONDS, self._every_seconds):
                beaten = now
                beat = Beat(self._role, self.metrics(), *self.exchanged(), incarnation=self._incarnation)
                outbox.offer(LAUNCHER, beat)
            if not has_told and (hangs := self.hangs()):
                has_told = True
                hung = Failed(self._role, PeerLost.__name__, f"{self._role}: {hangs}", self._incarnation)
                outbox.offer(LAUNCHER, hung)
            if silence > _ENDED_SECONDS and self._launcher_is_gone(silence if has_spoken else 0.0):
                self._leave()
                return

    def _launcher_is_gone(self, silence: float) -> bool:
        """One on this host that only sleeps, as after Ctrl-Z, is not; of one elsewhere nothing but its silence is known."""
        lives = self._launcher.process.lives
        return silence > self._silent_seconds if lives is None else not lives

    def _fail(self, error: Error) -> None:
        """Have the role's own loop look at an error."""
        self.error = error
        self.on_error()

    def _leave(self) -> None:
        """Have the role end, and see to it that its process does."""
        self._fail(PeerLost(f"{self._role}: the launcher ({self._launcher.process}) is gone"))
        if self._ends_process and not self._stopping.wait(_LAST_SECONDS):
            with suppress(OSError):
                print(self.error, file=sys.stderr, flush=True)
            os._exit(1)

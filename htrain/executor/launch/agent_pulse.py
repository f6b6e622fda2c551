"""The pulse of an agent: a thread that says twice a second that the agent lives, whatever that is busy with, and notices when the launcher is gone."""

import threading
import time
from collections.abc import Mapping

from htrain.errors import Error, RunError
from htrain.executor.launch.pulse import LAUNCHER_SECONDS
from htrain.executor.transport.link import LAUNCHER
from htrain.executor.transport.port import Network, Outbox
from htrain.executor.transport.rendezvous import Here

_BEAT_SECONDS = 0.5
_GONE_SECONDS = 3.0  # for which nobody takes a sign of life: a launcher that only sleeps does
_ASK_SECONDS = (
    2.0  # of silence: somebody who takes signs of life may be another launcher, which does not know the agent
)
_ANEW_SECONDS = 5.0  # between two new connections to a launcher that has been silent for long
_MOST_SECONDS = 1.0  # of silence between two times of listening: an agent that was busy has not listened


class AgentPulse:
    """Beats from its start to its stop. The agent says when it has `listened` to the launcher, which speaks twice a second,
    to its `address`.

    A host that went without a word leaves a connection behind that looks alive, and tries again the more seldom, the longer there was no answer. So the pulse
    asks a launcher that has been silent for long by a new connection, too: whoever is started again in its place is found at once.
    """

    def __init__(self, agent: str, address: str, network: Network, book: Mapping[str, str]) -> None:
        self._agent = agent
        self._address = address
        self._network = network
        self._book = book
        self._is_untaken = False
        self._error: Error | None = None
        self._silent_seconds = LAUNCHER_SECONDS  # that are borne
        self._made_anew = 0.0  # the connection that is asked by then
        self._silence = 0.0
        self._listened = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{agent}/pulse", daemon=True)
        self._thread.start()

    @property
    def gone(self) -> str:
        """How the launcher has gone: it takes nothing, or says nothing; "" while it is there."""
        if self._is_untaken:
            return f"its launcher took no sign of life for {_GONE_SECONDS:g} s"
        return (
            f"it has heard nothing of its launcher for {self._silence:.0f} s"
            if self._silence > self._silent_seconds
            else ""
        )

    def bear(self, seconds: float) -> None:
        """Bear the launcher's silence for as long as it bears that of roles, but no less than before it had said so."""
        self._silent_seconds = max(LAUNCHER_SECONDS, seconds)

    def listened(self, *, heard: bool) -> None:
        """The agent has looked for messages. Raises what has ended the thread, such as RunError where no socket can be opened."""
        if self._error:
            raise self._error
        now = time.monotonic()
        self._silence = 0.0 if heard else self._silence + min(now - self._listened, _MOST_SECONDS)
        self._listened = now

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        outbox = self._network.outbox(self._book)
        taken = time.monotonic()
        anew: Outbox | None = None
        try:
            while not self._stopping.wait(_BEAT_SECONDS):
                if outbox.offer(LAUNCHER, Here(self._agent, self._address if self._silence > _ASK_SECONDS else "")):
                    taken = time.monotonic()
                self._is_untaken = time.monotonic() - taken > _GONE_SECONDS
                anew = self._ask_anew(anew)
        except Exception as error:  # a thread that ended unheard would be taken for a process that is gone
            self._error = error if isinstance(error, Error) else RunError(f"its pulse: {type(error).__name__}: {error}")
        finally:
            for each in (outbox, anew):
                if each:
                    each.close()

    def _ask_anew(self, before: Outbox | None) -> Outbox | None:
        """Ask a launcher that has been silent for long whether it knows the agent, by a connection that is no older than 5 s, which is returned."""
        is_silent, now = self._silence > LAUNCHER_SECONDS, time.monotonic()
        if before and (not is_silent or now - self._made_anew > _ANEW_SECONDS):
            before.close()
            before = None
        if not is_silent:
            return None
        if before is None:
            before, self._made_anew = self._network.outbox(self._book), now
        before.offer(LAUNCHER, Here(self._agent, self._address))
        return before

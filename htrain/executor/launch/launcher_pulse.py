"""The launcher's pulse: a thread that says to every role, each second or two, that the launcher is there (htrain.executor.launch.pulse hears it)."""

import threading
from collections.abc import Callable, Mapping

from htrain.errors import Error, RunError
from htrain.executor.transport.port import Network
from htrain.executor.transport.wire import Order

_PING_SECONDS = 1.0
_PINGS_A_SECOND, _MOST_SECONDS = 500, 2.0


class LauncherPulse:
    """Speaks from its start to its stop, whatever the launcher itself is busy with; `give_sign` is called as often. What keeps it from it, `check` raises."""

    def __init__(self, network: Network, book: Mapping[str, str], give_sign: Callable[[], None]) -> None:
        self._network = network
        self._book = {name: address for name, address in book.items() if name.endswith("/pulse")}
        self._give_sign = give_sign
        self._every_seconds = min(_MOST_SECONDS, max(_PING_SECONDS, len(self._book) / _PINGS_A_SECOND))
        self._stopping = threading.Event()
        self._error: Error | None = None
        self._thread = threading.Thread(target=self._run, name="launcher/pulse", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what has ended the thread, such as RunError where no socket can be opened: roles would take the launcher for one that is gone."""
        if self._error:
            raise self._error

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        outbox = self._network.outbox(self._book)
        try:
            while not self._stopping.is_set():
                for name in self._book:
                    outbox.offer(name, Order("ping"))
                self._give_sign()
                self._stopping.wait(self._every_seconds)
        except Exception as error:  # a thread that ended unheard would be taken for a process that is gone
            self._error = error if isinstance(error, Error) else RunError(f"its pulse: {type(error).__name__}: {error}")
        finally:
            outbox.close()

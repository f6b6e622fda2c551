"""Signals that ask a run to stop."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from htrain.executor.host.bell import Bell


class Interrupt:
    """Whether the user has asked the run to stop, by a signal of this `number` or by 0, and what wakes a thread that waits when they do."""

    def __init__(self) -> None:
        self.is_asked = False
        self.number = 0
        self._bell = Bell()

    @property
    def descriptors(self) -> Sequence[int]:
        """What can be read as soon as the user asks; nothing once they have."""
        return () if self.is_asked else (self._bell.descriptor,)

    def ask(self, number: int = 0) -> None:
        """From any thread, or the handler of the signal of this number."""
        self.is_asked, self.number = True, self.number or number
        self._bell.ring()

    def close(self) -> None:
        """Close the bell. Requires: no thread waits for it, and no signal's handler can still ring it."""
        self._bell.close()


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Ctrl-C, SIGTERM and the end of the terminal ask the run to stop; a second Ctrl-C stops it there and then.

    What is ignored stays so, as under nohup; elsewhere than in the main thread signals are not ours to take.
    """
    interrupt = Interrupt()

    def ask(number: int, frame: object) -> None:
        if interrupt.is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        interrupt.ask(number)

    ours = threading.current_thread() is threading.main_thread()
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in numbers if ours}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        interrupt.close()

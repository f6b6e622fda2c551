"""CPU and memory of one role: of its process, or, where roles share a process, of its own threads and parameters."""

import os
import threading
import time
from collections.abc import Callable, Iterable

import psutil
import torch


class ProcessUsage:
    """The role has a process of its own."""

    def cpu_seconds(self) -> float:
        """CPU seconds of all threads of the process so far, those in the kernel included."""
        return time.process_time()

    def memory_bytes(self) -> int:
        """Bytes of the process that are in memory now, pages that it shares with others included."""
        return int(psutil.Process(os.getpid()).memory_info().rss)


class ThreadUsage:
    """The role's threads are those that `threads` names, and the one that asks.

    A thread that has ended counts with what it had used when it was last seen. Memory is that of the role's parameters: what else the
    process holds belongs to no role alone.
    """

    def __init__(
        self, threads: Callable[[], Iterable[threading.Thread]], parameters: Callable[[], Iterable[torch.Tensor]]
    ) -> None:
        self._threads = threads
        self._parameters = parameters
        self._used: dict[int, float] = {}

    def cpu_seconds(self) -> float:
        """CPU seconds of all of the role's threads so far."""
        for thread in (threading.current_thread(), *self._threads()):
            if thread.ident is not None and thread.is_alive():
                self._used[thread.ident] = _seconds_of(thread.ident, self._used.get(thread.ident, 0.0))
        return sum(self._used.values())

    def memory_bytes(self) -> int:
        """Bytes of the role's parameters."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._parameters())


def _seconds_of(ident: int, last: float) -> float:
    """A thread's CPU seconds; `last` when it has just ended."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(ident))
    except OSError:
        return last

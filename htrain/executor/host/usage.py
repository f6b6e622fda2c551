"""CPU and memory of one role: of its process, or, where roles share a process, of its own threads and parameters."""

import os
import threading
import time
from collections.abc import Callable, Iterable

import psutil
import torch

_THREAD, _SCHEDULED = 4, 2  # of a clock's number in Linux


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
            if thread.native_id is not None and thread.is_alive():
                self._used[thread.native_id] = _seconds_of(thread.native_id, self._used.get(thread.native_id, 0.0))
        return sum(self._used.values())

    def memory_bytes(self) -> int:
        """Bytes of the role's parameters."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._parameters())


def _seconds_of(native_id: int, last: float) -> float:
    """The CPU seconds of a thread of this process by the kernel's number of it; `last` when it has just ended.

    Its clock is named as the kernel does it (a thread's, by the scheduler), since `time.pthread_getcpuclockid` looks into the thread's memory, which is gone
    once it has ended: a process whose threads ended while they were counted died of it.
    """
    try:
        return time.clock_gettime((~native_id << 3) | _THREAD | _SCHEDULED)
    except OSError:
        return last

"""Threads that compute."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

_ASK_AFTER_SECONDS = 1e-5
_RENEWING = threading.Lock()
_KEEPING = threading.Lock()
_kept: list[int] = []  # the threads within `callers_settings_kept`
_before: list[float] = []  # the settings when the first came
NICE = 10  # of what may take a core where others leave one


def begin_thread() -> None:
    """What every thread that runs kernels says first: no gradients of torch's own, and no more threads below it than the process was given.

    torch hands that number to a thread only when one of its own loops runs there; until then, products by oneDNN take all cores.
    """
    with _RENEWING:
        torch.set_num_threads(torch.get_num_threads())
        _renew()
    torch.set_grad_enabled(False)


def _renew() -> None:
    """In a process that was forked torch makes its engine of gradients anew when an op first keeps a value for its gradient, and its pool of threads when a
    loop, or `set_num_threads`, first asks for it. It takes the process to have one thread then. Of threads that come to the engine at once one destroys what
    another has made, and the process dies of signal 11 (tests/executor/host/test_threads.py).
    """
    with torch.enable_grad():
        torch.ones((), requires_grad=True).exp()  # keeps what it returns


def stand_back() -> None:
    """Have the calling thread, and those that it begins, take a core where others leave one: on Linux each thread has a priority of its own."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def share_gil(num_threads: int) -> None:
    """Have threads of this process ask for the GIL after 10 us, where several compute. A process that has one such thread stays as it is.

    A replica gives the GIL up for every kernel, and wants it back some microseconds later. Another that waits for it is woken, finds it taken, and sleeps
    again, until it asks for its turn: after 5 ms, Python's default, which are more than a step (tools/bench/replicas.py).
    """
    if num_threads > 1:
        sys.setswitchinterval(_ASK_AFTER_SECONDS)


@contextmanager
def callers_settings_kept() -> Iterator[None]:
    """Within, roles may be threads of this process; after it, the caller's program has as many threads of torch, and as long turns at the GIL, as before: as it
    had before the first, where several threads of it are within at once."""
    with _KEEPING:
        if not _kept:
            _before[:] = torch.get_num_threads(), sys.getswitchinterval()
        _kept.append(threading.get_ident())
    try:
        yield
    finally:
        with _KEEPING:
            _kept.pop()
            if not _kept:
                num_threads, turn_seconds = _before
                torch.set_num_threads(int(num_threads))
                sys.setswitchinterval(turn_seconds)

"""CPU and memory of a role that shares its process with others."""

import threading
import time

import torch

from htrain.executor.host.usage import ProcessUsage, ThreadUsage


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_roles_cpu_is_that_of_its_own_threads() -> None:
    stop = threading.Event()
    mine, other = (threading.Thread(target=lambda s=s: (burn(s), stop.wait(20))) for s in (0.1, 0.5))
    usage = ThreadUsage(lambda: [mine], lambda: [])
    usage.cpu_seconds()
    before = usage.cpu_seconds()
    for thread in (mine, other):
        thread.start()
    deadline = time.monotonic() + 20
    while usage.cpu_seconds() < before + 0.1:
        assert time.monotonic() < deadline
    other_used = 0.5
    burn_own = time.thread_time()
    used = usage.cpu_seconds() - before
    stop.set()
    mine.join()
    other.join()
    assert 0.1 <= used <= burn_own + 0.2 < burn_own + other_used


def test_a_thread_that_has_ended_still_counts() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=lambda: (burn(0.2), stop.wait(20)))
    usage = ThreadUsage(lambda: [thread], lambda: [])
    thread.start()
    deadline = time.monotonic() + 20
    while usage.cpu_seconds() < 0.2:
        assert time.monotonic() < deadline
    stop.set()
    thread.join()
    assert usage.cpu_seconds() >= 0.2


class Seeming(threading.Thread):
    """A thread that is taken to live, as one is that ends just after it was asked."""

    def is_alive(self) -> bool:
        return True


def test_a_thread_that_ends_while_it_is_counted_is_no_harm() -> None:
    together = threading.Event()  # so that each has a stack of its own, few of which are kept when they have ended
    threads = [Seeming(target=together.wait) for _ in range(200)]
    usage = ThreadUsage(lambda: [], lambda: [])
    own = usage.cpu_seconds()
    for thread in threads:
        thread.start()
    together.set()
    for thread in threads:
        thread.join()
    others = ThreadUsage(lambda: threads, lambda: [])
    assert own <= others.cpu_seconds() < own + 10


def test_memory_is_that_of_the_roles_parameters() -> None:
    usage = ThreadUsage(lambda: [], lambda: [torch.zeros(3, 4), torch.zeros(5, dtype=torch.int8)])
    assert usage.memory_bytes() == 53
    assert ProcessUsage().memory_bytes() > 2**20

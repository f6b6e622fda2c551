"""Roles on simulated hardware: cores, Python's lock, and the ends of links."""

from collections.abc import Callable, Generator, Hashable
from copy import copy
from random import Random
from typing import Any

import numpy as np
import simpy

from htrain.simulation.network import Link, transfer

Process = Generator[Any, Any, None]
_NO_LOCK = 1 << 30


class Host:
    """What a role runs on. `cores` may be shared by all hosts of a machine. A `load` of n says that n - 1 others, who are not simulated, ask
    the same of the role and its links, and `core_load` that so many ask the same of its cores."""

    def __init__(
        self,
        env: simpy.Environment,
        cores: simpy.Resource,
        bytes_per_second: float,
        *,
        load: float = 1.0,
        core_load: float = 1.0,
        one_lock: bool = True,
        seed: int = 0,
    ) -> None:
        self.env = env
        self.load, self.core_load = load, core_load
        self.locked_seconds = 0.0
        self.cores = cores
        self.lock = simpy.Resource(env, 1 if one_lock else _NO_LOCK)
        self.mover = simpy.Resource(env, 1)
        self.outgoing, self.incoming = (Link(env, bytes_per_second, Random(2 * seed + way)) for way in (0, 1))
        self.waits: list[float] = []
        self.busy: list[tuple[float, float]] = []  # when, and for how many CPU seconds

    def another_process(self) -> "Host":
        """The same cores and links for another process of the role, under a lock of its own."""
        other = copy(self)
        other.lock, other.mover = simpy.Resource(self.env, int(self.lock.capacity)), simpy.Resource(self.env, 1)
        return other

    def compute(self, locked_seconds: float, free_seconds: float) -> Process:
        """Take a core for so long, the first part under Python's lock. Of a host that others use, too, they take it afterwards."""
        asked = self.env.now
        lock = self.lock.request()
        yield lock
        core = self.cores.request()
        yield core
        self.waits.append(self.env.now - asked)
        locked, whole = locked_seconds * self.load, (locked_seconds + free_seconds) * self.core_load
        self.locked_seconds += locked
        self.busy.append((self.env.now, whole))
        if self.core_load > 1:
            self.env.process(self._hold(lock, core, locked, whole - locked))
            yield self.env.timeout(locked_seconds + free_seconds)
        else:
            yield from self._hold(lock, core, locked, whole - locked)

    def transport(self, seconds: float) -> Process:
        """Take a core for the thread that moves bytes to and from sockets: a host has one."""
        moving = self.mover.request()
        yield moving
        core = self.cores.request()
        yield core
        self.busy.append((self.env.now, seconds * self.core_load))
        yield self.env.timeout(seconds * self.core_load)
        self.cores.release(core)
        self.mover.release(moving)

    def _hold(self, lock: Any, core: Any, locked_seconds: float, free_seconds: float) -> Process:
        yield self.env.timeout(locked_seconds)
        self.lock.release(lock)
        if free_seconds:
            yield self.env.timeout(free_seconds)
        self.cores.release(core)

    def send(self, target: "Host", connection: Hashable, num_bytes: float, then: Callable[[], None]) -> None:
        """Put bytes on the way; `then` is called when the last of them is there. Others who use a host send as much beside it."""
        transfer((target, connection), (self.outgoing, target.incoming), num_bytes, then)
        for host, link in ((self, self.outgoing), (target, target.incoming)):
            if host.load > 1:
                transfer(None, (link,), num_bytes * (host.load - 1), _nothing)

    def mark(self) -> None:
        """Count from now on."""
        self.waits.clear()
        self.busy.clear()
        self.locked_seconds = 0.0
        self.outgoing.busy_seconds = self.incoming.busy_seconds = 0.0

    def cpu_over_time(self, start: float, end: float, windows: int) -> np.ndarray:
        """Cores kept busy in each of equal windows of [start, end)."""
        edges = np.linspace(start, end, windows + 1)
        if not self.busy or end <= start:
            return np.zeros(windows)
        times, seconds = np.array(self.busy).T
        return np.histogram(times, edges, weights=seconds)[0] / (edges[1] - edges[0])


def _nothing() -> None:
    """Nobody waits for the bytes of others."""

"""Roles on simulated hardware: cores, Python's lock, and links (SimPy's only door)."""

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

Process = Generator[Any, Any, None]
_NO_LOCK = 1 << 30


class Link:
    """One direction of a host's network: bytes leave, or come, one after the other."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self.free_at = 0.0
        self.busy_seconds = 0.0


class Host:
    """What a role runs on. `cores` may be shared by all hosts of a machine. A `load` of n says that n - 1 others, who are not simulated, ask
    the same of it."""

    def __init__(
        self,
        env: simpy.Environment,
        cores: simpy.Resource,
        bytes_per_second: float,
        *,
        load: float = 1.0,
        one_lock: bool = True,
    ) -> None:
        self.env = env
        self.load = load
        self.locked_seconds = 0.0
        self.cores = cores
        self.lock = simpy.Resource(env, 1 if one_lock else _NO_LOCK)
        self.outgoing, self.incoming = Link(bytes_per_second), Link(bytes_per_second)
        self.waits: list[float] = []
        self.busy: list[tuple[float, float]] = []  # when, and for how many CPU seconds

    def compute(self, locked_seconds: float, free_seconds: float) -> Process:
        """Take a core for so long, the first part under Python's lock. Of a host that others use, too, they take it afterwards."""
        asked = self.env.now
        lock = self.lock.request()
        yield lock
        core = self.cores.request()
        yield core
        self.waits.append(self.env.now - asked)
        self.locked_seconds += locked_seconds * self.load
        self.busy.append((self.env.now, (locked_seconds + free_seconds) * self.load))
        if self.load > 1:
            self.env.process(self._hold(lock, core, locked_seconds * self.load, free_seconds * self.load))
            yield self.env.timeout(locked_seconds + free_seconds)
        else:
            yield from self._hold(lock, core, locked_seconds, free_seconds)

    def _hold(self, lock: Any, core: Any, locked_seconds: float, free_seconds: float) -> Process:
        yield self.env.timeout(locked_seconds)
        self.lock.release(lock)
        if free_seconds:
            yield self.env.timeout(free_seconds)
        self.cores.release(core)

    def send(self, target: "Host", num_bytes: float) -> float:
        """Put bytes on the way; return the seconds until the last of them is there."""
        now, out, into = self.env.now, self.outgoing, target.incoming
        leaves, comes = num_bytes / out.bytes_per_second, num_bytes / into.bytes_per_second
        began = max(now, out.free_at)
        arrived = max(began + leaves, max(began, into.free_at) + comes)
        out.free_at = began + leaves * self.load
        into.free_at = max(arrived, into.free_at) + comes * (target.load - 1)
        out.busy_seconds += leaves * self.load
        into.busy_seconds += comes * target.load
        return arrived - now

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

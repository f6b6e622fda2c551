"""What the threads of a role are busy with, and which of them gets no further (docs/guarantees.md).

A thread says what it begins and when that has ended; waits with a deadline of their own are not said. Whoever has been at one thing for too long without
using a CPU hangs: on a disk that does not answer, or on a lock. A slow thread on a busy host uses some CPU, and is left alone.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from htrain.executor.host.patience import Patience

MOST_SECONDS = 1.0  # of one tick: a process that was stopped has not been watched
_PROGRESS_SECONDS = 0.002  # of CPU
_LONGEST = 20  # times the patience for one piece of work, whatever CPU it uses
_BYTES_PER_SECOND = 10_000_000  # of a slow disk: what is to be written is given that much more time


class Activity:
    """What one thread is busy with. Its thread writes, the watch reads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.what = ""
        self.more_seconds = 0.0
        self.number = 0
        self.thread = 0

    def begin(self, what: str, *, num_bytes: int = 0) -> None:
        """The calling thread begins something that should not take long; writing `num_bytes` may."""
        self.thread = threading.get_native_id()
        self.more_seconds = num_bytes / _BYTES_PER_SECOND
        self.number += 1
        self.what = what

    def end(self) -> None:
        """The thread is done with what it began: until it begins something else, it cannot hang."""
        self.what = ""

    @contextmanager
    def at(self, what: str, *, num_bytes: int = 0) -> Iterator[None]:
        """`begin` and `end` around something that is seldom done."""
        self.begin(what, num_bytes=num_bytes)
        try:
            yield
        finally:
            self.end()


@dataclass
class _Seen:
    """What the watch knows of an activity: which one it was, for how long it has been seen at it, and for how long without CPU."""

    number: int = -1
    seconds: float = 0.0
    idle_seconds: float = 0.0
    cpu_seconds: float = 0.0


class Watch:
    """The activities of a role. `tick` is for one thread; activities come from any."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._activities: list[tuple[Activity, _Seen]] = []
        self._ticked = time.monotonic()

    def activity(self, name: str) -> Activity:
        """A new activity, for the thread that is called `name`."""
        made = Activity(name)
        self._activities.append((made, _Seen()))
        return made

    def tick(self) -> str:
        """What hangs, in words; "" where nothing does."""
        now = time.monotonic()
        passed, self._ticked = min(now - self._ticked, MOST_SECONDS), now
        for activity, seen in self._activities:
            what = activity.what
            if self._hangs(activity, seen, passed) and activity.what == what:
                return f"its thread '{activity.name}' hangs: {what} for {seen.seconds:.0f} s"
        return ""

    def _hangs(self, activity: Activity, seen: _Seen, passed: float) -> bool:
        if not activity.what or activity.number != seen.number:
            seen.number, seen.seconds, seen.idle_seconds = activity.number, 0.0, 0.0
            seen.cpu_seconds = _cpu_seconds(activity.thread) if activity.what else 0.0
            return False
        cpu_seconds = _cpu_seconds(activity.thread)
        seen.seconds += passed
        seen.idle_seconds += passed
        if cpu_seconds > seen.cpu_seconds + _PROGRESS_SECONDS:
            seen.cpu_seconds, seen.idle_seconds = cpu_seconds, 0.0
        limit = self._patience.seconds + activity.more_seconds
        return seen.idle_seconds > limit or seen.seconds > _LONGEST * limit


def _cpu_seconds(thread: int) -> float:
    """The CPU that a thread of this process has used. One that has ended hangs nowhere: the time of the day, as if it went on."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read().split()[0]) * 1e-9
    except OSError:
        return time.monotonic()

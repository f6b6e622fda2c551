"""What happens when: one queue of events, a clock that goes from one to the next, and the processes that events belong to.

All is drawn from one seed, so one seed is one history.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

_MOST_EVENTS = 60_000


class Violation(AssertionError):
    """A rule of runs is broken."""


class Killed(BaseException):
    """A process is killed in the middle of what it does, by whoever raises this."""


@dataclass
class Process:
    """A process of a try, or a launcher. Nothing of it happens once it is `dead`, nor before `stopped_until`."""

    name: str
    attempt: int
    incarnation: int = 0
    dead: bool = False
    stopped_until: float = 0.0
    on_end: list[Callable[[], None]] = field(default_factory=list)

    def __str__(self) -> str:
        again = f".{self.incarnation}" if self.incarnation else ""
        return f"{self.name}#{self.attempt}{again}"


class World:
    """The clock, in seconds, the draws, and what is to happen. Faults happen before `calm` alone."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.draw = random.Random(seed)
        self.calm = 0.0
        self.trouble_until = 0.0  # of whatever goes wrong but for trainers that are killed
        self.seen: dict[str, int] = {}  # faults, tries and so on, by kind
        self.processes: list[Process] = []
        self.lines: list[tuple[float, str, str, tuple[object, ...]]] = []
        self.num_events = 0
        self._later: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._number = 0

    @property
    def is_calm(self) -> bool:
        """Whether no more faults come."""
        return self.now >= self.calm

    def count(self, kind: str) -> None:
        """Something has happened that histories are told apart by."""
        self.seen[kind] = self.seen.get(kind, 0) + 1

    def trouble(self, kind: str, seconds: float = 0.0) -> None:
        """A fault, which is one for so long."""
        self.count(kind)
        self.trouble_until = max(self.trouble_until, self.now + seconds)

    def note(self, who: object, text: str, *values: object) -> None:
        """Something for whoever reads this history: a format string and its values."""
        self.lines.append((self.now, str(who), text, values))

    def later(self, seconds: float, process: Process | None, what: Callable[[], None]) -> None:
        """Let something happen, in `process` where it is one's."""
        self._number += 1
        heapq.heappush(self._later, (self.now + seconds, self._number, process, what))

    def soon(self, process: Process | None, what: Callable[[], None], *, mean: float, after: float = 0.0) -> None:
        """Let something happen after a time of this mean, now and then ten times as late; and after the time `after` has come."""
        seconds = self.draw.random() * 2 * mean
        if self.draw.random() < 0.03:
            seconds *= 10
        self.later(max(0.0, after - self.now) + seconds, process, what)

    def begin(self, name: str, attempt: int, incarnation: int = 0) -> Process:
        """A new process."""
        self.processes.append(process := Process(name, attempt, incarnation))
        return process

    def kill(self, process: Process, how: str) -> None:
        """End a process at once."""
        if not process.dead:
            process.dead = True
            self.note(process, "dies: %s", how)
            for each in process.on_end:
                each()

    def run(self, until: Callable[[], bool]) -> None:
        """Go from event to event. Raises Violation where these end, or never do, before `until` is so."""
        later = self._later
        while not until():
            if not later:
                raise Violation("nothing happens any more, and the run is not over")
            at, _, process, what = heapq.heappop(later)
            self.now = at
            if process is not None:
                if process.dead:
                    continue
                if process.stopped_until > at:
                    self.later(process.stopped_until - at, process, what)
                    continue
            self.num_events += 1
            if self.num_events > _MOST_EVENTS:
                raise Violation("the run goes on for ever")
            try:
                what()
            except Killed as how:
                assert process
                self.kill(process, str(how))

"""The staleness gates of one device, and what they measure (HT 3.1.1).

Each stage that steps dense weights has a gate: a step is between its first read of those weights and its write of them while
the gate knows it. Gradients are computed and sent before the gate is asked, so a step that waits holds up nobody's backward pass.

All gates of a device can be closed for a while: a round of the sync at a fixed rate has the weights to itself (ShadowSync).
"""

import threading
from collections.abc import Sequence
from typing import Generic, TypeVar

from htrain.executor.engine.context import Context
from htrain.sync.staleness import StalenessGate

Job = TypeVar("Job")


class WriteGates(Generic[Job]):
    """`count` gates for at most `bound` steps under way; bound 0 lets everything through and only measures.

    `histogram[s]` counts the writes with staleness s: the writes of other steps between a step's read and its own write.
    Thread-safe. A job is whatever the caller wants back when its write may go on.
    """

    def __init__(self, count: int, bound: int) -> None:
        self.histogram: dict[int, int] = {}
        self._gates: list[StalenessGate[Context]] = [StalenessGate(bound) for _ in range(count if bound else 0)]
        self._written = [0] * count
        self._seen: list[dict[Context, int]] = [{} for _ in range(count)]
        self._jobs: dict[tuple[int, Context], Job] = {}
        self._held: list[Job] | None = None  # that may write once the gates are open again
        self._writing = 0
        self._lock = threading.Lock()
        self._rest = threading.Condition(self._lock)

    @property
    def is_bounded(self) -> bool:
        """Whether a step may have to wait for others before it writes."""
        return bool(self._gates)

    def begin(self, clocks: Sequence[int], context: Context) -> None:
        """The step is about to read weights of these clocks; those that it has read before do not begin again."""
        with self._lock:
            for clock in (clock for clock in clocks if context not in self._seen[clock]):
                self._seen[clock][context] = self._written[clock]
                if self._gates:
                    self._gates[clock].begin(context)

    def commit(self, clock: int, context: Context, job: Job) -> list[Job]:
        """The step has its gradients and would write. Return the jobs, this one or others, that may write now."""
        with self._lock:
            if not self._gates:
                return self._granted([job])
            self._jobs[clock, context] = job
            return self._granted(
                [self._jobs.pop((clock, grant.context)) for grant in self._gates[clock].commit(context)]
            )

    def end(self, clock: int, context: Context) -> list[Job]:
        """The step has written. Return the jobs that may write now."""
        with self._lock:
            if (seen := self._seen[clock].pop(context, None)) is not None:  # else its trainer is gone
                staleness = self._written[clock] - seen
                self.histogram[staleness] = self.histogram.get(staleness, 0) + 1
            self._written[clock] += 1
            self._writing -= 1
            self._rest.notify_all()
            if not self._gates:
                return []
            return self._granted([self._jobs.pop((clock, grant.context)) for grant in self._gates[clock].end(context)])

    def forget(self, context: Context) -> list[Job]:
        """The step comes from a trainer that is gone: where it has not asked to write, it never will. Return the jobs that may write now. A write that it has
        asked for goes on to its end.
        """
        with self._lock:
            granted: list[Job] = []
            for clock, seen in enumerate(self._seen):
                if self._gates:
                    grants = self._gates[clock].forget(context)
                    granted += [self._jobs.pop((clock, grant.context)) for grant in grants]
                    if self._gates[clock].knows(context):
                        continue
                seen.pop(context, None)
            return self._granted(granted)

    def knows(self, context: Context, clock: int | None = None) -> bool:
        """Whether the step is under way, at one clock or at any, where the gates are bounded."""
        with self._lock:
            gates = self._gates if clock is None else self._gates[clock : clock + 1]
            return any(gate.knows(context) for gate in gates)

    def hold(self) -> None:
        """Let nobody write from now on; who writes already goes on."""
        with self._lock:
            self._held = [] if self._held is None else self._held

    @property
    def is_held(self) -> bool:
        """Whether nobody may write."""
        return self._held is not None

    def await_rest(self, seconds: float) -> bool:
        """Wait until nobody writes; False where somebody still does after `seconds`. Requires: `hold`."""
        with self._rest:
            return self._rest.wait_for(lambda: self._writing == 0, seconds)

    def release(self) -> list[Job]:
        """Let writes through again. Return the jobs that have waited for it."""
        with self._lock:
            held, self._held = self._held or [], None
            return self._granted(held)

    def _granted(self, jobs: list[Job]) -> list[Job]:
        if self._held is not None:
            self._held += jobs
            return []
        self._writing += len(jobs)
        return jobs

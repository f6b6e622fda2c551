"""A gate that holds dense staleness within trainers x net replicas (HT 3.1.1).

Staleness of a step is the number of writes of others between its read and its write of a parameter. Plain Hogwild does not
bound it: while one replica is slow, a fast one may write any number of times. The gate lets fast steps overtake slow ones
until a slow one would be written past its bound, and no further.

A step begins (it will read), asks to commit (it has its gradients' seed and would write), and ends (all its writes have
landed). For a step c that has begun and not ended, w(c) counts the steps that may write while c is between its reads and its
writes: those in their write phase when c began, and those granted a commit since. True staleness of any parameter is at most w(c).

Rule. Let c_0, c_1, ... be the begun steps without a commit, in the order in which they began. A commit of x = c_j is granted iff
    w(c_i) + i + 1 <= bound   for every i < j      (those that x overtakes), and
    w(c) + 1 <= bound         for every step c in its write phase.
Invariant: w(c_i) + i <= bound for every c_i, w(c) <= bound for every step in its write phase. A begin keeps it, as at most `bound` steps are
under way at once; a grant moves x from "ahead" to "written" for those behind it, and is checked for the others.
No deadlock: steps in their write phase end by themselves, and then c_0 can always be granted.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class _Step:
    written: int
    committed: bool = False
    waiting: bool = False


@dataclass
class StalenessGate:
    """The gate of one dense replica, for at most `bound` steps under way at once."""

    bound: int
    _steps: dict[Hashable, _Step] = field(default_factory=dict)  # in the order in which they began

    def begin(self, step: Hashable) -> None:
        """`step` is about to read. Raises ValueError when more steps than `bound` would be under way, or it has begun."""
        if step in self._steps:
            raise ValueError(f"step {step} begins twice")
        if len(self._steps) >= self.bound:
            raise ValueError(f"step {step} begins while {len(self._steps)} are under way; the gate is made for {self.bound}")
        self._steps[step] = _Step(sum(s.committed for s in self._steps.values()))

    def commit(self, step: Hashable) -> list[Hashable]:
        """`step` asks to write; return the steps, this one or others, that may now."""
        self._steps[step].waiting = True
        return self._grant()

    def end(self, step: Hashable) -> list[Hashable]:
        """All writes of `step` have landed; return the steps that may write now."""
        del self._steps[step]
        return self._grant()

    def _grant(self) -> list[Hashable]:
        granted: list[Hashable] = []
        while (name := self._next()) is not None:
            chosen = self._steps[name]
            for other in self._steps.values():
                other.written += other is not chosen
            chosen.committed, chosen.waiting = True, False
            granted.append(name)
        return granted

    def _next(self) -> Hashable | None:
        """The oldest waiting step that the rule lets through."""
        if any(s.committed and s.written + 1 > self.bound for s in self._steps.values()):
            return None
        ahead = 0
        for name, step in self._steps.items():
            if step.committed:
                continue
            if step.waiting:
                return name
            if step.written + ahead + 1 > self.bound:
                return None  # nobody behind this one may overtake it
            ahead += 1
        return None

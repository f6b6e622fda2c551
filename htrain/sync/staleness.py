"""The gate that keeps the dense staleness of a group within trainers x net replicas (HT 2.3, 3.1.1).

The staleness of a step's write is the number of writes by other net replicas to the same parameter between the step's
read of it (forward) and its write (backward). A step writes a parameter at most once, so what counts is the number of
other steps whose *write phase* touches the time from this step's `begin` to its `end`:

    step c        begin ───── reads ───── commit ··· waits ··· granted ───── writes ───── end
    missed(c)     the steps in their write phase at c's begin, and one more for each step granted until c's end

so the true staleness of each write of c is at most `missed(c)` at c's end, whenever in its phases c reads and writes.

**Invariant.** Let c_1, ..., c_n be the steps that have begun and may not write yet, oldest first. After every event

    (A) missed(c_i) + (i - 1) <= bound    for i = 1..n: room for the i - 1 older ones to be granted before it
    (B) missed(d) <= bound                for every step d in its write phase

- *It holds.* `begin` adds c_{n+1} with missed = number of writers: missed + n is the number of other steps in flight,
  below `bound`: a replica hears of its step's last write behind the gate's `end` (`Engine.run`), and only then begins
  its next. A grant to c_k adds 1 to what all others have missed: a writer d and an older c_i (i < k) are checked
  before; a younger c_j gains one missed write but loses one older step; c_k itself had (A) and so has (B). `end` and
  `leave` only remove steps. By (B), then, no staleness exceeds `bound`.
- *No deadlock.* By (A) the oldest step, c_1, asks nothing of others but (B): that no writer is at `bound`. Writers wait
  for nobody and end, so c_1 is granted at its commit or when a writer ends.
- *No needless wait.* missed(c_1) >= missed(c_2) >= ..., for an older step has missed all that a younger one has. Were
  (A) broken at i, whichever of c_1..c_i is granted last would miss at least missed(c_i) + i - 1 > `bound`. To a gate
  that knows the phases and not what happens inside them, every refusal is forced.
- *Oldest first.* What refuses c_k, a full writer or an older step without room, refuses all younger ones, too.

**Several gates.** A group may have one gate per unit of parameters, each where its parameters live. No circle of waits
arises, though each gate may see the steps begin in another order, if a write phase waits for nothing and all steps
commit to the gates in the same order (a partial one, such as that of the backward stages, will do). Take the first gate
at which a step waits: its oldest step waits neither there, where it would be granted, nor at an earlier gate, so it can
go on.

A step counts all that write at its begin, so long write phases make all wait: commit when the gradients are there, and
let the write phase be the optimizer steps alone.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from htrain.errors import ClusterError


class Context(Hashable, Protocol):
    """A step of a net replica. Any hashable value with a `trainer` serves; it must differ from all others in flight."""

    @property
    def trainer(self) -> Hashable:
        """Whose step it is: `leave` forgets the steps of a trainer by it."""


C = TypeVar("C", bound=Context)


class Phase(Enum):
    """Where a step stands: it reads, it has asked to write and waits, or it writes."""

    READING = "reading"
    WAITING = "waiting"
    WRITING = "writing"


@dataclass(frozen=True)
class Grant(Generic[C]):
    """Instruction: `context` may enter `phase`, READING (answers `begin`) or WRITING (answers `commit`)."""

    context: C
    phase: Phase


@dataclass
class _Step:
    phase: Phase
    missed: int


class StalenessGate(Generic[C]):
    """Decides when each step in flight may write dense parameters. All methods return what is granted now, in order.

    `bound` is trainers x net replicas of the group, which is also the number of steps that can be in flight. To wait
    little, begin late: when the batch and its rows are there. Raises ClusterError if `bound` is below 1.
    """

    def __init__(self, bound: int) -> None:
        if bound < 1:
            raise ClusterError(
                f"dense staleness bound is {bound}: want trainers x net replicas, at least 1; set both to 1 or more"
            )
        self.bound = bound
        self._steps: dict[C, _Step] = {}  # all steps in flight, in the order of their `begin`

    def begin(self, context: C) -> list[Grant[C]]:
        """The step is about to read. Granted at once."""
        assert context not in self._steps, f"{context} begins twice"
        assert len(self._steps) < self.bound, f"{context} begins beside {len(self._steps)} others, bound {self.bound}"
        num_writing = sum(step.phase is Phase.WRITING for step in self._steps.values())
        self._steps[context] = _Step(Phase.READING, missed=num_writing)
        return [Grant(context, Phase.READING)]

    def commit(self, context: C) -> list[Grant[C]]:
        """The step has read all that it will and asks to write. Its grant comes now or with a later event."""
        self._expect(context, Phase.READING)
        self._steps[context].phase = Phase.WAITING
        return self._grant_waiting()

    def end(self, context: C) -> list[Grant[C]]:
        """The step's last write has landed."""
        self._expect(context, Phase.WRITING)
        del self._steps[context]
        return self._grant_waiting()

    def leave(self, trainer: Hashable) -> list[Grant[C]]:
        """The trainer has gone away: forget its steps, in whatever phase. None of their writes may land from now on."""
        self._steps = {context: step for context, step in self._steps.items() if context.trainer != trainer}
        return self._grant_waiting()

    def forget(self, context: C) -> list[Grant[C]]:
        """The step will not come back: forget it if it has not asked to write. One that has goes on to its end."""
        step = self._steps.get(context)
        if step is None or step.phase is not Phase.READING:
            return []
        del self._steps[context]
        return self._grant_waiting()

    def knows(self, context: C) -> bool:
        """Whether the step is in flight."""
        return context in self._steps

    def missed(self, context: C) -> int:
        """The most writes of others that a write of `context` can have missed so far; at most `bound`."""
        return self._steps[context].missed

    def waiting(self) -> list[C]:
        """The steps whose commit is not granted yet, oldest first, for the error of a deadline."""
        return [context for context, step in self._steps.items() if step.phase is Phase.WAITING]

    def _expect(self, context: C, phase: Phase) -> None:
        seen = self._steps[context].phase.value if context in self._steps else "not in flight"
        assert seen == phase.value, f"{context} is {seen}; want {phase.value}"

    def _grant_waiting(self) -> list[Grant[C]]:
        grants = []
        for context in self.waiting():
            if not self._fits(context):
                break  # what refuses it refuses all younger ones
            self._grant(context)
            grants.append(Grant(context, Phase.WRITING))
        return grants

    def _fits(self, candidate: C) -> bool:
        """Whether (A) and (B) hold after a grant to `candidate`, which adds 1 to what every other step has missed."""
        num_older = 0
        younger = False
        for context, step in self._steps.items():
            if context == candidate:
                younger = True
            elif step.phase is Phase.WRITING:
                if step.missed + 1 > self.bound:
                    return False
            elif not younger:
                if step.missed + 1 + num_older > self.bound:
                    return False
                num_older += 1
        return True

    def _grant(self, context: C) -> None:
        for other in self._steps.values():
            other.missed += 1
        self._steps[context].missed -= 1
        self._steps[context].phase = Phase.WRITING

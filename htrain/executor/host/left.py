"""What the process of a role leaves to the next one, in memory that outlives it (docs/decisions/recovery.md)."""

from dataclasses import dataclass

from htrain.executor.host.journal import Journal
from htrain.executor.host.parameter_memory import ParameterMemory
from htrain.net.names import GROUP_PS, role_of


@dataclass(frozen=True)
class Left:
    """A trainer's `journal`, by which another goes on where it was; the parameters of a PS in what is `kept`. `needs_more`: another would need what cannot be
    had."""

    journal: Journal | None = None
    kept: ParameterMemory | None = None
    needs_more: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether another process could go on with it."""
        return not self.needs_more and (self.kept is None or self.kept.is_whole)

    def close(self) -> None:
        """Let the memory go, once no process of the role uses it."""
        for memory in (self.journal, self.kept):
            if memory:
                memory.close()


NOTHING_LEFT = Left()


def left_by(role: str) -> Left:
    """What the processes of a role will leave to each other, where it may be begun again alone: a group PS its weights, others no more than where they are."""
    if role_of(role) != GROUP_PS:
        return Left(Journal())
    try:
        return Left(kept=ParameterMemory(role))
    except OSError:  # no such memory here
        return Left(needs_more=True)

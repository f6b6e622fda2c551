"""What the process of a role leaves to the next one, in memory that outlives it (docs/decisions/recovery.md)."""

from dataclasses import dataclass

from htrain.executor.host.journal import Journal
from htrain.executor.host.kept import Kept


@dataclass(frozen=True)
class Left:
    """A trainer's `journal`, by which another goes on where it was; the parameters of a PS in what is `kept`."""

    journal: Journal | None = None
    kept: Kept | None = None

    @property
    def is_whole(self) -> bool:
        """Whether another process could go on with it."""
        return self.kept is None or self.kept.is_whole

    def close(self) -> None:
        """Let the memory go, once no process of the role uses it."""
        for memory in (self.journal, self.kept):
            if memory:
                memory.close()


NOTHING_LEFT = Left()

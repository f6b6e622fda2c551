"""What a role's share of the next checkpoint builds on, decided without a disk (docs/decisions/checkpoints.md).

Most rows of a table are as they were a minute ago. So a share holds those that are not as in the last whole one, and names it (Check-N-Run's differential
checkpoints). Shares grow from one to the next; a role writes a whole one again as soon as that makes fewer bytes of a checkpoint, in the mean since the last.
"""

from dataclasses import dataclass, field

from htrain.executor.record.checkpoint import Base, SavedFile

_LEAST_BYTES = 16 << 20  # of a whole share: less is not worth a look at the one before
_HALF = 2
_REMEMBERED = 3  # the last one that is valid, one that became none, and the newest
_RESTS = 8  # shares are written whole before one is tried again, where more than half of the rows had changed


@dataclass
class _Cycle:
    """A whole share, and the bytes of those that have been built on it."""

    base: Base
    sizes: list[int] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether another one on top, as large as the last, would cost more than the mean of all."""
        so_far = self.base.num_bytes + sum(self.sizes)
        return bool(self.sizes) and self.sizes[-1] * (1 + len(self.sizes)) >= so_far


class Deltas:
    """The shares of one role, by the names of their checkpoints, of which the newest are remembered."""

    def __init__(self, least_bytes: int = _LEAST_BYTES) -> None:
        self._least_bytes = least_bytes
        self._cycles: dict[str, _Cycle] = {}
        self._rest = 0

    def are_for(self, num_bytes: int) -> bool:
        """Whether shares of so many bytes may build on others."""
        return num_bytes >= self._least_bytes

    def base(self, last: str) -> Base | None:
        """What the next share may build on, where the checkpoint of the name `last` is valid; None for nothing: it is to be whole."""
        cycle = self._cycles.get(last)
        if cycle is None or not self.are_for(cycle.base.num_bytes) or cycle.is_over:
            return None
        if self._rest:
            self._rest -= 1
            return None
        return cycle.base

    def written(self, checkpoint: str, saved: SavedFile, base: Base | None) -> None:
        """The role's share of a checkpoint is there, whether or not that one becomes valid."""
        cycle = next((each for each in self._cycles.values() if each.base == base), None) if base else None
        if cycle is None:
            cycle = _Cycle(base or Base(checkpoint, saved.num_bytes, saved.digest))
        if base:
            if not cycle.sizes and saved.num_bytes * _HALF > base.num_bytes:
                self._rest = _RESTS
            cycle.sizes.append(saved.num_bytes)
        self._cycles[checkpoint] = cycle
        while len(self._cycles) > _REMEMBERED:
            del self._cycles[next(iter(self._cycles))]

    def refused(self) -> None:
        """A share could not be written: nothing is built on what may be why."""
        self._cycles.clear()

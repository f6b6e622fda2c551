"""When checkpoints are whole, and what a role's share of another one builds on; decided without a disk (docs/decisions/checkpoints.md).

Most rows of a table are as they were a minute ago. So a share holds those that are not as in the last whole one, and names it (Check-N-Run's differential
checkpoints). Shares grow from one to the next; all roles write whole ones again, at once, as soon as that makes fewer bytes of a checkpoint, in the mean since
the last. Each at its own time would have checkpoints build on one another without an end: one is the base of some roles, and builds on another for the rest.
"""

from htrain.executor.record.checkpoint import Base, SavedFile

_LEAST_BYTES = 16 << 20  # of a whole share: less is not worth a look at the one before
_HALF = 2
_REMEMBERED = 3  # the last one that is valid, one that became none, and the newest
_RESTS = 8  # checkpoints are whole before another is tried on top, where more than half of the rows had changed
_MOST_ON_TOP = 30  # of one checkpoint: where as many rows change each time, bytes alone would never have another whole one, and a spoiled bit would take all


class Wholes:
    """The checkpoints of a run since it began, or began again: which of them have to be whole. The first has to."""

    def __init__(self) -> None:
        self._whole_bytes = 0  # of the last whole one; 0 where there is none to build on
        self._sizes: list[int] = []  # in bytes, of those on top
        self._rest = 0

    @property
    def is_due(self) -> bool:
        """Whether the next is to be whole: another one on top, as large as the last, would cost more than the mean of all, or would be one too many."""
        if not self._whole_bytes or self._rest or len(self._sizes) >= _MOST_ON_TOP:
            return True
        return bool(self._sizes) and self._sizes[-1] * (1 + len(self._sizes)) >= self._whole_bytes + sum(self._sizes)

    def made(self, num_bytes: int, *, is_on_top: bool) -> None:
        """A checkpoint of so many bytes is valid, in which some role has built on the last whole one, or none."""
        if not is_on_top:
            self._whole_bytes, self._sizes = num_bytes, []
            self._rest = max(0, self._rest - 1)
            return
        if not self._sizes and num_bytes * _HALF > self._whole_bytes:
            self._rest = _RESTS
        self._sizes.append(num_bytes)

    def refused(self) -> None:
        """A checkpoint could not be written: nothing is built on what may be why."""
        self._whole_bytes = 0


class Deltas:
    """The shares of one role, by the names of their checkpoints, of which the newest are remembered."""

    def __init__(self, least_bytes: int = _LEAST_BYTES) -> None:
        self._least_bytes = least_bytes
        self._bases: dict[str, Base] = {}

    def are_for(self, num_bytes: int) -> bool:
        """Whether shares of so many bytes may build on others."""
        return num_bytes >= self._least_bytes

    def base(self, last: str) -> Base | None:
        """What the next share may build on, where the checkpoint of the name `last` is valid; None for nothing: it is to be whole."""
        base = self._bases.get(last)
        return base if base and self.are_for(base.num_bytes) else None

    def written(self, checkpoint: str, saved: SavedFile, base: Base | None) -> None:
        """The role's share of a checkpoint is there, whether or not that one becomes valid."""
        self._bases[checkpoint] = base or Base(checkpoint, saved.num_bytes, saved.digest)
        while len(self._bases) > _REMEMBERED:
            del self._bases[next(iter(self._bases))]

    def refused(self) -> None:
        """A share could not be written: nothing is built on what may be why."""
        self._bases.clear()

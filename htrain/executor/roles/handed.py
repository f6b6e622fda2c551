"""Which batches of its data a trainer has trained, and from where another process of it goes on; decided without threads (docs/decisions/recovery.md).

hand       a batch comes to its turn                 -> whether it was trained already, and nobody is to take it
taken      a replica begins its step
ended      its step has ended
word       from where another process would go on, should this one end now
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from htrain.data import Position


@dataclass
class _Handed:
    """A batch that a replica has, up to a position."""

    position: Position
    has_ended: bool = False


class GoesOn(msgspec.Struct, frozen=True):
    """From where a trainer goes on that is begun again alone: as Handed has it. Of the batches that replicas had, `open` were not trained to their ends, and
    are trained again."""

    position: Position
    totals: Any
    trained: list[Position]
    open: int


class Handed:
    """The batches of one trainer, which its replicas are handed in their order. `position` is where a resumed run goes on: all before it is on its way, or
    trained. All before `start` is trained; of what is behind it, `trained` says which batches are. Not thread-safe.

    One that begins with batches that have been `trained` already passes them over; until it has come to the last of these it `is_behind`. Where nobody is to
    go on alone, it `keeps` nothing of what is behind `start`.
    """

    def __init__(self, position: Position, trained: Collection[Position] = (), *, keeps: bool = True) -> None:
        self._keeps = keeps
        self.position = self.start = position
        self._passed = frozenset(trained)
        self._furthest = max(trained, default=position, key=_order)
        self._handed: deque[_Handed] = deque()

    def hand(self, position: Position) -> bool:
        """A batch up to this position comes to its turn: whether it was trained already. Where it was not, somebody takes it."""
        is_trained = position in self._passed
        if self._keeps:
            self._handed.append(_Handed(position, has_ended=is_trained))
        if is_trained:
            self.taken(position)
        self._advance()
        return is_trained

    def taken(self, position: Position) -> None:
        """A batch is on its way, and so are all before it."""
        self.position = max(self.position, position, key=_order)

    def ended(self, position: Position) -> None:
        """The batch up to this position is trained."""
        for handed in self._handed:
            if handed.position == position:
                handed.has_ended = True
        self._advance()

    def _advance(self) -> None:
        while self._handed and self._handed[0].has_ended:
            self.start = self._handed.popleft().position

    @property
    def trained(self) -> list[Position]:
        """The ends of batches behind `start` that are trained."""
        later = [position for position in self._passed if _order(position) > _order(self.start)]
        handed = [handed.position for handed in self._handed if handed.has_ended]
        return sorted({*later, *handed}, key=_order)

    @property
    def num_kept(self) -> int:
        """The batches behind `start` that replicas have, or have trained."""
        return len(self._handed)

    @property
    def num_open(self) -> int:
        """The batches that replicas have and have not trained to their ends."""
        return sum(not handed.has_ended for handed in self._handed)

    @property
    def is_behind(self) -> bool:
        """Whether `position` is before what has been trained: a run that goes on from there would train it again."""
        return _order(self.position) < _order(self._furthest)

    def word(self, totals: Any) -> bytes:
        """From where another process would go on, should this one end now; with what it has done, a dataclass or a mapping."""
        return msgspec.msgpack.encode(GoesOn(self.start, totals, self.trained, self.num_open))


def _order(position: Position) -> tuple[int, int, int]:
    return position.epoch, position.chunk, position.row

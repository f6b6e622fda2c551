"""Requests in the order in which each source numbered them, each once (docs/guarantees.md)."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class InOrder(Generic[Item]):
    """Sources number their requests 0, 1, 2, ...; a repeated one is dropped, one that came too early waits for those before it."""

    def __init__(self) -> None:
        self._next: dict[Hashable, int] = {}
        self._early: dict[Hashable, dict[int, Item]] = {}

    def is_past(self, source: Hashable, number: int) -> bool:
        """Whether this request has had its turn."""
        return number < self._next.get(source, 0)

    def admit(self, source: Hashable, number: int, item: Item) -> list[Item]:
        """Take a request; the ones whose turn it is now, in order."""
        if self.is_past(source, number):
            return []
        early = self._early.setdefault(source, {})
        early.setdefault(number, item)
        turn, due = self._next.get(source, 0), []
        while turn in early:
            due.append(early.pop(turn))
            turn += 1
        self._next[source] = turn
        return due


class Rounds(Generic[Item]):
    """Round r ends when `size` sources have come to it; none goes on before (bulk synchronous)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: dict[int, list[Item]] = {}

    def arrive(self, number: int, item: Item) -> list[Item]:
        """One source has come to round `number`: everybody who waits there, if it was the last."""
        waiting = self._waiting.setdefault(number, [])
        waiting.append(item)
        return self._waiting.pop(number) if len(waiting) == self._size else []

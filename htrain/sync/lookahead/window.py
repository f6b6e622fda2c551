"""How many batches to look ahead: enough that training never waits and that a window's cost is nothing beside its steps, and no more (cDLRM 4).

A window that is larger than it has to be takes memory for rows that nobody wants yet, and drives rows out of each other's sets: of a cache that was not made
for it, more rows are conflict victims, which their steps wait for (cDLRM 7.1, Figure 3).
"""

_FIRST = 8  # batches of the first window: training begins as soon as these are there
_DEAR = 0.01  # caching may take this share of the time of the steps that it serves
_ROOM = 0.8  # prefetching that takes this share of the time of training will make it wait now and then
_HALF = 0.4  # of what it may cost, a window of twice the size has to stay below: half of it costs up to twice as much of its steps' time
_CALM = 4  # windows in a row that do, before the next is halved
_LONGEST_CALM = 1024


class WindowChoice:
    """`batches` is the size of the next window.

    It doubles, up to `most`, while windows cost too much or training waits for them. It is halved where windows of half the size would do, or where their
    conflict victims cost more than they do; where that turns out to be wrong, the next try is twice as far away.
    """

    def __init__(self, most: int) -> None:
        self.batches = min(_FIRST, most)
        self.stalls = 0
        self.most = most
        self._least = self.batches
        self._last = 0
        self._calm = 0  # windows in a row that were larger than they had to be
        self._patience = _CALM
        self._was_halved = False

    def trained(
        self,
        *,
        batches: int,
        train_seconds: float,
        prefetch_seconds: float,
        place_seconds: float,
        stall_seconds: float,
        victim_seconds: float = 0.0,
    ) -> None:
        """A window of `batches` is about to be trained on; the one before it took `train_seconds`, `victim_seconds` of them for conflict victims, and the
        trainer waited `stall_seconds` for this one, which was `prefetch_seconds` in the making."""
        steps, self._last = self._last, batches
        if not steps:  # nothing was trained while the first one was made
            return
        window_seconds = train_seconds / steps * batches
        stalled = stall_seconds > _DEAR * train_seconds
        self.stalls += stalled
        cost = max(
            place_seconds / _DEAR, prefetch_seconds / _ROOM
        )  # of what a window may cost, all of it at the window's own seconds
        crowded = not stalled and victim_seconds > max(_DEAR * train_seconds, 2 * place_seconds)
        if stalled or (cost > window_seconds and not crowded):
            self._grow()
        elif crowded or cost < _HALF * window_seconds:
            self._rest()
        else:
            self._calm = 0

    def _grow(self) -> None:
        self._calm = 0
        if self._was_halved:
            self._patience = min(2 * self._patience, _LONGEST_CALM)
            self._was_halved = False
        self.batches = min(self.most, 2 * self.batches)

    def _rest(self) -> None:
        self._calm += 1
        if self._calm >= self._patience and self.batches > self._least:
            self._calm, self._was_halved = 0, True
            self.batches = max(self._least, self.batches // 2)

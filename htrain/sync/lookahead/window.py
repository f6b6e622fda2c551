"""How many batches to look ahead: enough that training never waits and that a window's cost is nothing beside its steps (cDLRM 4)."""

_FIRST = 8  # batches of the first window: training begins as soon as these are there
_DEAR = 0.01  # caching may take this share of the time of the steps that it serves
_ROOM = 0.8  # prefetching that takes this share of the time of training will make it wait now and then


class WindowChoice:
    """`batches` is the size of the next window: it doubles, up to `most`, while windows cost too much or training waits for them."""

    def __init__(self, most: int) -> None:
        self.batches = min(_FIRST, most)
        self.stalls = 0
        self.most = most
        self._last = 0

    def trained(
        self, *, batches: int, train_seconds: float, prefetch_seconds: float, place_seconds: float, stall_seconds: float
    ) -> None:
        """A window of `batches` is about to be trained on; the one before it took `train_seconds`, the trainer waited `stall_seconds` for this
        one, which was `prefetch_seconds` in the making."""
        steps, self._last = self._last, batches
        if not steps:  # nothing was trained while the first one was made
            return
        step_seconds = train_seconds / steps
        stalled = stall_seconds > _DEAR * train_seconds
        self.stalls += stalled
        window_seconds = step_seconds * batches
        if stalled or place_seconds > _DEAR * window_seconds or prefetch_seconds > _ROOM * window_seconds:
            self.batches = min(self.most, 2 * self.batches)

"""When a version of the model is to be published, and what is told of it; decided without a clock."""

import math

from htrain.executor.settings import RunSettings

_SLOW_SECONDS = 60.0  # under way: then it is told
_AGAIN_SECONDS = 30.0  # after one that could not be published, where the next is not due sooner


class PublishSchedule:
    """The versions of one run, one at a time. `due` is the time of the next, `slow` when the one that is under way is to be called slow, `error` why the last
    one could not be published."""

    def __init__(self, settings: RunSettings) -> None:
        self.is_wanted = settings.publishing is not None
        self.is_running = False
        self.due = self.slow = math.inf
        self.error = ""
        self._is_closing = False
        self._next = math.inf
        self._every_seconds = math.inf
        if settings.publishing and settings.publish_seconds != "end":
            self._every_seconds = settings.publish_seconds

    def begin(self, now: float) -> None:
        """Training begins."""
        self.due = now + self._every_seconds

    def begun(self, now: float) -> None:
        """A version is under way: no other is due until it has ended."""
        self.is_running, self._is_closing = True, False
        self.due, self._next = math.inf, now + self._every_seconds
        self.slow = now + _SLOW_SECONDS

    def is_written_by(self, roles: int, *, of: int) -> bool:
        """Whether all roles have just written their shares: True once of each version."""
        if not self.is_running or self._is_closing or roles < of:
            return False
        self._is_closing = True
        return True

    def told_slow(self) -> str:
        """What to tell, once, of a version that takes long: of a storage that does not answer nothing else is heard."""
        self.slow = math.inf
        return f"a version is still being written after {_SLOW_SECONDS:.0f} s; training goes on"

    def ended(self, news: str, error: str, now: float) -> str:
        """The version is there for readers, or is not, for this `error`; what to tell of it."""
        self.is_running, self.error, self.slow = False, error, math.inf
        self.due = max(now, self._next)
        if not error:
            return news
        if self._every_seconds == math.inf:
            return f"not published: {error}"
        self.due = now + min(self._every_seconds, _AGAIN_SECONDS)
        return f"not published: {error}; training goes on, it is tried again in {self.due - now:.0f} s"

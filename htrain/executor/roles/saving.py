"""When a run's checkpoints are due, what a user can do without a later one, and what is told of them; decided without a clock."""

import math
from pathlib import Path

from htrain.executor.settings import RunSettings

_AGAIN_SECONDS = 30.0  # after one that was refused, where they are not due sooner


_GOES_ON, _BEGINS_ANEW = "go on with --resume ", "it has no checkpoint to go on from: "


def without_advice(text: str) -> str:
    """What has gone wrong, of an error that ends with `SaveSchedule.advice`."""
    for advice in (_GOES_ON, _BEGINS_ANEW):
        text = text.partition(f"; {advice}")[0]
    return text


class SaveSchedule:
    """The checkpoints of one run, the one that it was resumed from included.

    `last` is the folder of the latest, `error` why there is no later one, `due` the time of the next.
    """

    def __init__(self, settings: RunSettings) -> None:
        self.last: Path | None = Path(settings.restore) if settings.restore else None
        self.error = ""
        self.due = math.inf
        self._run_folder = settings.run_folder
        self._every_seconds = math.inf if settings.checkpoint_seconds == "end" else settings.checkpoint_seconds

    def begin(self, now: float) -> None:
        """Training begins."""
        self.due = now + self._every_seconds

    @property
    def advice(self) -> str:
        """What the user can do when the run ends now."""
        if self.last:
            return f"{_GOES_ON}{self._run_folder}"
        return f"{_BEGINS_ANEW}remove {self._run_folder} and start again"

    def made(self, folder: Path, now: float) -> str:
        """A checkpoint is valid; the news of it."""
        self.last, self.error = folder, ""
        self.due = now + self._every_seconds
        return f"checkpoint {folder}"

    def refused(self, error: str, now: float) -> str:
        """The disk has refused a checkpoint, which is tried again unless only the last is wanted; the news of it."""
        self.error = error
        is_once = self._every_seconds == math.inf
        seconds = math.inf if is_once else min(self._every_seconds, _AGAIN_SECONDS)
        self.due = now + seconds
        again = "" if is_once else f", it is tried again in {seconds:.0f} s"
        return f"no checkpoint: {error}; training goes on{again}"

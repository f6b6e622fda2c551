"""When a run's checkpoints are due, what a user can do without a later one, and what is told of them; decided without a clock."""

import math
from dataclasses import dataclass
from pathlib import Path

from htrain.executor.record.checkpoint import SavedFile
from htrain.executor.record.deltas import Wholes
from htrain.executor.roles.coordination import States
from htrain.executor.settings import RunSettings
from htrain.printable import as_word

_SLOW_SECONDS = 60.0  # under way: then it is told
_AGAIN_SECONDS = 30.0  # after one that was refused, where they are not due sooner


_GOES_ON, _BEGINS_ANEW = "go on with --resume ", "it has no checkpoint to go on from: "


def without_advice(text: str) -> str:
    """What has gone wrong, of an error that ends with `SaveSchedule.advice`."""
    for advice in (_GOES_ON, _BEGINS_ANEW):
        text = text.partition(f"; {advice}")[0]
    return text


@dataclass(frozen=True)
class Writing:
    """A checkpoint that roles write, of trainers in these states. `began` is when they were told to rest, and
    `stood_still` for how many seconds; it `validates` if a validation waits for it, and is the last of a run that has `finished`."""

    folder: Path
    trainers: States
    began: float
    stood_still: float
    validates: bool = False
    finished: bool = False


class SaveSchedule:
    """The checkpoints of one run, the one that it was resumed from included, one at a time.

    `last` is the folder of the latest, `error` why there is no later one, `due` the time of the next; `writing` is the one that roles write, and `slow` when
    it is to be called so.
    """

    def __init__(self, settings: RunSettings) -> None:
        self.last: Path | None = Path(settings.restore) if settings.restore else None
        self.error = ""
        self.due = self.slow = math.inf
        self.writing: Writing | None = None
        self._wholes = Wholes()
        self._run_folder = settings.run_folder
        self._every_seconds = math.inf if settings.checkpoint_seconds == "end" else settings.checkpoint_seconds

    def begin(self, now: float) -> None:
        """Training begins."""
        self.due = now + self._every_seconds

    @property
    def base(self) -> str:
        """The name of the checkpoint before the next, which may build on what that one has or builds on; "" for one that is to be whole."""
        return self.last.name if self.last and not self._wholes.is_due else ""

    @property
    def advice(self) -> str:
        """What the user can do when the run ends now."""
        if self.last:
            return f"{_GOES_ON}{as_word(self._run_folder)}"
        return f"{_BEGINS_ANEW}remove {as_word(self._run_folder)} and start again"

    def begun(self, writing: Writing, now: float) -> None:
        """Roles write one: no other is due until it is made, or refused."""
        assert self.writing is None
        self.writing = writing
        self.due, self.slow = math.inf, now + _SLOW_SECONDS

    def told_slow(self) -> str:
        """What to tell, once, of one that takes long."""
        self.slow = math.inf
        return f"a checkpoint is still being written after {_SLOW_SECONDS:.0f} s; training goes on"

    def made(self, saved: States, now: float) -> str:
        """The one that was written is valid, of what roles have `saved`; the news of it."""
        assert self.writing
        self._wholes.made(
            sum(SavedFile(*state["file"]).num_bytes for state in saved.values() if state.get("file")),
            is_on_top=any(state.get("base") for state in saved.values()),
        )
        made, self.writing = self.writing, None
        self.last, self.error, self.slow = made.folder, "", math.inf
        self.due = max(now, made.began + self._every_seconds)
        return f"checkpoint {made.folder} (training stood still for {made.stood_still:.2f} s, written after {now - made.began:.1f} s)"

    def refused(self, error: str, now: float, *, is_last: bool = False) -> str:
        """The disk has refused a checkpoint, which is tried again unless only the last is wanted; the news of it. One that `is_last` is tried again by whoever
        wants it."""
        self.error, self.writing, self.slow = error, None, math.inf
        self._wholes.refused()
        is_once = self._every_seconds == math.inf
        seconds = math.inf if is_once else min(self._every_seconds, _AGAIN_SECONDS)
        self.due = now + seconds
        again = "" if is_once else f", it is tried again in {seconds:.0f} s"
        return f"no checkpoint: {error}; " + (
            "training is over, it is tried again" if is_last else f"training goes on{again}"
        )

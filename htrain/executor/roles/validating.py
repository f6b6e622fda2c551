"""When a checkpoint of a run is taken to be validated, and what its validations ask of the run; decided without a clock."""

from htrain.errors import Error


class ValidationSchedule:
    """The validations of one run: one at a time, each of a checkpoint that is the newest when it begins.

    They are due at every multiple of `every` examples of the whole job, or never (0) before its end; `validated` examples had been trained at the last one.
    `stops` says why they end the run, "" while it goes on; `error` is what ended them.
    """

    def __init__(self, *, every: int, validated: int) -> None:
        self.stops = ""
        self.error: Error | None = None
        self._every = every
        self._validated = validated
        self._is_running = False

    @property
    def ends_run(self) -> bool:
        """Whether the run is to end before its data does."""
        return bool(self.stops or self.error)

    def is_due(self, examples: int) -> bool:
        """Whether a checkpoint is to be taken now. While one is validated, none is: a later one takes the place of all that were due in between."""
        if not self._every or self._is_running:
            return False
        return examples // self._every > self._validated // self._every

    def begun(self, examples: int, *, is_saved: bool) -> None:
        """The checkpoint that was due is written, and will be validated; or the disk has refused it: then the next that is due is waited for."""
        self._validated = max(examples, self._validated)
        self._is_running = is_saved

    def refused(self) -> None:
        """The disk has refused the checkpoint after all: the next that is due is waited for."""
        self._is_running = False

    def ended(self, stops: str, error: Error | None) -> None:
        """What is validated is known, or could not be, for this `error`; `stops` says why the run is to end."""
        self._is_running = False
        self.stops = self.stops or stops
        self.error = self.error or error

"""Whether a run whose role died, fell silent or hung is begun again, and when (docs/guarantees.md); decided without a clock.

A run goes on by itself as long as it gets further: failures count in a row, and a checkpoint made between two of them ends the row. The first time it goes
on at once, then after 1, 2, 4 seconds and so on: a host that is about to restart, or a file system that is away, may be back by then.
"""

MOST_SECONDS = 30.0  # between two tries


class Retries:
    """The tries of one run, of which `most` in a row may fail without a checkpoint between them, besides the first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.in_a_row = 0
        self.count = 0  # of all
        self._checkpoint = ""  # at the last failure

    def failed(self, checkpoint: str) -> float | None:
        """The run has failed, and would go on from a checkpoint of this name, "" for its beginning: the seconds to wait before; None where it is to end."""
        if self.count and checkpoint != self._checkpoint:
            self.in_a_row = 0
        self._checkpoint = checkpoint
        if self.in_a_row >= self.most:
            return None
        self.in_a_row += 1
        self.count += 1
        return 0.0 if self.in_a_row == 1 else min(MOST_SECONDS, 2.0 ** (self.in_a_row - 2))

    @property
    def ended(self) -> str:
        """Why no more are made, for an error; "" where none were to be made."""
        if not self.most:
            return ""
        tries = "1 more try" if self.in_a_row == 1 else f"{self.in_a_row} more tries"
        return f"{tries} without a checkpoint between them failed, too"

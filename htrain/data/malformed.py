"""Malformed rows: counted, remembered by file and line, and too many of them end the run."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from htrain.errors import DataError

_AT_LEAST = 10  # malformed rows, below which the share says nothing
_REMEMBERED = 5  # malformed rows that an error shows


def left_out(count: int, example: str) -> str:
    """What to tell of `count` malformed rows, of which an `example` says where it stands and what is wrong; "" of none."""
    if not count:
        return ""
    which = "1 malformed row left out, " if count == 1 else f"{count:,} malformed rows left out, such as "
    return f"{which}{example}"


@dataclass
class Malformed:
    """The malformed rows of one reader. More than `share` of the rows read so far, and more than ten, raise DataError."""

    share: float = 0.01
    count: int = 0
    rows: int = 0
    examples: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def example(self) -> str:
        """Where the first malformed row stands, and what is wrong with it; "" before there is one."""
        return next(iter(self.examples), "")

    def saw(self, rows: int, bad: int, describe: Callable[[int], str]) -> None:
        """Count `rows` more rows, of which `bad` are malformed; `describe(i)` says where and why one is: 'file:line:
        reason'.

        Only the first few are described, as finding the number of a line may mean to read the file again. Raises
        DataError where too many rows are malformed.
        """
        with self._lock:
            self.rows += rows
            self.count += bad
            self.examples += [describe(i) for i in range(min(bad, _REMEMBERED - len(self.examples)))]
            if self.count > max(_AT_LEAST, self.share * self.rows):
                raise DataError(
                    f"{self.examples[0]} ({self.count} of {self.rows} rows are malformed, {f'at most {self.share:.1%}' if self.share else 'none'} may be)"
                )

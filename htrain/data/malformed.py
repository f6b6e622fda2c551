"""Malformed rows: counted, remembered by file and line, and too many of them end the run."""

import threading
from dataclasses import dataclass, field

from htrain.errors import DataError

_AT_LEAST = 10


@dataclass
class Malformed:
    """The malformed rows of one reader. More than `share` of all rows, and more than ten, raise DataError."""

    share: float = 0.01
    count: int = 0
    rows: int = 0
    examples: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def saw(self, rows: int, bad: list[str]) -> None:
        """`rows` more rows were read, good and bad; `bad` says where and what: 'file:line: reason'. Raises DataError."""
        with self._lock:
            self.rows += rows
            self.count += len(bad)
            self.examples += bad[: max(0, 5 - len(self.examples))]
            if self.count > max(_AT_LEAST, self.share * self.rows):
                raise DataError(
                    f"{self.examples[0]} ({self.count} of {self.rows} rows are malformed, at most {self.share:.1%} may be)"
                )

    def at_end(self, source: str) -> None:
        """A whole pass over `source` is over. Raises DataError when it held no good row."""
        with self._lock:
            if self.rows and self.count == self.rows:
                raise DataError(f"{self.examples[0]} (none of the {self.rows} rows of {source} can be read)")

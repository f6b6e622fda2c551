"""Section 5.3 of HET-GMP over dictionaries, a row at a time, in double precision."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.support.het_model import step


@dataclass
class Primary:
    row: np.ndarray
    state: np.ndarray
    clock: int = 0

    def update(self, kind: str, grad: np.ndarray, count: int) -> None:
        self.row, self.state = step(kind, self.row, self.state, grad)
        self.clock += count


@dataclass
class Replica:
    """What a worker has of a row: as it came and as its own updates that have left make it, `seen` updates of the primary, and what has not left; the step for
    which it `came`, and own updates `since`, which were not in it."""

    row: np.ndarray
    state: np.ndarray
    seen: int
    pending: list[np.ndarray] = field(default_factory=list)
    came: int = 0
    since: int = 0

    def value(self, kind: str) -> np.ndarray:
        return step(kind, self.row, self.state, np.sum(self.pending, axis=0))[0] if self.pending else self.row

    def leave(self, kind: str) -> tuple[np.ndarray, int]:
        """Its own updates leave: their sum, and how many they are."""
        grad, count = np.sum(self.pending, axis=0), len(self.pending)
        self.row, self.state = step(kind, self.row, self.state, grad)
        self.seen += count
        self.pending = []
        return grad, count

    def write(self, grad: np.ndarray) -> None:
        self.pending.append(grad)
        self.since += 1

    def come(self, primary: Primary, step: int) -> None:
        self.row, self.state, self.seen = primary.row, primary.state, primary.clock
        self.came, self.since = step, len(self.pending)

    def clock_at(self, step: int, expected: float) -> float:
        """Updates that its primary is to have had when it came, and its own since then; no more than its primary is to have by now."""
        return min(expected * step, expected * self.came + self.since)


def distance(one: tuple[float, float], other: tuple[float, float]) -> float:
    """How far (clock, p) is behind (clock, p), as the paper prints it: |c_i p_j / p_i - c_j| with p_i >= p_j, below 0 where it is ahead."""
    (clock, expected), (its_clock, its_expected) = one, other
    if expected >= its_expected:
        return its_clock - clock * its_expected / expected
    return its_clock * expected / its_expected - clock


def behind(key: int, sample: Sequence[int], clocks: dict[int, float], expected: dict[int, float]) -> Iterable[float]:
    """How far a row is behind each other row of a sample that is at its worker."""
    for other in sample:
        if other != key and other in clocks and expected[other] > 0 and expected[key] > 0:
            yield distance((clocks[key], expected[key]), (clocks[other], expected[other]))

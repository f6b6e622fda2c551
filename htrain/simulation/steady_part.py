"""Where a series of counts has become steady: caches fill, policies learn, and only what comes after that is to be counted.

The part to leave out is the one that makes the standard error of the mean of the rest least (White 1997, MSER-5): means of 5 counts each take the
place of counts, and at most half of them are left out. A series that is still falling has its least error at or near that half.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_TOGETHER = 5
_PARTS = 8  # of the counted part, whose means say how sure the mean is
_T = 2.365  # Student's for 7 degrees of freedom, 95 %
_LATEST = 0.45  # of a series that begins to be steady so late it is not known that it is
_CLOSE = 0.01  # of the mean


@dataclass(frozen=True)
class Steady:
    """Counts before `first` are left out. `is_warm` where the rest does not change any more, and `is_sure` where its mean is known to 1 %."""

    first: int
    is_warm: bool
    is_sure: bool


def steady_part(counts: Sequence[float], negligible: float = 0.0) -> Steady:
    """The steady part of a series, of which differences of `negligible` do not matter; all of it, not warm, where it has fewer than 20 counts."""
    blocks = len(counts) // _TOGETHER
    if blocks < 4:
        return Steady(0, is_warm=False, is_sure=False)
    means = np.asarray(counts[: blocks * _TOGETHER], np.float64).reshape(blocks, _TOGETHER).mean(1)
    left = np.arange(blocks, 0, -1)
    total, squares = means[::-1].cumsum()[::-1], (means**2)[::-1].cumsum()[::-1]
    errors = np.maximum(0.0, squares - total**2 / left) / left**2
    first = int(errors[: blocks // 2 + 1].argmin())
    rest = np.asarray(counts[first * _TOGETHER :])
    close = max(negligible, _CLOSE * float(rest.mean()))
    parts = np.array([part.mean() for part in np.array_split(rest, _PARTS)])
    drift = abs(parts[: _PARTS // 2].mean() - parts[_PARTS // 2 :].mean())
    error = _T * parts.std(ddof=1) / np.sqrt(_PARTS)
    is_early = first < min(blocks // 2, _LATEST * blocks)
    return Steady(first * _TOGETHER, bool(is_early or drift <= close), bool(error <= close))

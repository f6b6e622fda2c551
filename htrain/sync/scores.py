"""A user's score of the rows of a cache, compiled."""

from collections.abc import Callable
from functools import cache
from typing import Any, cast

from numba import float64, int64, njit

from htrain.spec.policies import Score


@cache
def compiled(score: Score) -> Callable[[int, int, int], float]:
    """`score(uses, idle, age)` as Numba code can call it; 1 / 0 is infinite there. Raises Numba's errors for what it cannot compile."""
    made: Any = njit(float64(int64, int64, int64), nogil=True, error_model="numpy")(score)
    return cast(Callable[[int, int, int], float], made)

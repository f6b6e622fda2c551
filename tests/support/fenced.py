"""Arrays for loops that check no bounds: ids that may be anything, and rows with a fence around them that nobody may touch."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

INT64 = st.integers(-(2**63), 2**63 - 1)


def near(size: int) -> st.SearchStrategy[int]:
    """Mostly in [0, size), sometimes beside it, seldom far away."""
    return st.one_of(
        st.integers(0, max(0, size - 1)), st.integers(0, max(0, size - 1)), st.integers(-2, size + 1), INT64
    )


def int64(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def eighths(*shape: int) -> NDArray[np.float32]:
    """Numbers whose sums are exact, another one in each place."""
    return (np.arange(np.prod(shape)) / 8 - 2).astype(np.float32).reshape(shape)


def fenced(rows: int, *width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """An array of `rows` rows, and the larger one around it, whose other rows nobody may touch."""
    field = np.full((rows + 4, *width), 7.0, np.float32)
    field[2 : rows + 2] = eighths(rows, *width)
    return field[2 : rows + 2], field


def assert_fence_stands(field: NDArray[np.float32]) -> None:
    assert (field[:2] == 7).all()
    assert (field[-2:] == 7).all()

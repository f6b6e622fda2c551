"""Where series become steady: those of which it is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.simulation.steady_part import steady_part


@settings(max_examples=40, deadline=None)
@given(
    cold=st.integers(0, 120), drop=st.floats(2, 20), noise=st.floats(0, 0.05), level=st.floats(1, 1e5), seed=st.integers(0, 99)
)  # fmt: skip
def test_a_beginning_that_is_unlike_the_rest_is_left_out(
    cold: int, drop: float, noise: float, level: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    series = level * np.where(np.arange(400) < cold, drop, 1.0) * (1 + noise * random.standard_normal(400))
    found = steady_part(series.tolist())
    assert cold <= found.first + 5
    assert series[found.first :].mean() == pytest.approx(level, rel=0.03)
    assert found.is_warm


def test_what_falls_to_the_end_is_not_warm() -> None:
    found = steady_part(np.linspace(100, 10, 200).tolist())
    assert not found.is_warm
    assert not found.is_sure


def test_what_falls_by_less_than_matters_is_warm() -> None:
    series = np.linspace(1.0, 0.5, 200).tolist()
    assert not steady_part(series).is_warm
    assert steady_part(series, negligible=0.5).is_warm


def test_a_short_series_counts_whole_and_is_not_warm() -> None:
    found = steady_part([5.0] * 19)
    assert (found.first, found.is_warm, found.is_sure) == (0, False, False)


def test_a_series_that_swings_is_warm_but_not_sure() -> None:
    random = np.random.default_rng(0)
    found = steady_part(random.exponential(size=100).tolist())
    assert found.is_warm
    assert not found.is_sure

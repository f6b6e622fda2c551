"""The knee of a curve, and which candidate is recommended."""

import pytest

from htrain.advising.advice import Candidate, Setting, Share, Traffic
from htrain.advising.knee import knee, recommended
from htrain.ops.cache_rates import NO_RATES


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([10, 2, 1, 0.5, 0], 1),
        ([10, 9, 8, 1, 0], 3),
        ([10, 10, 10], 0),
        ([5], 0),
        ([10, 12, 3, 3, 3], 2),
        ([10, 12, 11, 7, 4], 4),
    ],
)
def test_the_knee_is_furthest_below_the_line_between_the_ends(values: list[float], place: int) -> None:
    assert knee(range(len(values)), values) == place


def candidate(capacity: str, num_bytes: float, policy: str = "lru", window: int = 1) -> Candidate:
    share = Share(0.5, 0.0)
    return Candidate(Setting(capacity, policy, window, 100), share, (share,), Traffic(num_bytes, (1.0,)), NO_RATES)


def test_the_best_at_the_knee_is_recommended_and_of_those_as_good_the_first() -> None:
    tried = [
        candidate("1%", 90), candidate("10%", 31, "lfu"), candidate("10%", 30.0), candidate("10%", 29.9, window=8), candidate("50%", 20),
    ]  # fmt: skip
    assert recommended(tried, [1, 10, 10, 10, 50], 100.0).setting == tried[2].setting


def test_where_what_is_saved_grows_with_the_size_the_largest_is_recommended() -> None:
    """As where few of a small cache's rows are used again before they leave."""
    tried = [candidate("3%", 26.5), candidate("5%", 24.7), candidate("10%", 16.4), candidate("15%", 12.5)]
    assert recommended(tried, [3, 5, 10, 15], 22.0).setting.capacity == "15%"


def test_the_least_is_recommended_where_all_cost_more_than_none() -> None:
    tried = [candidate("3%", 26.5), candidate("5%", 24.7), candidate("10%", 24.9)]
    assert recommended(tried, [3, 5, 10], 22.0).setting.capacity == "5%"


def test_the_smallest_is_recommended_where_no_size_saves_anything() -> None:
    tried = [candidate("1%", 100), candidate("10%", 100)]
    assert recommended(tried, [1, 10], 100.0).setting.capacity == "1%"

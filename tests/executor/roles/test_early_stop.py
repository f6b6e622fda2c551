"""When a run ends early, against the definition, looked up in all of its values."""

import math

from hypothesis import given
from hypothesis import strategies as st

from htrain.executor.roles.early_stop import Standing, standing_of

values = st.lists(st.sampled_from((0.1, 0.2, 0.3, 0.3000001, math.inf, math.nan)) | st.floats(), max_size=12)


def brute_best(seen: list[float]) -> float:
    return min((value for value in seen if not math.isnan(value)), default=math.inf)


def brute_ends(seen: list[float], patience: int) -> bool:
    """Whether none of the last `patience` values is better than all before them."""
    if not patience or len(seen) < patience:
        return False
    lasts = range(len(seen) - patience, len(seen))
    return not any(seen[at] < brute_best(seen[:at]) for at in lasts)


@given(values, st.integers(0, 6))
def test_a_run_ends_after_so_many_values_in_a_row_of_which_none_is_better_than_all_before(
    seen: list[float], patience: int
) -> None:
    for count in range(len(seen) + 1):
        standing = standing_of(seen[:count])
        assert standing.ends(patience) == brute_ends(seen[:count], patience)
        assert standing.best == brute_best(seen[:count])


@given(values, values)
def test_a_resumed_run_goes_on_counting(before: list[float], later: list[float]) -> None:
    standing = standing_of(before)
    for value in later:
        standing = standing.after(value)
    assert standing == standing_of(before + later)


def test_before_the_first_value_no_run_ends_and_any_number_is_better() -> None:
    assert not Standing().ends(1)
    assert Standing().is_better(1e9)
    assert not Standing().is_better(math.nan)

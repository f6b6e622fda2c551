"""When rows are averaged: by steps, and by updates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.sync.lookahead.averaging import averaging_of, share_of


@given(st.integers(1, 7), st.lists(st.integers(1, 9), max_size=8))
def test_by_steps_windows_are_nothing(every: int, windows: list[int]) -> None:
    averaging = averaging_of(every, 100)
    assert not averaging.wants_updates
    found = []
    for steps in windows:
        averaging.begin_window([0] * steps)
        found += [averaging.ended() for _ in range(steps)]
    assert found == [(k + 1) % every == 0 for k in range(sum(windows))]


@given(st.floats(0.5, 300), st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=9), max_size=8), st.data())
def test_by_updates_they_are_averaged_as_soon_as_there_are_enough(
    percent: float, windows: list[list[int]], data: st.DataObject
) -> None:
    averaging = averaging_of(f"{percent}%", 20)
    wanted, since = max(1.0, percent / 100 * 20), 0
    for window in windows:
        averaging.begin_window(window)
        for updates in window:
            since += updates
            assert averaging.ended() == (since >= wanted)
            if since >= wanted or data.draw(st.booleans()):
                averaging.averaged()  # as at a checkpoint
                since = 0


def test_a_window_does_not_begin_within_another() -> None:
    averaging = averaging_of("10%", 100)
    averaging.begin_window([1, 2])
    averaging.ended()
    with pytest.raises(AssertionError):
        averaging.begin_window([3])


def test_a_step_behind_the_last_window_updates_nothing() -> None:
    averaging = averaging_of("1%", 100)
    averaging.begin_window([1])
    assert [averaging.ended() for _ in range(3)] == [True, False, False]


def test_shares_are_of_a_hundred() -> None:
    assert share_of("12.5%") == 0.125

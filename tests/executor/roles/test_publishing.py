"""When versions are published, against a list of times."""

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from htrain.executor.roles.publishing import PublishSchedule
from htrain.executor.settings import RunSettings
from htrain.publishing.shares import Publishing

times = st.floats(0.1, 100)


def schedule(every: float | str) -> PublishSchedule:
    return PublishSchedule(
        RunSettings(Path("p"), "d", Path("r"), publishing=Publishing("store", {}), publish_seconds=every)  # type: ignore[arg-type]
    )


def test_without_an_address_none_is_ever_due() -> None:
    made = PublishSchedule(RunSettings(Path("p"), "d", Path("r"), publish_seconds=1.0))
    made.begin(0.0)
    assert not made.is_wanted
    assert made.due == math.inf


@given(every=times, lasts=st.lists(times, min_size=1, max_size=5))
def test_versions_begin_as_often_as_is_said_or_one_after_another_where_they_take_longer(
    every: float, lasts: list[float]
) -> None:
    made, now = schedule(every), 0.0
    made.begin(now)
    assert made.due == every
    for last in lasts:
        now = began = made.due
        made.begun(now)
        assert made.due == math.inf
        assert not made.is_written_by(2, of=3)
        assert made.is_written_by(3, of=3)
        assert not made.is_written_by(3, of=3), "it is closed once"
        now += last
        assert made.ended("news", "", now) == "news"
        assert made.due == max(now, began + every)


@given(every=times)
def test_what_could_not_be_published_is_tried_again_in_half_a_minute_or_sooner(every: float) -> None:
    made = schedule(every)
    made.begin(0.0)
    made.begun(every)
    told = made.ended("", "the storage is away", every + 1)
    assert made.due == every + 1 + min(every, 30)
    assert told.startswith("not published: the storage is away; training goes on, it is tried again in ")
    assert made.error == "the storage is away"


def test_at_the_end_alone_nothing_is_due_and_what_goes_wrong_is_told() -> None:
    made = schedule("end")
    made.begin(0.0)
    assert made.due == math.inf
    made.begun(5.0)
    assert made.ended("", "no such bucket", 6.0) == "not published: no such bucket"
    assert made.due == math.inf


def test_a_version_that_takes_long_is_called_slow_once() -> None:
    made = schedule(10.0)
    made.begin(0.0)
    assert made.slow == math.inf
    made.begun(10.0)
    assert made.slow == 70.0
    assert made.told_slow() == "a version is still being written after 60 s; training goes on"
    assert made.slow == math.inf
    made.ended("", "away", 80.0)
    made.begun(90.0)
    assert made.slow == 150.0

"""Who is silent: told once, given up in the end, and never for what the launcher itself has slept."""

from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.sync.liveness import Liveness, Lost, Silent

ROLES = ("trainer:0:0", "sparse_ps:0")


def warm(limit_seconds: float) -> Liveness:
    liveness = Liveness(ROLES, limit_seconds=limit_seconds, warm_up_seconds=600)
    liveness.warm()
    return liveness


def test_a_silent_role_is_told_of_once_and_then_given_up() -> None:
    liveness = warm(10)
    news = []
    for _ in range(24):
        liveness.heard("sparse_ps:0")
        news += liveness.listened(0.5)
    assert news[0] == Silent("trainer:0:0", 5.5)
    assert [type(each) for each in news] == [Silent, Lost, Lost, Lost, Lost]
    assert news[1] == Lost("trainer:0:0", 10.5)


def test_a_role_that_is_heard_again_may_be_silent_anew() -> None:
    liveness = warm(10)
    for _ in range(3):
        assert [liveness.listened(1.0) for _ in range(5)] == [[]] * 5
        assert liveness.listened(1.0) == [Silent("sparse_ps:0", 6.0), Silent("trainer:0:0", 6.0)]
        assert liveness.listened(1.0) == []
        liveness.heard("trainer:0:0")
        liveness.heard("sparse_ps:0")


def test_a_launcher_that_was_stopped_for_an_hour_blames_nobody() -> None:
    liveness = warm(10)
    for _ in range(9):
        assert not any(isinstance(each, Lost) for each in liveness.listened(3600.0))


@settings(max_examples=200, deadline=None)
@given(events=st.lists(st.one_of(st.floats(0, 1), st.sampled_from(ROLES)), max_size=80), limit=st.floats(1, 20))
def test_there_is_news_as_soon_as_a_role_is_late_and_none_within_the_seconds_that_are_left(
    events: list[float | str], limit: float
) -> None:
    """Beside every role's silence, which is counted here one by one."""
    liveness, silence, told = warm(limit), dict.fromkeys(ROLES, 0.0), set()
    for event in events:
        if isinstance(event, str):
            liveness.heard(event)
            silence[event] = 0.0
            told.discard(event)
            continue
        left = liveness.seconds_left
        silence = {role: seconds + event for role, seconds in silence.items()}
        late = {
            role for role, seconds in silence.items() if seconds > limit or (seconds > limit / 2 and role not in told)
        }
        if any(abs(seconds - most) < 1e-6 for seconds in silence.values() for most in (limit, limit / 2)):
            return  # by rounding it may be either
        news = liveness.listened(event)
        assert {each.role for each in news} == late
        assert not news or event > left - 1e-6
        told |= late


@settings(max_examples=100, deadline=None)
@given(silent=st.sampled_from(ROLES), limit=st.floats(4, 20))
def test_who_waits_for_as_long_as_is_left_soon_has_news(silent: str, limit: float) -> None:
    liveness, waits, news = warm(limit), 0, []
    while not news:
        seconds = min(1.0, liveness.seconds_left + 0.01)
        assert seconds > 0
        for role in ROLES:
            if role != silent:
                liveness.heard(role)
        news = liveness.listened(seconds)
        waits += 1
    assert [each.role for each in news] == [silent]
    assert waits <= limit / 2 + 3


def test_until_the_run_is_warm_everybody_has_more_time() -> None:
    liveness = Liveness(ROLES, limit_seconds=10, warm_up_seconds=100)
    news = [each for _ in range(100) for each in liveness.listened(1.0)]
    assert news == [Silent("sparse_ps:0", 51.0), Silent("trainer:0:0", 51.0)]
    assert liveness.listened(1.0) == [Lost("sparse_ps:0", 101.0), Lost("trainer:0:0", 101.0)]


@settings(max_examples=100, deadline=None)
@given(events=st.lists(st.one_of(st.floats(0, 5), st.sampled_from(ROLES)), max_size=80), limit=st.floats(1, 20))
def test_exactly_those_are_given_up_who_were_not_heard_while_the_launcher_listened_for_longer_than_the_limit(
    events: list[float | str], limit: float
) -> None:
    liveness, silence = warm(limit), dict.fromkeys(ROLES, 0.0)
    for event in events:
        if isinstance(event, str):
            liveness.heard(event)
            silence[event] = 0.0
            continue
        lost = {each.role for each in liveness.listened(event) if isinstance(each, Lost)}
        silence = {role: seconds + min(event, 1.0) for role, seconds in silence.items()}
        if any(abs(seconds - limit) < 1e-6 for seconds in silence.values()):
            return  # by rounding it may be either
        assert lost == {role for role, seconds in silence.items() if seconds > limit}

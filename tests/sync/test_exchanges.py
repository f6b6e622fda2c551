"""What is lost on a line is known, and what is only late is not taken for lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from htrain.sync.exchanges import Exchanges, Numbers

quick = settings(max_examples=200, deadline=None, derandomize=True)
LIMIT = 10.0


def test_a_word_is_new_once_and_a_gap_is_noticed_with_the_next_word() -> None:
    numbers = Numbers()
    assert [numbers.admit(number) for number in (1, 2, 2, 1, 4, 5, 3)] == [True, True, False, False, None, True, False]
    assert numbers.last == 5


@given(delays=st.lists(st.floats(0, 8), min_size=1, max_size=30), every=st.floats(0.1, 1))
@quick
def test_words_that_are_late_are_not_lost_however_many_are_on_their_way(delays: list[float], every: float) -> None:
    """A word is said every second, and comes in its order after at most 8; signs of life come without delay."""
    exchanges, now, came = Exchanges(), 0.0, 0.0
    arrivals = []
    for said, delay in enumerate(delays):
        came = max(came, said + delay)
        arrivals.append(came)
    exchanges.ordered = 3
    while now < len(delays) + 20:
        for number, at in enumerate(arrivals, 1):
            if now - every < at <= now:
                assert exchanges.heard("a", number)
        exchanges.reported("a", said=sum(said <= now for said in range(len(delays))), heard=3)
        exchanges.listened(every)
        assert exchanges.lost(LIMIT) == []
        now += every


@given(before=st.integers(0, 5), every=st.floats(0.1, 1))
@quick
def test_a_last_word_that_is_lost_is_missing_once_the_limit_is_over(before: int, every: float) -> None:
    exchanges = Exchanges()
    for number in range(1, before + 1):
        assert exchanges.heard("a", number)
    seconds = 0.0
    while not exchanges.lost(LIMIT):
        exchanges.reported("a", said=before + 1, heard=0)
        exchanges.reported("b", said=0, heard=0)
        exchanges.listened(every)
        seconds += every
    assert exchanges.lost(LIMIT) == ["a"]
    assert LIMIT < seconds <= LIMIT + 3 * every


def report(exchanges: Exchanges, seconds: float, *, every: float = 0.5, **heard: int) -> None:
    """Signs of life of roles that have heard so many orders."""
    for _ in range(int(seconds / every)):
        for role, number in heard.items():
            exchanges.reported(role, said=0, heard=number)
        exchanges.listened(every)


def test_an_order_that_a_role_does_not_hear_of_is_missing_though_others_have_it() -> None:
    exchanges = Exchanges()
    exchanges.ordered = 1
    report(exchanges, LIMIT + 2, a=1, b=0)
    assert exchanges.lost(LIMIT) == ["b"]


def test_a_role_that_stood_still_is_given_the_time_to_hear() -> None:
    exchanges = Exchanges()
    exchanges.ordered = 1
    report(exchanges, 1, a=0)
    exchanges.listened(10 * LIMIT)  # without a sign of life
    report(exchanges, 1, a=0)
    assert exchanges.lost(LIMIT) == []
    report(exchanges, LIMIT, a=0)
    assert exchanges.lost(LIMIT) == ["a"]

"""Requests come in any order, some twice; each is admitted once, in the order of its source."""

from hypothesis import given
from hypothesis import strategies as st

from htrain.sync.ordered import InOrder, Rounds


@given(st.permutations([(source, number) for source in "ab" for number in range(5)] * 2))
def test_requests_are_admitted_once_and_in_order(arrivals: list[tuple[str, int]]) -> None:
    order: InOrder[tuple[str, int]] = InOrder()
    admitted = [item for source, number in arrivals for item in order.admit(source, number, (source, number))]
    for source in "ab":
        assert [number for name, number in admitted if name == source] == list(range(5))
    assert all(order.is_past(source, number) for source, number in arrivals)


def test_what_came_too_early_waits() -> None:
    order: InOrder[str] = InOrder()
    assert order.admit("a", 1, "second") == []
    assert not order.is_past("a", 1)
    assert order.admit("a", 0, "first") == ["first", "second"]


def test_nobody_leaves_a_round_before_all_have_come_to_it() -> None:
    rounds: Rounds[str] = Rounds(3)
    assert rounds.arrive(0, "a") == []
    assert rounds.arrive(0, "b") == []
    assert rounds.arrive(1, "a") == []
    assert rounds.arrive(0, "c") == ["a", "b", "c"]
    assert rounds.arrive(1, "b") == []
    assert rounds.arrive(1, "c") == ["a", "b", "c"]

"""All trainers hear the same sums, and stop behind the same step."""

from hypothesis import given
from hypothesis import strategies as st

from htrain.sync.agreement import Verdict, Word


@given(st.lists(st.builds(Word, st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_a_run_is_over_when_nobody_has_data_and_pauses_when_anybody_wants_to(words: list[Word]) -> None:
    numbers = [sum(column) for column in zip(*(word.numbers() for word in words), strict=True)]
    verdict = Verdict.of(*numbers)
    assert verdict.over == (not any(word.has_data for word in words))
    assert verdict.pause == any(word.wants_pause for word in words)
    assert verdict.stops == (verdict.over or verdict.pause)

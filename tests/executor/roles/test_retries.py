"""When a run that fails is begun again: as long as it gets further."""

from hypothesis import given
from hypothesis import strategies as st

from htrain.executor.roles.retries import MOST_SECONDS, Retries


@given(most=st.integers(0, 5), checkpoints=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=20))
def test_it_goes_on_until_so_many_tries_in_a_row_have_made_no_checkpoint(most: int, checkpoints: list[str]) -> None:
    retries, row = Retries(most), 0
    for number, checkpoint in enumerate(checkpoints):
        row = 0 if number and checkpoint != checkpoints[number - 1] else row
        seconds = retries.failed(checkpoint)
        assert (seconds is None) == (row == most)
        if seconds is None:
            assert retries.count == number
            assert bool(retries.ended) == bool(most)
            return
        row += 1
        assert retries.in_a_row == row
        assert 0 <= seconds <= MOST_SECONDS


def test_the_first_time_it_goes_on_at_once_then_later_and_later() -> None:
    retries = Retries(9)
    assert [retries.failed("a") for _ in range(9)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert retries.failed("a") is None
    assert retries.ended == "9 more tries without a checkpoint between them failed, too"


def test_a_checkpoint_begins_a_new_row() -> None:
    retries = Retries(2)
    assert [retries.failed(name) for name in ("", "", "a", "a", "b")] == [0, 1, 0, 1, 0]
    assert retries.count == 5

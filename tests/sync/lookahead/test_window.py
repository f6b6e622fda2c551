"""The choice of the window (cDLRM 4): it grows where training waits or windows are dear, and stops growing where they are not."""

from hypothesis import given
from hypothesis import strategies as st

from htrain.sync.lookahead.window import WindowChoice


def trained(
    choice: WindowChoice, *, prefetch: float = 0.0, place: float = 0.0, stall: float = 0.0, step: float = 1.0
) -> None:
    """The next window, times in steps; it was prefetched while the last one was trained on."""
    batches = choice.batches
    choice.trained(
        batches=batches,
        train_seconds=step * batches,
        prefetch_seconds=prefetch * batches,
        place_seconds=place,
        stall_seconds=stall,
    )


def test_training_begins_with_a_few_batches_and_stays_there_while_nothing_waits() -> None:
    choice = WindowChoice(500)
    assert choice.batches == 8
    for _ in range(10):
        trained(choice, prefetch=0.1, place=0.001)
    assert (choice.batches, choice.stalls) == (8, 0)


def test_the_wait_for_the_first_window_is_no_stall() -> None:
    choice = WindowChoice(500)
    trained(choice, stall=100.0)
    assert (choice.batches, choice.stalls) == (8, 0)


def test_a_fixed_cost_of_placing_is_spread_over_more_batches_until_it_is_small() -> None:
    choice = WindowChoice(500)
    for _ in range(20):
        trained(choice, place=0.5)
    assert choice.batches == 64  # 0.5 steps in 64 are less than 1 %


def test_a_window_grows_while_training_waits_and_never_above_the_most() -> None:
    choice = WindowChoice(100)
    for _ in range(9):
        trained(choice, stall=3.0)
    assert (choice.batches, choice.stalls) == (100, 8)


@given(st.integers(1, 1000), st.lists(st.tuples(*[st.floats(0, 1e3)] * 4), max_size=30))
def test_whatever_was_measured_a_window_is_between_one_batch_and_the_most(
    most: int, times: list[tuple[float, ...]]
) -> None:
    choice, last = WindowChoice(most), 0
    for train, prefetch, place, stall in times:
        choice.trained(
            batches=choice.batches,
            train_seconds=train,
            prefetch_seconds=prefetch,
            place_seconds=place,
            stall_seconds=stall,
        )
        assert 1 <= choice.batches <= most
        assert choice.batches >= last
        last = choice.batches

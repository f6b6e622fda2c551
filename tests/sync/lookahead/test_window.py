"""The choice of the window (cDLRM 4): it grows where training waits or windows are dear, and stops growing where they are not."""

from hypothesis import given
from hypothesis import strategies as st

from htrain.sync.lookahead.window import WindowChoice


def trained(
    choice: WindowChoice,
    *,
    prefetch: float = 0.0,
    place: float = 0.0,
    stall: float = 0.0,
    step: float = 1.0,
    victims: float = 0.0,
) -> None:
    """The next window, times in steps; it was prefetched while the last one, of a size of its own, was trained on."""
    batches, before = choice.batches, choice._last
    choice.trained(
        batches=batches,
        train_seconds=step * before,
        prefetch_seconds=prefetch * batches,
        place_seconds=place,
        stall_seconds=stall,
        victim_seconds=victims * before,
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


def test_a_window_shrinks_when_what_made_it_large_is_over_and_not_below_the_first() -> None:
    choice = WindowChoice(500)
    for _ in range(7):
        trained(choice, stall=3.0)
    assert choice.batches == 500
    sizes = []
    for _ in range(40):
        trained(choice, prefetch=0.1, place=0.001)
        sizes.append(choice.batches)
    assert list(dict.fromkeys(sizes)) == [500, 250, 125, 62, 31, 15, 8]


def test_a_window_that_costs_half_of_what_it_may_stays() -> None:
    choice = WindowChoice(500)
    for _ in range(100):
        trained(choice, place=0.5)
    assert choice.batches == 64  # half of it would cost 1.6 %


def test_a_size_that_turns_out_to_be_too_small_is_tried_less_and_less_often() -> None:
    """Windows of up to 32 batches make training wait, larger ones are nothing to it: no more than a few in a thousand windows wait."""
    choice = WindowChoice(500)
    for _ in range(1000):
        trained(choice, stall=0.0 if choice.batches > 32 else 3.0)
    assert choice.stalls <= 3 + 8
    assert choice.batches >= 64


def test_windows_whose_rows_drive_each_other_out_become_smaller() -> None:
    choice = WindowChoice(500)
    for _ in range(7):
        trained(choice, stall=3.0)
    for _ in range(60):
        trained(choice, place=0.008 * choice.batches, victims=0.3 if choice.batches > 64 else 0.0)
    assert choice.batches == 62


def test_where_small_windows_are_dear_and_large_ones_crowded_the_window_stays_between() -> None:
    choice, sizes = WindowChoice(500), []
    for _ in range(400):
        trained(choice, place=0.5, victims=0.3 if choice.batches > 100 else 0.0)
        sizes.append(choice.batches)
    assert choice.batches == 64


@given(st.integers(1, 1000), st.lists(st.tuples(*[st.floats(0, 1e3)] * 5), max_size=30))
def test_whatever_was_measured_a_window_is_between_one_batch_and_the_most(
    most: int, times: list[tuple[float, ...]]
) -> None:
    choice = WindowChoice(most)
    for train, prefetch, place, stall, victims in times:
        choice.trained(
            batches=choice.batches,
            train_seconds=train,
            prefetch_seconds=prefetch,
            place_seconds=place,
            stall_seconds=stall,
            victim_seconds=victims,
        )
        assert 1 <= choice.batches <= most

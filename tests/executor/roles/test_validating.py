"""When checkpoints are validated, against what would be seen by whoever counts multiples."""

from hypothesis import given
from hypothesis import strategies as st

from htrain.errors import DataError
from htrain.executor.roles.validating import ValidationSchedule


@given(
    every=st.integers(1, 50),
    validated=st.integers(0, 100),
    looks=st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), max_size=40),
)
def test_a_validation_is_due_at_the_first_look_behind_a_multiple_and_one_at_a_time(
    every: int, validated: int, looks: list[tuple[int, bool, bool]]
) -> None:
    schedule = ValidationSchedule(every=every, validated=validated)
    examples = last = validated
    is_running = False
    for more, ends, is_saved in looks:
        examples += more
        passed = any(last < number <= examples for number in range(0, examples + 1, every))
        assert schedule.is_due(examples) == (passed and not is_running)
        if schedule.is_due(examples):
            schedule.begun(examples, is_saved=is_saved)
            last, is_running = examples, is_saved
        elif is_running and ends:
            schedule.ended("", None)
            is_running = False
    assert not schedule.ends_run


@given(st.integers(0, 10**9))
def test_without_a_number_of_examples_none_is_due_before_the_end(examples: int) -> None:
    assert not ValidationSchedule(every=0, validated=0).is_due(examples)


def test_the_first_reason_to_end_a_run_counts() -> None:
    schedule = ValidationSchedule(every=1, validated=0)
    schedule.ended("no better", None)
    schedule.ended("worse", DataError("gone"))
    assert schedule.ends_run
    assert schedule.stops == "no better"
    assert str(schedule.error) == "gone"

"""How much of its last step a centre keeps, by the number of groups."""

import pytest

from htrain.spec.dense_sync import Bmuf
from htrain.sync.bmuf import momentum_of


@pytest.mark.parametrize(("groups", "momentum"), [(1, 0.0), (2, 0.5), (3, 0.5), (16, 0.5)])
def test_the_steps_of_two_groups_count_as_much_as_both_and_those_of_more_no_less(groups: int, momentum: float) -> None:
    assert momentum_of(Bmuf(), groups) == momentum


def test_what_the_user_says_is_taken() -> None:
    assert momentum_of(Bmuf(momentum=0.9), 2) == 0.9

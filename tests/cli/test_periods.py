"""Times as the command line takes them."""

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.cli.flags import Period

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}


@given(number=st.integers(1, 10**6), unit=st.sampled_from(sorted(SECONDS)))
def test_a_time_is_a_number_and_a_unit(number: int, unit: str) -> None:
    assert Period().convert(f"{number}{unit}", None, None) == number * SECONDS[unit]


def test_the_end_is_a_time_too() -> None:
    assert Period().convert("end", None, None) == "end"


@pytest.mark.parametrize("text", ["", "s", "0s", "-1s", "nan", "inf", "infh", "2w", "2 hours", "1e999d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"^'{text}' is no time: want one such as 20s, 15m or 2h, or end$"):
        Period().convert(text, None, None)

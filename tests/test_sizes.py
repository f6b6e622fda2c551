"""Sizes as text: the unit that fits, and nothing that is there told as nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.sizes import bandwidth_text, memory_text, traffic_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1024**2 - 1, "1.0 MiB"), (158.7 * 2**20, "158.7 MiB"), (2**30, "1.0 GiB"), (2**60, "1.0 EiB")],
)  # fmt: skip
def test_memory_is_told_in_binary_units(num_bytes: float, text: str) -> None:
    assert memory_text(num_bytes) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (512, "512 B"), (999.6, "1.0 kB"), (1000, "1.0 kB"), (999_960, "1.0 MB"), (1_234_567_890, "1.2 GB"), (5e12, "5.0 TB"),
     (0.04, "0.04 B"), (0.96, "1.0 B"), (9.5, "9.5 B"), (9.96, "10 B")],
)  # fmt: skip
def test_traffic_is_told_in_decimal_units(num_bytes: float, text: str) -> None:
    assert traffic_text(num_bytes) == text


def test_links_are_told_in_bits() -> None:
    assert [bandwidth_text(rate) for rate in (125, 3_125_000_000, 12_500_000)] == [
        "1.0 kbit/s",
        "25.0 Gbit/s",
        "100.0 Mbit/s",
    ]


@given(st.floats(1e-6, 1e18))
def test_what_is_there_is_never_told_as_nothing_and_never_as_a_thousand_of_a_unit(num_bytes: float) -> None:
    for text, base in ((memory_text(num_bytes), 1024), (traffic_text(num_bytes), 1000)):
        number = float(text.split()[0].replace(",", ""))
        assert 0 < number < base

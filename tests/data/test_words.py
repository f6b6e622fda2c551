"""Eight bytes at a time against plain Python."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from htrain.data.words import (
    NEWLINES,
    RETURNS,
    TABS,
    bytes_before,
    decimal_value,
    flush_right,
    hexadecimal_value,
    places,
    word_at,
)

GUARD = b"\xff" * 8
KINDS = [(decimal_value, "[0-9]*", 10), (hexadecimal_value, "[0-9a-fA-F]*", 16)]


def word(text: bytes) -> np.uint64:
    """The first eight bytes of `text`, of which three more stand before it."""
    return np.uint64(word_at(np.frombuffer(b"\t\n\r" + text + GUARD, np.uint8), np.uint64(3)))


@pytest.mark.parametrize(("value_of", "pattern", "base"), KINDS)
def test_a_digit_is_told_from_any_other_byte_at_any_place(value_of, pattern, base):
    for place in range(8):
        for byte in range(256):
            text = b"1234567890"[:place] + bytes([byte]) + b"98765432"[place + 1 :]
            good, value = value_of(word(text))
            assert good == bool(re.fullmatch(pattern, text.decode("latin-1"))), text
            assert not good or value == int(text, base)


@pytest.mark.parametrize(("value_of", "pattern", "base"), KINDS)
@given(text=st.text("0123456789", max_size=8), case=st.sampled_from([str.upper, str.lower]), data=st.data())
def test_a_field_of_up_to_eight_digits_has_its_value(value_of, pattern, base, text, case, data):
    if base == 16:
        text = case(data.draw(st.text("0123456789abcdef", max_size=8)))
    digits = np.uint64(flush_right(word(text.encode() + b"\t"), np.uint64(len(text))))
    good, value = value_of(digits)
    assert (good, value) == (True, int(text or "0", base))


@given(text=st.binary(min_size=8, max_size=8))
@example(text=b"\t\x08\t\x08\n\x0b\r\x0c")
@example(text=b"\x08\x08\x08\t\x08\x08\x08\x08")
def test_the_first_of_a_byte_is_found(text):
    for byte, one in ((TABS, b"\t"), (NEWLINES, b"\n"), (RETURNS, b"\r")):
        found = np.uint64(places(word(text), byte))
        assert bool(found) == (one in text)
        assert bytes_before(found) == (text.index(one) if one in text else 8)
    either = np.uint64(places(word(text), NEWLINES)) | np.uint64(places(word(text), RETURNS))
    assert bytes_before(either) == min((text.index(b) for b in b"\n\r" if b in text), default=8)

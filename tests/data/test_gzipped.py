"""Compressed text against gzip, as Python has it: what it reads, and that damage is found."""

import gzip
import platform
import zlib
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htrain.data.gzipped import DAMAGES, open_gzip
from htrain.data.text import readable
from htrain.errors import DataError

TEXT = st.binary(max_size=3_000) | st.integers(0, 60_000).map(lambda n: b"1\t2\tc0ffee\n" * n)


@given(members=st.lists(st.tuples(TEXT, st.integers(0, 9)), min_size=1, max_size=3), size=st.integers(1, 70_000))
def test_text_is_that_which_was_written_in_any_pieces(members: list[tuple[bytes, int]], size: int) -> None:
    packed = b"".join(gzip.compress(text, level) for text, level in members)
    with open_gzip(BytesIO(packed)) as file:
        read = list(iter(lambda: file.read(size), b""))
    assert b"".join(read) == b"".join(text for text, _ in members) == gzip.decompress(packed)


@given(text=TEXT, data=st.data())
def test_damage_is_found_or_changes_nothing(text: bytes, data: st.DataObject) -> None:
    packed = bytearray(gzip.compress(text))
    if data.draw(st.booleans(), label="cut"):
        del packed[data.draw(st.integers(1, len(packed) - 1), label="length") :]
    else:
        packed[data.draw(st.integers(0, len(packed) - 1), label="place")] ^= data.draw(
            st.integers(1, 255), label="bits"
        )
    is_damaged = _is_damaged(bytes(packed))
    told = pytest.raises(DataError, match=r"^a\.gz: cannot be read: ") if is_damaged else nullcontext()
    with told, readable(Path("a.gz")), open_gzip(BytesIO(packed)) as file:
        assert file.read() == text, "else in the header, which says when it was made and by what"


def _is_damaged(packed: bytes) -> bool:
    try:
        gzip.decompress(packed)
    except (EOFError, OSError, zlib.error):
        return True
    return False


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="ISA-L is for these")
def test_it_is_isa_l_that_reads() -> None:
    assert "IsalError" in {each.__name__ for each in DAMAGES}
    with open_gzip(BytesIO(gzip.compress(b"a"))) as file:
        assert type(file).__module__.startswith("isal")

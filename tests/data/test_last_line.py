"""Where what has come to a text file begins: where it ended, or at its last line, which goes on."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import htrain.data.last_line as module
from htrain.data.last_line import begin_of_new
from htrain.errors import DataError


@given(
    lines=st.lists(st.text("ab", max_size=9), min_size=1, max_size=9),
    end=st.sampled_from(("\n", "\r\n")),
    has_end=st.booleans(),
    places=st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1)),
    block=st.sampled_from((1, 3, 1 << 16)),
)
@settings(max_examples=200, deadline=None)
def test_a_line_is_read_anew_where_it_goes_on_and_not_where_it_only_ends(
    lines: list[str],
    end: str,
    has_end: bool,
    places: tuple[float, float],
    block: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    text = end.join(lines) + (end if has_end else "x")
    before = int(places[0] * len(text))
    now = before + 1 + int(places[1] * (len(text) - before - 1))
    path = tmp_path_factory.mktemp("line") / "a"
    path.write_text(text[:now], newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK_BYTES", block)
        begin = begin_of_new(path, before)
    old, new = text[:before], text[before:now]
    goes_on = old and not old.endswith("\n") and new[0] not in "\r\n"
    assert begin == (len(old) - len(old.rpartition("\n")[2]) if goes_on else before)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none: cannot be read: No such file or directory$"):
        begin_of_new(tmp_path / "none", 5)

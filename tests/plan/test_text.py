"""What a person reads of a plan: folded names say which names they stand for."""

import re

from hypothesis import given
from hypothesis import strategies as st

from htrain.plan.text import fold

names = st.lists(st.from_regex(r"[a-c.]{0,2}[0-9]{0,3}[a-c.]{0,2}", fullmatch=True), unique=True, max_size=12)


def unfold(text: str) -> list[str]:
    parts = re.fullmatch(r"(.*)\{(.*)\}(.*)", text)
    if not parts:
        return [text]
    ranges = [run.split("-") for run in parts[2].split(",")]
    return [f"{parts[1]}{n}{parts[3]}" for run in ranges for n in range(int(run[0]), int(run[-1]) + 1)]


def test_series_are_folded_by_their_last_number() -> None:
    assert fold(["a", "a_1", "a_2", "t.C1.weight", "b", "t.C2.weight", "t.C7.weight", "x9"]) == [
        "a",
        "a_{1-2}",
        "t.C{1-2,7}.weight",
        "b",
        "x9",
    ]


@given(names)
def test_folded_names_stand_for_all_names_once(given_names: list[str]) -> None:
    assert sorted(name for text in fold(given_names) for name in unfold(text)) == sorted(given_names)
